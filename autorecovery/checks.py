"""The periodic checks: what they have in common, and the full check of every ledger.

A check walks over all ledgers and judges one at a time. Whatever is wrong with one of them is
reported and the walk goes on; only the metadata store being away, or the end of our office, ends
it. While an operator has re-replication disabled a check stands still, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from autorecovery.checks_replica import (
    Replica,
    ReplicaCheck,
    ReplicaFinding,
    ReplicaState,
    replicas_of,
)
from autorecovery.context import RecoveryContext
from autorecovery.core.audit import missing_bookies
from autorecovery.ledger_scan import LedgerScan, Pace, for_each
from autorecovery.statistics import AuditorStatistics
from metadata.store import MetadataError
from metadata.update import LedgerGoneError, VersionedLedger
from runtime import logs
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_log = logs.get("autorecovery.checks")

#: Ledgers whose replicas are read at the same time. Their bytes share one limit.
LEDGERS_AT_ONCE: Final = 8
#: Lines of log about single ledgers, per check. The metrics count the others.
_LINES_MAX: Final = 100
#: Marks that one transaction makes.
_MARKED_AT_ONCE: Final = 100


@dataclass(slots=True)
class CheckSummary:
    """What one walk over the ledgers has found."""

    ledgers: int = 0
    unreadable: int = 0
    failed: int = 0
    marked: int = 0
    undecided: int = 0


class Checks:
    """Walks, marks and counts for every kind of check."""

    def __init__(
        self,
        context: RecoveryContext,
        statistics: AuditorStatistics,
        *,
        on_ledger: Callable[[VersionedLedger], Awaitable[None]] | None = None,
        hold: Callable[[], Awaitable[None]] | None = None,
        awaited: Callable[[], frozenset[BookieId]] = frozenset,
    ) -> None:
        """`on_ledger` sees every ledger that any check meets. `hold` is awaited now and then: it
        returns when checks may go on. `awaited` are bookies that are away and should be back soon:
        nothing is said about their copies."""
        self.context = context
        self.statistics = statistics
        self._on_ledger = on_ledger
        self._hold = hold
        self._awaited = awaited
        self._lines = 0

    def alive(self) -> frozenset[BookieId]:
        """Whoever is registered now, and whoever is waited for."""
        return self.context.client.bookies().all | self._awaited()

    async def walk(
        self,
        check: Callable[[VersionedLedger, CheckSummary], Awaitable[None]],
        *,
        at_once: int = LEDGERS_AT_ONCE,
        finish: Callable[[CheckSummary], Awaitable[None]] | None = None,
    ) -> CheckSummary:
        """Judge every ledger. An error of one is that ledger's; the store's is everybody's.

        `finish` is called after some ledgers each, for what is better done together.
        """
        summary = CheckSummary()
        self._lines = 0

        async def one(ledger: VersionedLedger) -> None:
            summary.ledgers += 1
            try:
                if self._on_ledger is not None:
                    await self._on_ledger(ledger)
                await check(ledger, summary)
            except MetadataError:
                raise
            except LedgerError as error:
                summary.failed += 1
                self.report("a ledger could not be checked", ledger, error=error)

        async with aclosing(self.scan().chunks()) as chunks:
            async for chunk in chunks:
                for ledger_id, error in chunk.unreadable:
                    summary.unreadable += 1
                    _log.warning("passing over a record", ledger=ledger_id, error=error)
                await for_each(chunk.ledgers, one, at_once=at_once)
                if finish is not None:
                    await finish(summary)
        self.statistics.counts.unreadable = summary.unreadable
        return summary

    def scan(self) -> LedgerScan:
        settings = self.context.settings.auditor
        client = self.context.client
        return LedgerScan(
            client.ledgers,
            chance=client.chance,
            at_once=settings.ledgers_at_once,
            per_second=settings.ledgers_per_second,
            pause=self._pause,
        )

    async def _pause(self) -> None:
        if self._hold is not None:
            await self._hold()
        await self.context.marks.settings.wait_enabled()

    async def mark(
        self, ledger: VersionedLedger, missing: Iterable[BookieId], summary: CheckSummary
    ) -> None:
        names = tuple(missing)
        await self.context.marks.mark(ledger.metadata.ledger_id, names)
        summary.marked += 1
        self.report("marked", ledger, missing=",".join(names))

    async def mark_all(
        self,
        found: Mapping[LedgerId, tuple[VersionedLedger, Sequence[BookieId]]],
        summary: CheckSummary,
    ) -> None:
        """Many at once, which are seldom marked already; where one is, each for itself."""
        ids = list(found)
        for start in range(0, len(ids), _MARKED_AT_ONCE):
            part = {each: found[each] for each in ids[start : start + _MARKED_AT_ONCE]}
            missing = {ledger_id: names for ledger_id, (_, names) in part.items()}
            if await self.context.marks.mark_fresh(missing):
                summary.marked += len(part)
                for ledger, names in part.values():
                    self.report("marked", ledger, missing=",".join(names))
                continue

            async def one(pair: tuple[VersionedLedger, Sequence[BookieId]]) -> None:
                await self.mark(pair[0], pair[1], summary)

            await for_each(part.values(), one, at_once=_MARKED_AT_ONCE)

    def report(
        self,
        event: str,
        ledger: VersionedLedger,
        *,
        error: LedgerError | None = None,
        **fields: object,
    ) -> None:
        """A line about one ledger, as long as there are not too many of them."""
        self._lines += 1
        if self._lines <= _LINES_MAX:
            _log.warning(event, ledger=ledger.metadata.ledger_id, error=error, **fields)


class FullCheck:
    """Reads every replica of every settled fragment, verifies digests, and marks what is bad.

    The growing fragment of an open ledger is left alone but for bookies that are gone: entries
    that its writer is sending right now are missing here and there, and a mark would get it
    fenced for nothing.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._counts = checks.statistics.counts
        settings = checks.context.settings.auditor
        self._pace = Pace(settings.check_bytes_per_second)
        self._reader = ReplicaCheck(
            checks.context.client,
            percent=settings.verified_percent,
            spend=self._pace.spend,
            on_read=self._on_read,
        )

    async def run(self) -> CheckSummary:
        return await self._checks.walk(self._check)

    async def _check(self, ledger: VersionedLedger, summary: CheckSummary) -> None:
        metadata = ledger.metadata
        statistics = self._checks.statistics
        statistics.fragments_per_ledger.success.record(len(metadata.fragments))
        statistics.bookies_per_ledger.success.record(len(metadata.bookies()))
        bad = dict.fromkeys(missing_bookies(metadata, self._checks.alive()))
        for found in metadata.ranges():
            if found.last_entry_id is None:
                continue
            replicas = [
                replica for replica in replicas_of(metadata, found) if replica.bookie_id not in bad
            ]
            for finding in await self._read_all(replicas):
                if finding.state is ReplicaState.BAD:
                    bad[finding.replica.bookie_id] = None
                    self._checks.report(
                        "a replica is bad",
                        ledger,
                        bookie=finding.replica.bookie_id,
                        entry=finding.entry_id,
                        answer=finding.outcome,
                    )
                elif finding.state is ReplicaState.UNDECIDED:
                    summary.undecided += 1
                    self._counts.undecided += 1
        self._counts.ledgers_checked += 1
        still_bad = await self._still_named(ledger, bad) if bad else ()
        if still_bad:
            await self._checks.mark(ledger, still_bad, summary)

    async def _still_named(
        self, ledger: VersionedLedger, bad: Iterable[BookieId]
    ) -> tuple[BookieId, ...]:
        """Those that the record names now: it was read a while ago, and may be repaired by now.

        After a loss that is the rule. A mark for what is whole again is work for nothing.
        """
        ledgers, ledger_id = self._checks.context.client.ledgers, ledger.metadata.ledger_id
        await ledgers.store.sync(ledgers.paths.path_of(ledger_id))
        try:
            newest = await ledgers.read(ledger_id)
        except LedgerGoneError:
            return ()
        return tuple(name for name in bad if newest.metadata.mentions(name))

    async def _read_all(self, replicas: list[Replica]) -> list[ReplicaFinding]:
        findings: list[ReplicaFinding] = []

        async def one(replica: Replica) -> None:
            findings.append(await self._reader.check(replica))

        await for_each(replicas, one, at_once=len(replicas) or 1)
        return findings

    def _on_read(self, milliseconds: float, size: int, entries: int) -> None:
        self._counts.entries_read += entries
        statistics = self._checks.statistics
        if entries:
            statistics.read_latency.success.record(milliseconds)
            statistics.bytes_read.success.record(size)
        else:
            statistics.read_latency.failure.record(milliseconds)
