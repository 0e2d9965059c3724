"""Planning on the driver: which entries there are, and who reads which of them.

The plan is a snapshot: ledgers as they were when their records were read, closed ones to their
end, open ones as `openLedgers` says. Nothing is fenced and nothing recovered. Everything a task
needs travels in its partition, so that a thousand tasks ask the metadata store nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import trio

from ledger_client import LedgerClient, MetadataUnavailableError
from ledger_client.arrow import entry_bytes_of
from ledger_client.environment import check_password
from ledger_client.records import read_records
from ledger_client.security import read_security
from metadata.model import Fragment, LedgerMetadata
from spark import credentials
from spark.core.selection import ByCustom, Committed, Listed, Selection
from spark.credentials import Passwords
from spark.errors import Code, SourceError, coding
from spark.options import FAIL, LEDGERS, SKIP, SourceOptions
from spark.parallel import map_parallel
from spark.partitions import (
    LedgerPartition,
    PlannedRange,
    ledger_partitions,
    partitions_of,
    trimmed,
)
from wire.entry import Entries
from wire.types import BookieId

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Ledgers in one plan. Each takes some hundred bytes here until its partition is on its way.
LEDGERS_MAX: Final = 1_000_000
#: Records that are asked for at a time, and how often that is under way.
_PART_LEDGERS: Final = 100
_PARTS: Final = 2
#: Warnings about single ledgers, before they are only counted.
_WARNINGS_MAX: Final = 20


def plan_batch(options: SourceOptions, *, with_custom: bool = False) -> list[LedgerPartition]:
    """The partitions of one batch read; `with_custom` keeps custom metadata for the tasks."""
    with coding():
        passwords = credentials.resolve(options.credentials)
        return trio.run(partial(_plan, options, passwords, with_custom=with_custom))


async def _plan(
    options: SourceOptions, passwords: Passwords, *, with_custom: bool
) -> list[LedgerPartition]:
    async def attempt() -> list[LedgerPartition]:
        security = read_security(options.client_conf)
        async with LedgerClient(options.metadata_service_uri, **security) as client:
            found = Resolver(client, options, passwords, with_custom=with_custom)
            if options.table == LEDGERS:
                return ledger_partitions(await found.records())
            return partitions_of(await found.ranges(), options, client.bookies())

    return await _patiently(attempt, options.retry_rounds)


async def _patiently(attempt: Callable[[], Awaitable[T]], rounds: int) -> T:
    """Begin again while the metadata store is away, a bounded number of times."""
    for failures in range(rounds):
        try:
            return await attempt()
        except MetadataUnavailableError as error:
            _log.warning("planning begins again: %s", error)
            await trio.sleep(min(5.0, 0.5 * 2**failures))
    return await attempt()


class Resolver:
    """From a selection to ranges of entries, as they are at this moment."""

    def __init__(
        self,
        client: LedgerClient,
        options: SourceOptions,
        passwords: Passwords,
        *,
        with_custom: bool = False,
    ) -> None:
        self._client = client
        self._options = options
        self._passwords = passwords
        self._with_custom = with_custom
        self._ensembles: dict[tuple[BookieId, ...], tuple[BookieId, ...]] = {}
        self._warnings = 0

    async def ranges(self) -> list[PlannedRange]:
        """What there is to read, in order, clipped by the positions of the options."""
        ids = self._clipped(await self._ids())
        found = await map_parallel(self._some_ranges, _parts(ids), parallel=_PARTS)
        return [planned for part in found for planned in part if planned is not None]

    async def records(self) -> list[LedgerMetadata]:
        """The records of the selected ledgers, in order; open ones are never left out."""
        job = partial(self._some_records, with_custom=True)
        found = await map_parallel(job, _parts(await self._ids()), parallel=_PARTS)
        return [metadata for part in found for metadata in part]

    # ------------------------------------------------------------------ ids

    async def _ids(self) -> list[int]:
        selection = self._options.selection
        if isinstance(selection, Committed):
            options = self._options
            return await _committed(options.metadata_service_uri, options.client_conf, selection)
        if isinstance(selection, Listed) and not selection.needs_listing:
            return list(selection.pick(()))
        present: list[int] = []
        async for ledger_id in self._client.list():
            if not isinstance(selection, Listed) or selection.takes(ledger_id):
                present.append(ledger_id)
                if len(present) > LEDGERS_MAX:
                    raise SourceError(
                        Code.PLAN_TOO_LARGE,
                        f"more than {LEDGERS_MAX} ledgers are meant by {selection}: read them in "
                        "several ranges",
                    )
        return list(selection.pick(present)) if isinstance(selection, Listed) else present

    def _clipped(self, ids: list[int]) -> list[int]:
        """Only the ledgers between the two positions, in the order of the selection."""
        start, end = self._options.starting_position, self._options.ending_position
        first, last = 0, len(ids)
        if start is not None:
            first = self._place(ids, start.ledger_id, "startingPosition")
        if end is not None:
            last = self._place(ids, end.ledger_id, "endingPosition") + 1
        return ids[first:last]

    def _place(self, ids: list[int], ledger_id: int, name: str) -> int:
        try:
            return ids.index(ledger_id)
        except ValueError:
            raise SourceError(
                Code.BAD_OPTION,
                f"{name} is in ledger {ledger_id}, which is not among those of "
                f"{self._options.selection}",
            ) from None

    # ------------------------------------------------------------------ some ledgers

    async def _some_records(
        self, ledger_ids: Sequence[int], *, with_custom: bool
    ) -> list[LedgerMetadata]:
        found = await read_records(self._client, ledger_ids)
        taken = (
            self._taken(ledger_id, metadata, with_custom=with_custom)
            for ledger_id, metadata in zip(ledger_ids, found, strict=True)
        )
        return [metadata for metadata in taken if metadata is not None]

    async def _some_ranges(self, ledger_ids: Sequence[int]) -> list[PlannedRange | None]:
        found = await self._some_records(ledger_ids, with_custom=self._with_custom)
        growing = [metadata for metadata in found if metadata.last_entry_id is None]
        ends = await map_parallel(self._open_end, growing)
        open_ends = {m.ledger_id: end for m, end in zip(growing, ends, strict=True)}
        return [self._range(metadata, open_ends.get(metadata.ledger_id)) for metadata in found]

    # ------------------------------------------------------------------ one ledger

    def _taken(
        self, ledger_id: int, metadata: LedgerMetadata | None, *, with_custom: bool
    ) -> LedgerMetadata | None:
        """None if the ledger is not meant, or is gone and may be."""
        selection = self._options.selection
        if metadata is None:
            if not _is_named(selection, ledger_id):
                return None  # deleted between the listing and now
            if self._options.fail_on_data_loss:
                raise SourceError(
                    Code.LEDGER_NOT_FOUND,
                    "there is no such ledger: it was deleted, or the id is wrong; "
                    "failOnDataLoss=false passes it over",
                    ledger_id=ledger_id,
                )
            self._warn("%s ledger=%d: passed over", Code.LEDGER_NOT_FOUND, ledger_id)
            return None
        if isinstance(selection, ByCustom) and not selection.takes(metadata):
            return None
        check_password(metadata.ledger_id, metadata.password, self._passwords.of(ledger_id))
        custom = metadata.custom if with_custom else ()
        fragments = tuple(map(self._shared, metadata.fragments))
        return replace(metadata, password=None, custom=custom, fragments=fragments)

    def _shared(self, fragment: Fragment) -> Fragment:
        """The same with an ensemble of which there is one object: a cluster has few."""
        ensemble = self._ensembles.setdefault(fragment.ensemble, fragment.ensemble)
        return Fragment(fragment.first_entry_id, ensemble)

    def _range(
        self, metadata: LedgerMetadata, open_end: tuple[int, float] | None
    ) -> PlannedRange | None:
        ledger_id, last = metadata.ledger_id, metadata.last_entry_id
        entry_bytes = entry_bytes_of(metadata)
        if last is None:
            if open_end is None:
                return None
            last, entry_bytes = open_end
        first = 0
        start, end = self._options.starting_position, self._options.ending_position
        if start is not None and start.ledger_id == ledger_id:
            first = start.entry_id
        if end is not None and end.ledger_id == ledger_id:
            last = min(last, end.entry_id - 1)
        if first > last:
            return None
        return PlannedRange(trimmed(metadata, first, last), first, last, entry_bytes)

    async def _open_end(self, metadata: LedgerMetadata) -> tuple[int, float] | None:
        """The LAC of a ledger that is not closed, and the average size of its entries."""
        ledger_id, how = metadata.ledger_id, self._options.open_ledgers
        if how == FAIL:
            raise SourceError(
                Code.LEDGER_OPEN,
                f"the ledger is {metadata.state.name} and its end is not settled: close it, or "
                "set openLedgers to skip or toLac",
                ledger_id=ledger_id,
            )
        if how == SKIP:
            self._warn(
                "%s ledger=%d: passed over; openLedgers says so", Code.LEDGER_OPEN, ledger_id
            )
            return None
        reader = await self._client.open_no_recovery(
            ledger_id, password=self._passwords.of(ledger_id), digest_type=metadata.digest_type
        )
        last = reader.last_confirmed
        if last < 0:
            return last, 0.0
        # Its own header says how long the ledger is up to it.
        (part,) = await reader.read(last, last).next_parts()
        assert isinstance(part.data, Entries)
        return last, max(1.0, part.data.lengths[0] / (last + 1))

    def _warn(self, message: str, *arguments: object) -> None:
        self._warnings += 1
        if self._warnings <= _WARNINGS_MAX:
            _log.warning(message, *arguments)
        elif self._warnings == _WARNINGS_MAX + 1:
            _log.warning("further ledgers are passed over without a word")


def _parts(ids: list[int]) -> list[list[int]]:
    return [ids[i : i + _PART_LEDGERS] for i in range(0, len(ids), _PART_LEDGERS)]


def _is_named(selection: Selection, ledger_id: int) -> bool:
    """Whether the caller named this very ledger, so that its absence is news."""
    if isinstance(selection, Listed):
        return selection.names(ledger_id)
    return isinstance(selection, Committed)


async def _committed(uri: str, client_conf: str | None, selection: Committed) -> list[int]:
    from spark.commits import open_commits
    from spark.core.commits import Identity

    async with open_commits(uri, client_conf) as commits:
        return await commits.ledger_ids(Identity.parse(selection.identity))
