"""The data source under a task that fails: what is left in the worker is looked at in the worker.

A module of its own, because Spark's workers import it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ledger import DefaultSource
from spark.reader import LedgerBatchReader


def _held() -> set[str]:
    """Sockets of this process, and threads of scans."""
    found = {thread.name for thread in threading.enumerate() if thread.name == "ledger-scan"}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(Path("/proc/self/fd", name))
        except OSError:
            continue  # the folder that is being listed
        if target.startswith("socket:"):
            found.add(target)
    return found


class FailsOnceReader(LedgerBatchReader):
    """Every first attempt ends after one batch; the next one reads on to the end."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        before = _held()
        batches = super().read(partition)
        yield next(batches)
        if context.attemptNumber() == 0:
            batches.close()  # type: ignore[attr-defined]
        else:
            yield from batches
        left = _held() - before
        if left:
            raise RuntimeError(f"LEFT BEHIND in attempt {context.attemptNumber()}: {left}")
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")


class FailsOnce(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "ledger-fails-once"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FailsOnceReader(self.options, schema)
