"""The partitions of one micro-batch, from its two offsets and the records of its ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ledger_client import LedgerClient, LedgerMetadata
from ledger_client.environment import check_password
from metadata.update import LedgerGoneError
from spark.core.offsets import LedgerEnd, LedgerSequence, Range
from spark.core.position import Position
from spark.credentials import Passwords, resolve
from spark.errors import Code, SourceError
from spark.options import SourceOptions
from spark.parallel import map_parallel
from spark.partitions import LedgerPartition, PlannedRange, partitions_of, trimmed


async def plan_between(
    client: LedgerClient,
    options: SourceOptions,
    sequence: LedgerSequence,
    start: Position,
    end: Position,
    known: Mapping[int, LedgerEnd],
    *,
    with_custom: bool = False,
) -> list[LedgerPartition]:
    """The same entries whenever it is asked for: ends are those of closed ledgers, or `end`.

    `known` helps to guess the size of entries in a ledger that is open; only the number of
    partitions depends on it.
    """
    passwords = resolve(options.credentials)

    async def record(ledger_id: int) -> LedgerMetadata | None:
        metadata = await _record(client, options, passwords, ledger_id)
        return metadata if metadata is None or with_custom else replace(metadata, custom=())

    touched = sequence.between(start, end)
    found = await map_parallel(record, touched)
    records: dict[int, LedgerMetadata] = {
        metadata.ledger_id: metadata for metadata in found if metadata is not None
    }
    ends: dict[int, LedgerEnd] = {}
    for metadata in records.values():
        if metadata.last_entry_id is not None:
            ends[metadata.ledger_id] = LedgerEnd(metadata.last_entry_id, True, metadata.length)
        elif metadata.ledger_id != end.ledger_id:
            raise SourceError(
                Code.OFFSET_AHEAD,
                "the checkpoint has passed this ledger, which is not closed: it is another "
                "stream's, or a backup was restored",
                ledger_id=metadata.ledger_id,
            )
    planned = [
        _planned(records[span.ledger], span, ends.get(span.ledger) or known.get(span.ledger))
        for span in sequence.ranges(start, end, ends)
        if span.ledger in records
    ]
    return partitions_of(planned, options, client.bookies(), keep_order=True)


async def _record(
    client: LedgerClient, options: SourceOptions, passwords: Passwords, ledger_id: int
) -> LedgerMetadata | None:
    try:
        metadata = await client.metadata(ledger_id)
    except LedgerGoneError:
        if options.fail_on_data_loss:
            raise SourceError(
                Code.LEDGER_GONE,
                "the ledger was deleted before its entries were read: failOnDataLoss=false goes on "
                "without them",
                ledger_id=ledger_id,
            ) from None
        return None
    check_password(metadata.ledger_id, metadata.password, passwords.of(ledger_id))
    return replace(metadata, password=None)


def _planned(metadata: LedgerMetadata, span: Range, end: LedgerEnd | None) -> PlannedRange:
    last = span.last
    if metadata.last_entry_id is not None and last > metadata.last_entry_id:
        raise SourceError(
            Code.OFFSET_AHEAD,
            f"the batch ends behind the end of the ledger, whose last entry is "
            f"{metadata.last_entry_id}: the checkpoint is another stream's, or a backup was "
            "restored",
            ledger_id=metadata.ledger_id,
            entry_id=last,
        )
    entry_bytes = 0.0 if end is None else end.entry_bytes
    return PlannedRange(trimmed(metadata, span.first, last), span.first, last, entry_bytes)
