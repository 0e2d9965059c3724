"""Ledgers as a sink: batches and streams, each row exactly once.

Tasks write and report, the driver commits what they report, in one transaction of the metadata
store (`spark/commits.py`). The names of methods are Spark's; which of its processes calls which:
`write` runs on executors, `commit` and `abort` on the driver, a stream's in a writer that was
built anew from the options. So nothing is kept here but the options.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from spark.commits import Commits, open_commits
from spark.core.commits import CommitConflictError, CommitError, CommitRecord, Identity, WrittenPart
from spark.errors import BadOptionError, Code, SourceError, coding
from spark.options import ENTRIES, SinkOptions, parse_sink
from spark.schema import default_schema
from spark.sink_task import PAYLOAD, write_part

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Where Spark says which query and which batch a task works for.
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task reports: for whom it wrote, and which ledgers."""

    identity: Identity
    part: WrittenPart


class LedgerBatchWriter(DataSourceArrowWriter):
    """One job; its identity is `writeId`, drawn here and pickled along."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        with coding():
            self._options = parse_sink(options)
            self._identity = _identity(self._options.write_id)
        _check_schema(schema)
        if overwrite and not self._options.is_write_id_given:
            raise BadOptionError(
                "mode overwrite replaces the rows of a commit: say which one with writeId, or use "
                "mode append"
            )
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._options, self._identity, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in _reports(messages)]
        _commit(self._options, self._identity, parts, overwrite=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class LedgerStreamWriter(DataSourceStreamArrowWriter):
    """One query. A batch is known by the id of the query, which survives restarts, and its own."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        with coding():
            self._options = parse_sink(options, streaming=True)
        _check_schema(schema)
        if overwrite:
            raise BadOptionError(
                "outputMode complete writes all rows anew with each batch, and a ledger only "
                "grows: use outputMode append"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        if query is None or batch is None:
            raise SourceError(
                Code.INTERNAL, "Spark does not say which query and batch a task works for"
            )
        return _write(self._options, Identity(query, int(batch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        reports = list(_reports(messages))
        if not reports:
            return  # no partition at all: there is nothing to be repeated either
        identity = reports[0].identity
        assert {report.identity for report in reports} == {Identity(identity.name, batchId)}
        _commit(self._options, identity, [report.part for report in reports])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, messages)


def _identity(write_id: str) -> Identity:
    try:
        return Identity(write_id)
    except CommitError as error:
        raise BadOptionError(f"writeId: {error}") from None


def _check_schema(schema: StructType) -> None:
    """Payloads and what a read of ledgers has beside them, so that one can be copied."""
    ours = set(default_schema(ENTRIES, include_metadata=True).names)
    if PAYLOAD not in schema.names:
        raise BadOptionError(
            f"rows need a column payload of type binary, and have {', '.join(schema.names)}: "
            "build it with select(...)"
        )
    kind = schema[PAYLOAD].dataType
    if not isinstance(kind, BinaryType | StringType):
        raise BadOptionError(
            f"column payload is {kind.simpleString()}, and a ledger keeps bytes: cast it to binary"
        )
    others = [name for name in schema.names if name not in ours]
    if others:
        raise BadOptionError(
            f"column {others[0]} would be lost: a ledger keeps the payload alone; pack it in, or "
            "drop it with select(...)"
        )


def _write(options: SinkOptions, identity: Identity, rows: Iterator[pa.RecordBatch]) -> Written:
    context = TaskContext.get()
    assert context is not None
    with coding():
        part = write_part(
            options,
            identity,
            rows,
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
        )
    return Written(identity, part)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> Iterator[Written]:
    for message in messages:
        if message is not None:  # a task that failed
            assert isinstance(message, Written)
            yield message


def _commit(
    options: SinkOptions,
    identity: Identity,
    parts: Sequence[WrittenPart],
    *,
    overwrite: bool = False,
) -> None:
    async def job(commits: Commits) -> CommitRecord:
        return await commits.commit(CommitRecord.of(identity, parts), overwrite=overwrite)

    stands = _on_commits(options, job)
    rows = stands.rows
    _log.info("commit %s: %d rows, %d bytes", identity, rows.entries, rows.nbytes)


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove what was written, but for what a commit lists that had won after all."""

    async def job(commits: Commits) -> None:
        for report in _reports(messages):
            ledger_ids = [ledger.ledger_id for ledger in report.part.ledgers]
            await commits.discard(report.identity, ledger_ids)

    _on_commits(options, job)


def _on_commits(options: SinkOptions, job: Callable[[Commits], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_commits(options.metadata_service_uri, options.client_conf) as commits:
            return await job(commits)

    with coding():
        try:
            return trio.run(main)
        except CommitConflictError as error:
            raise SourceError(Code.COMMIT_CONFLICT, str(error)) from None
        except CommitError as error:
            raise SourceError(Code.BAD_OPTION, str(error)) from None
