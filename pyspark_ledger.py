"""Where Spark finds the data source `ledger`.

On first use Spark imports every top-level module whose name begins with `pyspark_` and takes its
`DefaultSource`, so that `spark.read.format("ledger")` works without a `register()`. Jobs that never
touch a ledger import this too: it loads nothing before it is asked for something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Ledgers as rows: batch and stream, to read and to write. Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "ledger"

    def schema(self) -> StructType:
        """Called for reads without a schema of their own, where pyarrow is not needed yet."""
        from spark.errors import check_pyarrow
        from spark.options import parse_columns
        from spark.schema import default_schema
        from spark.worker_process import settle

        _check()
        check_pyarrow()
        table, include_metadata = parse_columns(self.options)
        settle()
        return default_schema(table, include_metadata=include_metadata)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark.reader import LedgerBatchReader

        _check()
        return LedgerBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark.stream import LedgerStreamReader

        _check()
        return LedgerStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark.sink import LedgerBatchWriter

        _check()
        return LedgerBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark.sink import LedgerStreamWriter

        _check()
        return LedgerStreamWriter(self.options, schema, overwrite=overwrite)


def _check() -> None:
    import pyspark

    from spark.errors import check_spark

    check_spark(pyspark.__version__)
