"""What one task of a sink does: its rows into ledgers of its own, closed, or into none at all.

Every attempt writes ledgers that no other attempt touches, and only reports them. So a task may
be retried, run twice or be killed at any moment: what counts is decided later, by the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from ledger_client import EntryTooLargeError, LedgerClient, LedgerError, LedgerWriter
from ledger_client import sync as blocking
from ledger_client.security import read_security
from spark.core.commits import Identity, WrittenLedger, WrittenPart, staged_metadata
from spark.core.rollup import RollUp
from spark.credentials import resolve
from spark.errors import Code, SourceError
from spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

PAYLOAD = "payload"


def write_part(
    options: SinkOptions,
    identity: Identity,
    batches: Iterable[pa.RecordBatch],
    *,
    partition: int,
    attempt: int,
) -> WrittenPart:
    """Write the rows of a partition. After an error nothing of them is left behind."""
    rows = _payloads(batches, partition)
    first = next(rows, None)
    if first is None:
        return WrittenPart(partition, ())  # no connection and no ledger for nothing
    security = read_security(options.client_conf)
    with blocking.LedgerClient(options.metadata_service_uri, **security) as client:
        part = _Part(client, options, identity, partition=partition, attempt=attempt)
        try:
            part.append(first)
            for payloads in rows:
                part.append(payloads)
            return WrittenPart(partition, part.end())
        except BaseException:
            part.remove()
            raise


class _Part:
    """The ledgers of one attempt. One append is under way while the next rows are prepared."""

    def __init__(
        self,
        client: blocking.LedgerClient,
        options: SinkOptions,
        identity: Identity,
        *,
        partition: int,
        attempt: int,
    ) -> None:
        self._client = client
        self._options = options
        self._password = resolve(options.credentials).others
        self._custom = staged_metadata(
            identity,
            partition=partition,
            attempt=attempt,
            ttl_ms=int(options.orphan_ttl_seconds * 1000),
        )
        self._writer: LedgerWriter | None = None
        self._rows = RollUp()  # of the ledger that is being written
        self._under_way: Future[object] | None = None
        self._closed: list[WrittenLedger] = []

    def append(self, payloads: list[bytes]) -> None:
        for run in self._cut(payloads):
            rows = RollUp.of(run)
            self._settle()
            if self._writer is not None and self._rows.nbytes >= self._options.max_ledger_bytes:
                self._close()
            if self._writer is None:
                self._writer = self._client.submit(self._create).result()
            self._rows += rows
            self._under_way = self._client.submit(partial(_append, self._writer, run))

    def _cut(self, payloads: list[bytes]) -> Iterator[list[bytes]]:
        """Runs of rows that fit: a ledger is full once it has `maxLedgerBytes` or more."""
        limit = self._options.max_ledger_bytes
        if sum(map(len, payloads)) + self._rows.nbytes < limit:
            yield payloads
            return
        room = limit - self._rows.nbytes
        room = room if room > 0 else limit
        run: list[bytes] = []
        for payload in payloads:
            run.append(payload)
            room -= len(payload)
            if room <= 0:
                yield run
                run, room = [], limit
        if run:
            yield run

    def end(self) -> tuple[WrittenLedger, ...]:
        self._settle()
        self._close()
        return tuple(self._closed)

    def remove(self) -> None:
        """Best effort: what stays is swept later."""
        ledger_ids = [ledger.ledger_id for ledger in self._closed]
        if self._writer is not None:
            ledger_ids.append(self._writer.id)
        for ledger_id in ledger_ids:
            try:
                self._client.submit(partial(_delete, ledger_id=ledger_id)).result()
            except LedgerError as error:
                _log.warning("ledger %d is left to the sweep: %s", ledger_id, error)

    async def _create(self, client: LedgerClient) -> LedgerWriter:
        return await client.create(
            ensemble_size=self._options.ensemble_size,
            write_quorum=self._options.write_quorum,
            ack_quorum=self._options.ack_quorum,
            digest_type=self._options.digest_type,
            password=self._password,
            custom_metadata=self._custom,
        )

    def _settle(self) -> None:
        """Wait for the append under way: rows keep their order, and memory its bound."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            try:
                under_way.result()
            except EntryTooLargeError as error:
                raise SourceError(Code.BAD_ROW, str(error), ledger_id=error.ledger_id) from None

    def _close(self) -> None:
        writer = self._writer
        assert writer is not None
        self._client.submit(partial(_close, writer)).result()
        self._closed.append(WrittenLedger(writer.id, self._rows))
        self._writer, self._rows = None, RollUp()


async def _append(writer: LedgerWriter, payloads: list[bytes], _: LedgerClient) -> object:
    return await writer.append_many(payloads)


async def _close(writer: LedgerWriter, _: LedgerClient) -> None:
    await writer.close()


async def _delete(client: LedgerClient, *, ledger_id: int) -> None:
    await client.delete(ledger_id)


def _payloads(batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[list[bytes]]:
    """The payloads of each batch that has any."""
    import pyarrow as pa

    before = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        column = batch.column(batch.schema.get_field_index(PAYLOAD))
        if column.null_count:
            row = before + column.is_null().index(True).as_py()
            raise SourceError(
                Code.BAD_ROW,
                f"row {row} of partition {partition} has no payload: a ledger keeps bytes, so "
                "filter such rows out, or write empty ones",
            )
        if not pa.types.is_binary(column.type):
            column = column.cast(pa.binary())
        yield column.to_pylist()
        before += batch.num_rows
