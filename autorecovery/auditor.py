"""The auditor: a candidate for the office, and what it does during a term.

The election is Apache's, and so is all that others can see of the work: marks, the delay, the times
of checks. An auditor only ever adds marks, so two of them for a moment, one of which does not know
yet that its session is over, do no harm. When the session or the vote is lost the term is cancelled
where it stands, and the candidate stands again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Final

import trio

from autorecovery.auditor_recoveries import RecoveryFinisher
from autorecovery.checks import Checks, CheckSummary, FullCheck
from autorecovery.checks_lists import ReplicasCheck
from autorecovery.checks_placement import PlacementCheck
from autorecovery.context import RecoveryContext
from autorecovery.core.audit import LossWatch, missing_bookies
from autorecovery.core.audit_schedule import seconds_until
from autorecovery.core.forecast import Progress
from autorecovery.forecast import drop_outdated_verdicts, look
from autorecovery.statistics import AuditorStatistics, timed
from metadata.election import Election
from metadata.model import InvalidMetadataError
from metadata.rereplication_settings import Delay, PeriodicCheck
from metadata.update import VersionedLedger
from runtime import logs
from runtime.metrics import Summary
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_log = logs.get("autorecovery.auditor")

#: After a failed audit or check, growing with each failure in a row.
_RETRY_SECONDS: Final = 5.0
_RETRY_SECONDS_MAX: Final = 300.0
#: The time of the last check is looked at this often: an operator may have set it back.
_SCHEDULE_SECONDS: Final = 600.0
#: Between two looks at the marks, and how many times as long as a look takes.
_LOOK_SECONDS: Final = 30.0
_LOOK_SHARE: Final = 10.0
#: So long a check waits for copies to be restored, and so often it looks.
_RESTORING_SECONDS_MAX: Final = 3600.0
_RESTORING_LOOK_SECONDS: Final = 5.0


class Auditor:
    """`run` it until cancelled."""

    def __init__(
        self, context: RecoveryContext, statistics: AuditorStatistics | None = None
    ) -> None:
        self._context = context
        self.statistics = statistics or AuditorStatistics(context.registry)
        self._election = Election(
            context.store, context.cluster.root, context.bookie_id, chance=context.client.chance
        )

    @property
    def is_elected(self) -> bool:
        return self._election.is_elected

    async def run(self) -> None:
        await self._election.run(self._audit_in_office)

    async def _audit_in_office(self) -> None:
        context, counts = self._context, self.statistics.counts
        await context.marks.open()
        settings = context.settings.auditor
        delay = await context.marks.settings.ensure_delay(settings.lost_bookie_delay_seconds)
        known = await context.cookies.bookies()
        losses = LossWatch(known=known, delay_seconds=delay.seconds)
        losses.counts = counts.losses
        term = Term(context, self.statistics, losses, delay)
        counts.is_auditor = True
        try:
            await term.run()
        finally:
            counts.is_auditor = False


class Term:
    """What one auditor does from its election to the end of its office."""

    def __init__(
        self,
        context: RecoveryContext,
        statistics: AuditorStatistics,
        losses: LossWatch,
        delay: Delay,
    ) -> None:
        self._context = context
        self._statistics = statistics
        self._losses = losses
        self._delay = delay
        self._changed = trio.Event()
        self._audited = trio.Event()  # once at least in this term
        self._is_ordered = False
        self._recoveries = RecoveryFinisher(context, statistics.counts)
        self._audit_checks = Checks(context, statistics, on_ledger=self._on_ledger)
        self._checks = Checks(
            context,
            statistics,
            on_ledger=self._on_ledger,
            hold=self._hold,
            awaited=self._awaited,
        )

    async def run(self) -> None:
        bookies = self._context.watcher.bookies
        self._losses.on_bookies(bookies.all, trio.current_time())
        settings, statistics = self._context.settings.auditor, self._statistics
        tasks: list[Callable[[], Awaitable[None]]] = [
            self._follow_bookies,
            self._follow_delay,
            self._audit_forever,
            self._recoveries.run,
            self._look_forever,
        ]
        for kind, interval, check, timer in (
            (
                PeriodicCheck.ALL_LEDGERS,
                settings.ledger_check_seconds,
                FullCheck(self._checks).run,
                statistics.ledger_check_time,
            ),
            (
                PeriodicCheck.PLACEMENT_POLICY,
                settings.placement_check_seconds,
                PlacementCheck(self._checks).run,
                statistics.placement_check_time,
            ),
            (
                PeriodicCheck.REPLICAS,
                settings.replicas_check_seconds,
                ReplicasCheck(self._checks).run,
                statistics.replicas_check_time,
            ),
        ):
            if interval > 0:
                tasks.append(partial(self._check_forever, kind, interval, check, timer))
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(self._keep_going, task)

    async def _keep_going(self, task: Callable[[], Awaitable[None]]) -> None:
        """What goes wrong is said and tried again; nothing but the end of the office ends it."""
        failures = 0
        while True:
            started = trio.current_time()
            try:
                await task()
                return
            except LedgerError as error:
                if trio.current_time() - started > _RETRY_SECONDS_MAX:
                    failures = 0
                failures += 1
                pause = min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2 ** min(failures - 1, 10))
                _log.warning("trying again later", seconds=pause, error=error)
                await trio.sleep(pause)

    # ------------------------------------------------------------------ what happens

    async def _follow_bookies(self) -> None:
        watcher = self._context.watcher
        seen = watcher.bookies
        while True:
            self._losses.on_bookies(seen.all, trio.current_time())
            self._ring()
            seen = await watcher.wait_changed(seen)

    async def _follow_delay(self) -> None:
        settings = self._context.marks.settings
        while True:
            written = await settings.wait_delay_written(self._delay)
            if written.asks_for_audit(self._delay):
                _log.info("an audit was ordered")
                self._is_ordered = True
            self._delay = written
            self._losses.on_delay(written.seconds, trio.current_time())
            self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _hold(self) -> None:
        """Until no audit is put off. Checks would find the same loss, and not wait for it."""
        is_first = True
        while self._losses.is_waiting(trio.current_time()):
            if is_first:
                self._statistics.counts.checks_skipped += 1
                is_first = False
            with trio.move_on_at(self._losses.due or inf):
                await self._changed.wait()

    def _awaited(self) -> frozenset[BookieId]:
        is_waiting = self._losses.is_waiting(trio.current_time())
        return self._losses.lost if is_waiting else frozenset()

    # ------------------------------------------------------------------ audits

    async def _audit_forever(self) -> None:
        """One audit after another. The first comes at once: bookies may have died unwatched."""
        interval = self._context.settings.auditor.bookie_check_seconds
        next_check = trio.current_time()
        while True:
            await self._wait_due(next_check)
            await self._context.marks.settings.wait_enabled()
            self._is_ordered = False
            await self._audit()
            self._audited.set()
            next_check = trio.current_time() + interval if interval else inf

    async def _wait_due(self, next_check: float) -> None:
        while True:
            now = trio.current_time()
            due = self._losses.due
            if self._is_ordered or (due is not None and due <= now):
                return
            if due is None and next_check <= now:
                return
            with trio.move_on_at(next_check if due is None else due):
                await self._changed.wait()

    async def _audit(self) -> None:
        """Mark every ledger that names a bookie which is not there."""
        absences = self._losses.begin_audit()
        if absences.since:
            _log.warning("bookies are lost", bookies=",".join(sorted(absences.since)))
        statistics = self._statistics
        start = trio.current_time()
        sizes, is_blind = 0, False
        found: dict[LedgerId, tuple[VersionedLedger, tuple[BookieId, ...]]] = {}

        async def check(ledger: VersionedLedger, summary: CheckSummary) -> None:
            nonlocal sizes, is_blind
            # As of now, not as of the start: whoever came back meanwhile has its copies.
            alive = self._context.client.bookies().all
            if not alive:
                is_blind = True
                return
            missing = missing_bookies(ledger.metadata, alive)
            if missing:
                sizes += ledger.metadata.length
                found[ledger.metadata.ledger_id] = ledger, tuple(missing)

        async def mark(summary: CheckSummary) -> None:
            await self._audit_checks.mark_all(found, summary)
            found.clear()

        with timed(statistics.audit_time), timed(statistics.scan_time):
            summary = await self._audit_checks.walk(check, at_once=1, finish=mark)
        if is_blind:
            _log.warning("no bookie is registered: the audit says nothing about them")
        else:
            self._losses.on_audited(absences, trio.current_time())
        if absences.since:
            statistics.publish_time.success.record((trio.current_time() - start) * 1000)
        if summary.marked:
            statistics.marked.success.record(summary.marked)
            statistics.marked_bytes.success.record(sizes)
        _log.info(
            "audited",
            ledgers=summary.ledgers,
            marked=summary.marked,
            unreadable=summary.unreadable,
        )

    async def _on_ledger(self, ledger: VersionedLedger) -> None:
        await self._recoveries.on_ledger(ledger)

    # ------------------------------------------------------------------ checks

    async def _check_forever(
        self,
        kind: PeriodicCheck,
        interval: float,
        check: Callable[[], Awaitable[CheckSummary]],
        timer: Summary,
    ) -> None:
        settings = self._context.marks.settings
        while True:
            try:
                last_ms = await settings.last_check_ms(kind)
            except InvalidMetadataError as error:
                _log.warning("taking the check for never made", check=kind.value, error=error)
                last_ms = None
            wait = seconds_until(interval, last_ms, self._context.now_ms())
            assert wait is not None
            if wait > 0:
                await trio.sleep(min(wait, _SCHEDULE_SECONDS))
                continue
            await self._wait_restored()
            with timed(timer):
                summary = await check()
            # A ledger that could not be judged does not make the check undone: it would begin
            # again at once, for ever, and the others would be read again and again.
            await settings.set_last_check_ms(kind, self._context.now_ms())
            _log.info(
                "checked",
                check=kind.value,
                ledgers=summary.ledgers,
                marked=summary.marked,
                unreadable=summary.unreadable,
                failed=summary.failed,
                undecided=summary.undecided,
            )

    async def _wait_restored(self) -> None:
        """What is known to be missing comes first: a check reads the same disks.

        Not for ever: marks may stay because nobody works, and a check must be made all the same.
        """
        await self._hold()
        with trio.move_on_after(_RESTORING_SECONDS_MAX):
            await self._audited.wait()
            while True:
                marked = set(await self._context.marks.marked())
                async for ledger_id in self._context.parking.ledgers():
                    marked.discard(ledger_id)
                if not marked:
                    return
                await trio.sleep(_RESTORING_LOOK_SECONDS)

    # ------------------------------------------------------------------ what is left

    async def _look_forever(self) -> None:
        progress = Progress()
        counts = self._statistics.counts
        while True:
            start = trio.current_time()
            overview = await look(self._context, progress)
            counts.forecast, counts.overdue = overview.forecast, overview.overdue
            await drop_outdated_verdicts(self._context)
            took = trio.current_time() - start
            await trio.sleep(max(_LOOK_SECONDS, took * _LOOK_SHARE))
