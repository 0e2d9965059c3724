"""The tables of `quire sql`: what columns they have, and where their rows come from.

Rows are read when a query names their table, a thousand ledgers at a time, so that memory stays
bounded however many there are. Each table shows the moment it was read: there is no snapshot over
several of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from autorecovery.core.forecast import shortage_of
from autorecovery.ledger_scan import LedgerScan
from autorecovery.parking import Parking
from metadata.cluster import Cluster
from metadata.cookies import Cookies
from metadata.discovery import read_bookies
from metadata.election import current_auditor
from metadata.ledgers import Ledgers
from metadata.model import InvalidMetadataError, LedgerMetadata
from metadata.rereplication_settings import PeriodicCheck
from metadata.store import MetadataStore
from metadata.underreplication import UnderReplication
from metadata.update import LedgerGoneError
from quire.access import Target
from quire.shell_cluster import spaces_of
from wire.types import BookieId, LedgerId

Row = Sequence[object]
#: Rows in memory at a time, apart from the ledgers they are made of.
_ROWS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where rows come from."""

    target: Target
    store: MetadataStore
    cluster: Cluster

    @property
    def ledgers(self) -> Ledgers:
        return Ledgers(self.store, self.cluster.root, self.cluster.layout, chance=random.Random())

    @property
    def marks(self) -> UnderReplication:
        return UnderReplication(
            self.store, self.cluster.root, owner="quire sql", chance=random.Random(), now_ms=_now_ms
        )

    @property
    def parking(self) -> Parking:
        return Parking(self.store, self.cluster.root, chance=random.Random(), now_ms=_now_ms)


