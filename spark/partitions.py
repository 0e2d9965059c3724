"""Partitions: ranges of entries cut and packed, each with everything its task needs to know.

A partition carries the records of its ledgers, without passwords, and the addresses of their
bookies. The same ranges give the same partitions, whenever and wherever they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark.sql.datasource import InputPartition

from ledger_client import Bookies
from ledger_client.core.distribution import Distribution
from ledger_client.core.topology import show_location
from ledger_client.topology import parse_table
from metadata.model import LedgerMetadata
from metadata.service_info import BookieServiceInfo
from spark.core.plan import Extent, Piece, aim, replica_slot, split, spread
from spark.errors import Code, SourceError
from spark.options import SourceOptions
from wire.types import BookieId

#: Rows of table=ledgers in one partition.
_LEDGERS_PER_PARTITION: Final = 2_000


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Entries `first..last` of a ledger; its record without the password."""

    metadata: LedgerMetadata
    first: int
    last: int
    entry_bytes: float  # on average; 0: not known

    @property
    def bytes(self) -> int:
        return int((self.last - self.first + 1) * self.entry_bytes)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What one task reads, and where it finds it."""

    ranges: tuple[PlannedRange, ...] = ()
    #: For table=ledgers: records with the last entry that may be read, -1 for none.
    ledgers: tuple[LedgerMetadata, ...] = ()
    writable: frozenset[BookieId] = frozenset()
    read_only: frozenset[BookieId] = frozenset()
    info: Mapping[BookieId, BookieServiceInfo] = field(default_factory=dict)
    #: Racks of these bookies and of the executors, where a topology table was given.
    racks: Mapping[str, str] = field(default_factory=dict)

    @property
    def bookies(self) -> Bookies:
        return Bookies(self.writable, self.read_only, self.info)


class LedgerPartition(InputPartition):
    """A partition as Spark ships it; `value` is its plan."""

    value: PartitionPlan


def trimmed(metadata: LedgerMetadata, first: int, last: int) -> LedgerMetadata:
    """The record with only those fragments that hold some of `first..last`."""
    fragments = metadata.fragments
    if len(fragments) == 1:
        return metadata
    starts = [fragment.first_entry_id for fragment in fragments[1:]] + [last + 1]
    kept = tuple(
        fragment
        for fragment, following in zip(fragments, starts, strict=True)
        if fragment.first_entry_id <= last and following > first
    )
    return replace(metadata, fragments=kept)


def partitions_of(
    ranges: Sequence[PlannedRange],
    options: SourceOptions,
    bookies: Bookies,
    *,
    keep_order: bool = False,
) -> list[LedgerPartition]:
    """Cut and pack these ranges. `keep_order` leaves partitions in the order of the entries."""
    extents = [_extent(planned) for planned in ranges]
    wanted = aim(
        extents,
        target=options.target_partition_bytes,
        open_cost=options.open_cost_bytes,
        parallelism=options.parallelism,
        min_partitions=options.min_partitions,
    )
    found: list[LedgerPartition] = []
    homes: list[BookieId] = []
    racks = _racks(options.topology_table)
    for pieces in split(extents, wanted):
        if len(found) == options.max_partitions:
            raise _too_large(extents, options)
        cut = tuple(_cut(ranges[piece.index], piece) for piece in pieces)
        found.append(LedgerPartition(_plan_of(cut, bookies, racks)))
        homes.append(_home(cut[0]))
    return found if keep_order else spread(found, homes)


def _extent(planned: PlannedRange) -> Extent:
    metadata = planned.metadata
    striped = Distribution.of(metadata).is_striped
    return Extent(
        ledger_id=metadata.ledger_id,
        first=planned.first,
        last=planned.last,
        bytes=planned.bytes,
        ensemble_size=metadata.ensemble_size if striped else 1,
        fragment_starts=tuple(fragment.first_entry_id for fragment in metadata.fragments[1:]),
    )


def _cut(planned: PlannedRange, piece: Piece) -> PlannedRange:
    if (piece.first, piece.last) == (planned.first, planned.last):
        return planned
    metadata = trimmed(planned.metadata, piece.first, piece.last)
    return replace(planned, metadata=metadata, first=piece.first, last=piece.last)


def _plan_of(
    ranges: tuple[PlannedRange, ...], bookies: Bookies, racks: Mapping[str, str]
) -> PartitionPlan:
    wanted = {name for planned in ranges for name in planned.metadata.bookies()}
    return PartitionPlan(
        ranges=ranges,
        writable=bookies.writable & wanted,
        read_only=bookies.read_only & wanted,
        info={name: bookies.info[name] for name in sorted(wanted) if name in bookies.info},
        racks=racks,
    )


def _home(planned: PlannedRange) -> BookieId:
    """The bookie that the task will ask first."""
    metadata = planned.metadata
    slot = first_slot(planned)
    ensemble = metadata.fragment_of(planned.first).ensemble
    if Distribution.of(metadata).is_striped:
        slot = Distribution.of(metadata).write_set(planned.first)[0]
    return ensemble[slot]


def first_slot(planned: PlannedRange) -> int:
    metadata = planned.metadata
    return replica_slot(metadata.ledger_id, planned.first, metadata.ensemble_size)


def _too_large(extents: Iterable[Extent], options: SourceOptions) -> SourceError:
    total = sum(extent.bytes + options.open_cost_bytes for extent in extents)
    fitting = -(-total // options.max_partitions) * 3 // 2
    return SourceError(
        Code.PLAN_TOO_LARGE,
        f"partitions of {options.target_partition_bytes} bytes would be more than maxPartitions="
        f"{options.max_partitions}: set targetPartitionBytes to {fitting} or more, or read less",
    )


def _racks(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            Code.BAD_OPTION, f"the topology table {path} cannot be read: {error}"
        ) from None
    return {host: show_location(place) for host, place in parse_table(text, path).items()}


def ledger_partitions(records: Sequence[LedgerMetadata]) -> list[LedgerPartition]:
    """Partitions of table=ledgers: their rows are in the plan itself."""
    step = _LEDGERS_PER_PARTITION
    return [
        LedgerPartition(PartitionPlan(ledgers=tuple(records[i : i + step])))
        for i in range(0, len(records), step)
    ]
