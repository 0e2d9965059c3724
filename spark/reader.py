"""The batch reader: plan on the driver, read in tasks.

It never implements `pushFilters`: in PySpark 4.3.0 a pushed filter stays with the loaded relation,
so that the next query on the same DataFrame silently gets its rows. Ranges are narrowed by options,
columns by `.schema(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark.bridge import Emit, bridged
from spark.errors import BadOptionError, check_pyarrow
from spark.options import LEDGERS, SourceOptions, parse_source
from spark.partitions import PartitionPlan
from spark.planning import plan_batch
from spark.schema import check_schema
from spark.worker_process import settle


class LedgerBatchReader(DataSourceReader):
    """Made from texts and pickled to every task, so it holds nothing but checked options."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_pyarrow()
        self._options = parse_source(options)
        self._schema = check_columns(schema, self._options)

    def partitions(self) -> list[InputPartition]:
        with_custom = "metadata" in self._schema.names
        found: list[InputPartition] = list(plan_batch(self._options, with_custom=with_custom))
        settle()
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_plan(partition.value, self._options, self._schema)


def check_columns(schema: StructType, options: SourceOptions) -> StructType:
    """The schema, if it fits the options."""
    check_schema(schema, options.table)
    if options.null_on_digest_error and "status" not in schema.names:
        raise BadOptionError(
            "onDigestError=null makes rows without a payload: name the column status in the "
            "schema, so that they can be told apart"
        )
    return schema


def read_plan(
    plan: PartitionPlan | None, options: SourceOptions, schema: StructType
) -> Iterator[Any]:
    """The rows of one partition. Spark makes a partition of nothing out of an empty plan."""
    if plan is None:
        return iter(())
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    if options.table == LEDGERS:
        from spark.ledger_rows import ledger_rows

        return ledger_rows(plan.ledgers, arrow_schema)
    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    return bridged(partial(_scan, plan, options, arrow_schema, attempt))


async def _scan(
    plan: PartitionPlan, options: SourceOptions, schema: Any, attempt: int, emit: Emit[Any]
) -> None:
    from spark.scanning import scan_partition

    settle()
    await scan_partition(plan, options, schema, emit, attempt=attempt)