#: Takes rows of the table with this name.
Insert = Callable[[str, Iterable[Row]], None]
Fill = Callable[[Source, Insert, frozenset[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    shows: str
    columns: tuple[str, ...]
    fill: Fill

    @property
    def creation(self) -> str:
        return f"create table {self.name} ({', '.join(self.columns)})"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# ---------------------------------------------------------------------- bookies


async def _fill_bookies(source: Source, insert: Insert, wanted: frozenset[str]) -> None:
    registered = await read_bookies(source.store, source.cluster.root)
    known = await Cookies(source.store, source.cluster.root).bookies()

    def rows() -> Iterable[Row]:
        for bookie_id in sorted({*known, *registered.all}):
            state = "absent"
            if bookie_id in registered.all:
                state = "writable" if bookie_id in registered.writable else "read-only"
            info = registered.info.get(bookie_id)
            rpc = info.rpc if info is not None else None
            host, port = (rpc.host, rpc.port) if rpc is not None else (None, None)
            yield bookie_id, state, host, port, bookie_id in known

    insert("bookies", rows())


async def _fill_space(source: Source, insert: Insert, wanted: frozenset[str]) -> None:
    spaces = await spaces_of(source.target)
    insert("space", ((s.bookie_id, s.free_bytes, s.total_bytes) for s in spaces))


async def _fill_cookies(source: Source, insert: Insert, wanted: frozenset[str]) -> None:
    cookies = Cookies(source.store, source.cluster.root)
    for bookie_id in await cookies.bookies():
        stored = await cookies.find(bookie_id)
        if stored is None:
            continue
        cookie = stored.cookie
        ledger_dirs, journal_dirs = ",".join(cookie.ledger_paths), cookie.journal_dirs
        insert("cookies", [(bookie_id, journal_dirs, ledger_dirs, cookie.instance_id)])


# ---------------------------------------------------------------------- ledgers


async def _fill_ledgers(source: Source, insert: Insert, wanted: frozenset[str]) -> None:
    """One walk over all ledgers, for all tables that are made of their records."""
    makers = {name: make for name, make in _OF_RECORDS.items() if name in wanted}
    scan = LedgerScan(source.ledgers, chance=random.Random())
    async with aclosing(scan.chunks()) as chunks:
        async for chunk in chunks:
            for name, make in makers.items():
                insert(name, (row for found in chunk.ledgers for row in make(found.metadata)))
            if "ledgers" in wanted:
                blank = [None] * 11
                insert("ledgers", ((i, *blank, str(error)) for i, error in chunk.unreadable))


def _ledger(metadata: LedgerMetadata) -> Iterable[Row]:
    is_closed = metadata.is_closed
    yield (
        metadata.ledger_id,
        metadata.state.name,
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.digest_type.name if metadata.digest_type is not None else None,
        metadata.last_entry_id,
        metadata.last_entry_id + 1 if metadata.last_entry_id is not None else None,
        metadata.length if is_closed else None,
        metadata.ctime_ms,
        len(metadata.fragments),
        metadata.format_version,
        None,
    )


def _fragments(metadata: LedgerMetadata) -> Iterable[Row]:
    for number, found in enumerate(metadata.ranges()):
        fragment = found.fragment
        yield (
            metadata.ledger_id,
            number,
            fragment.first_entry_id,
            found.last_entry_id,
            ",".join(fragment.ensemble),
        )


def _copies(metadata: LedgerMetadata) -> Iterable[Row]:
    for found in metadata.ranges():
        for slot, bookie_id in enumerate(found.fragment.ensemble):
            first, last = found.fragment.first_entry_id, found.last_entry_id
            yield metadata.ledger_id, first, last, slot, bookie_id


def _custom(metadata: LedgerMetadata) -> Iterable[Row]:
    for key, value in metadata.custom:
        try:
            yield metadata.ledger_id, key, value.decode()
        except UnicodeDecodeError:
            yield metadata.ledger_id, key, value


_OF_RECORDS: Final[dict[str, Callable[[LedgerMetadata], Iterable[Row]]]] = {
    "ledgers": _ledger,
    "fragments": _fragments,
    "copies": _copies,
    "custom_metadata": _custom,
}


# ---------------------------------------------------------------------- re-replication


async def _fill_marks(source: Source, insert: Insert, wanted: frozenset[str]) -> None:
    missing: list[Row] = []
    tasks: list[Row] = []
    alive = (await read_bookies(source.store, source.cluster.root)).all
    async for ledger_id, names, row in _marks(source, alive, "recovery_tasks" in wanted):
        missing += [(ledger_id, name) for name in names]
        tasks.append(row)
        if len(tasks) >= _ROWS or len(missing) >= _ROWS:
            _insert_marks(insert, wanted, missing, tasks)
    _insert_marks(insert, wanted, missing, tasks)


def _insert_marks(
    insert: Insert, wanted: frozenset[str], missing: list[Row], tasks: list[Row]
) -> None:
    if "under_replicated" in wanted:
        insert("under_replicated", missing)
    if "recovery_tasks" in wanted:
        insert("recovery_tasks", tasks)
    missing.clear()
    tasks.clear()


async def _marks(
    source: Source, alive: frozenset[BookieId], detailed: bool
) -> AsyncIterator[tuple[LedgerId, tuple[BookieId, ...], Row]]:
    marks, parking, ledgers = source.marks, source.parking, source.ledgers
    for ledger_id in await marks.marked():
        mark = await marks.read_mark(ledger_id)
        if mark is None:
            continue
        names = mark.content.replicas
        if not detailed:
            yield ledger_id, names, ()
            continue
        holder = await marks.holder(ledger_id)
        parked = await parking.read(ledger_id)
        state = "running" if holder else "waiting"
        if parked is not None and not parked.is_accepted and not holder:
            state = "stuck"
        verdict = parked.verdict.text if parked is not None else None
        lacking: Row = (None, None)
        try:
            metadata = (await ledgers.read(ledger_id)).metadata
        except (LedgerGoneError, InvalidMetadataError):
            pass
        else:
            shortage = shortage_of(metadata, metadata.bookies() - alive | frozenset(names))
            lacking = (shortage.fragments, shortage.bytes)
        yield ledger_id, names, (
            ledger_id, state, holder, mark.content.ctime_ms, *lacking, verdict
        )  # fmt: skip


async def _fill_settings(source: Source, insert: Insert, wanted: frozenset[str]) -> None:
    settings = source.marks.settings
    delay = await settings.delay()
    rows: list[Row] = [
        ("instance_id", source.cluster.instance_id),
        ("root", source.cluster.root),
        ("auditor", await current_auditor(source.store, source.cluster.root)),
        ("rereplication_enabled", await settings.is_enabled()),
        ("lost_bookie_recovery_delay_seconds", None if delay is None else delay.seconds),
    ]
    for check in PeriodicCheck:
        name = f"last_check_of_{check.value.replace(' ', '_')}_ms"
        rows.append((name, await settings.last_check_ms(check)))
    insert("cluster", rows)


# ---------------------------------------------------------------------- all of them

TABLES: Final = (
    Table(
        name="bookies",
        shows="bookies that have a cookie or are registered",
        columns=("bookie_id", "state", "host", "port", "has_cookie"),
        fill=_fill_bookies,
    ),
    Table(
        name="space",
        shows="what registered bookies say about their disks",
        columns=("bookie_id", "free_bytes", "total_bytes"),
        fill=_fill_space,
    ),
    Table(
        name="cookies",
        shows="which directories belong to which bookie",
        columns=("bookie_id", "journal_dirs", "ledger_dirs", "instance_id"),
        fill=_fill_cookies,
    ),
    Table(
        name="ledgers",
        shows="the records of ledgers; error says why one cannot be read",
        columns=(
            *("ledger_id", "state", "ensemble_size", "write_quorum", "ack_quorum", "digest"),
            *("last_entry_id", "entries", "length", "ctime_ms", "fragments", "format_version"),
            "error",
        ),
        fill=_fill_ledgers,
    ),
    Table(
        name="fragments",
        shows="which bookies hold which entries; last_entry_id is null while it grows",
        columns=("ledger_id", "number", "first_entry_id", "last_entry_id", "bookies"),
        fill=_fill_ledgers,
    ),
    Table(
        name="copies",
        shows="the same, one row for each bookie of a fragment",
        columns=("ledger_id", "first_entry_id", "last_entry_id", "slot", "bookie_id"),
        fill=_fill_ledgers,
    ),
    Table(
        name="custom_metadata",
        shows="what applications wrote into the records",
        columns=("ledger_id", "key", "value"),
        fill=_fill_ledgers,
    ),
    Table(
        name="under_replicated",
        shows="ledgers that lack copies, one row for each bookie that lost them",
        columns=("ledger_id", "missing_on"),
        fill=_fill_marks,
    ),
    Table(
        name="recovery_tasks",
        shows="the work on these ledgers: waiting, running, stuck",
        columns=(
            *("ledger_id", "state", "worker", "marked_ms", "fragments", "bytes_left", "verdict"),
        ),
        fill=_fill_marks,
    ),
    Table(
        name="cluster",
        shows="settings of the whole cluster, by name",
        columns=("name", "value"),
        fill=_fill_settings,
    ),
)


async def fill(source: Source, names: frozenset[str], insert: Insert) -> None:
    """Read the rows of these tables; tables of one origin in one go."""
    done: list[Fill] = []
    for table in TABLES:
        if table.name not in names or table.fill in done:
            continue
        done.append(table.fill)
        await table.fill(source, insert, names)
