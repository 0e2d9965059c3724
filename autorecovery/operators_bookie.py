"""Taking a bookie out of the cluster: decommission, which waits for workers; and recover, by hand.

Both end with an answer. A ledger whose copies cannot be had any more is named with the reason, and
does not keep the others, or the operator, waiting.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.core.checks import sourceless_runs, stores_entries_on
from autorecovery.core.parking import Reason, Verdict, ranges_text
from autorecovery.gone import judged_by_cookies
from autorecovery.ledger_scan import LedgerScan, for_each
from autorecovery.operators import RefusedError
from autorecovery.replicator import Replicator, Throttle
from autorecovery.worker_repair import Ending, LedgerRepair, Order, access_of
from ledger_client.recovery import LedgerRecovery
from metadata.cookies import NoCookieError
from metadata.model import LedgerMetadata
from metadata.store import ANY_VERSION, MetadataError
from metadata.underreplication import Lock
from metadata.update import LedgerGoneError, VersionedLedger
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_LEDGERS_AT_ONCE: Final = 8
_MARKS_AT_ONCE: Final = 32
#: What a cancelled command spends on giving its locks back; the end of its session does it, too.
_RELEASE_SECONDS: Final = 5.0


@dataclass(slots=True)
class Progress:
    """What a progress bar shows."""

    total: int = 0
    done: int = 0
    stuck: int = 0
    #: Since the last ledger was done.
    idle_seconds: float = 0.0


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class BookieReport:
    """How it ended."""

    bookie_id: BookieId
    ledgers: int = 0  # that named it
    #: Ledgers that still need it, with why; the first of very many.
    stuck: dict[LedgerId, Verdict] = field(default_factory=dict)
    skipped: list[LedgerId] = field(default_factory=list)
    cookie_deleted: bool = False
    bytes: int = 0

    @property
    def is_done(self) -> bool:
        return not self.stuck and not self.skipped


# ---------------------------------------------------------------------- decommission


async def decommission(
    context: RecoveryContext,
    bookie_id: BookieId,
    *,
    delete_cookie: bool = True,
    progress: OnProgress | None = None,
    poll_seconds: float = 2.0,
    patience_seconds: float = 900.0,
) -> BookieReport:
    """Have everything that a stopped bookie held restored elsewhere, then forget the bookie.

    Its ledgers are marked here and restored by the workers of the cluster. The cookie goes only
    if no ledger needs the bookie any more. After `patience_seconds` in which no ledger was done
    the report comes as it is: perhaps no worker runs.
    """
    _refuse_registered(context, bookie_id)
    if not await context.marks.settings.is_enabled():
        raise RefusedError("re-replication is disabled: enable it, or nothing will be restored")
    report = BookieReport(bookie_id)
    shown = Progress()
    while True:
        needed = await _ledgers_on(context, bookie_id, marks=True)
        if not needed:
            break
        report.ledgers = max(report.ledgers, len(needed))
        shown.total = max(shown.total, len(needed))
        report.stuck = await _wait_restored(
            context, bookie_id, needed, shown, progress, poll_seconds, patience_seconds
        )
        if report.stuck:
            return report
        # Once more from the start: a client that did not know better may have used it since.
    report.stuck = {}
    _refuse_registered(context, bookie_id)
    if delete_cookie:
        report.cookie_deleted = await _delete_cookie(context, bookie_id)
    return report


async def _wait_restored(
    context: RecoveryContext,
    bookie_id: BookieId,
    needed: array[int],
    shown: Progress,
    progress: OnProgress | None,
    poll_seconds: float,
    patience_seconds: float,
) -> dict[LedgerId, Verdict]:
    """Until none of these ledgers needs the bookie; the verdicts, if that cannot be."""
    scan = LedgerScan(context.client.ledgers, chance=context.client.chance)
    last_done = trio.current_time()
    while True:
        _refuse_registered(context, bookie_id)
        left, stuck = array("q"), dict[LedgerId, Verdict]()
        for start in range(0, len(needed), _CHUNK):
            chunk = await scan.read(map(LedgerId, needed[start : start + _CHUNK]))
            for ledger in chunk.ledgers:
                if not stores_entries_on(ledger.metadata, bookie_id):
                    continue
                left.append(ledger.metadata.ledger_id)
                verdict = await _verdict(context, ledger.metadata)
                if verdict is not None:
                    stuck[ledger.metadata.ledger_id] = verdict
            for ledger_id, error in chunk.unreadable:
                left.append(ledger_id)
                stuck[ledger_id] = Verdict(reason=Reason.UNREADABLE, detail=str(error))
        now = trio.current_time()
        if len(left) < len(needed):
            last_done = now
        needed = left
        shown.done, shown.stuck = shown.total - len(left), len(stuck)
        shown.idle_seconds = now - last_done
        if progress is not None:
            progress(shown)
        if len(stuck) == len(left):
            return stuck
        if shown.idle_seconds >= patience_seconds:
            return stuck | {
                LedgerId(ledger_id): _nobody(shown.idle_seconds)
                for ledger_id in left
                if LedgerId(ledger_id) not in stuck
            }
        await trio.sleep(poll_seconds)


_CHUNK: Final = 1000


def _nobody(seconds: float) -> Verdict:
    return Verdict(
        reason=Reason.NOBODY,
        detail=f"no ledger was restored for {seconds:.0f} s: see that autorecovery runs somewhere",
    )


async def _verdict(context: RecoveryContext, metadata: LedgerMetadata) -> Verdict | None:
    """Why nobody can restore this ledger: a worker has said so, or its record does."""
    parked = await context.parking.read(metadata.ledger_id)
    if parked is not None:
        return None if parked.is_accepted else parked.verdict
    alive = context.client.bookies().all
    lost = sourceless_runs(metadata, alive)
    if not lost:
        return None
    away = tuple(sorted(metadata.bookies() - alive))
    detail = f"the only copies of entries {ranges_text(lost)} are there"
    verdict = Verdict(reason=Reason.NO_SOURCE, lost=lost, waits_for=away, detail=detail)
    return await judged_by_cookies(context, verdict)


async def _ledgers_on(
    context: RecoveryContext, bookie_id: BookieId, *, marks: bool = False
) -> array[int]:
    """The ledgers with entries on a bookie, ascending: eight bytes each, however many there are.

    With `marks` every ledger that names it is marked, also those without entries there.
    """
    found = array("q")

    async def mark(ledger_id: LedgerId) -> None:
        await context.marks.mark(ledger_id, [bookie_id])

    client = context.client
    scan = LedgerScan(
        client.ledgers, chance=client.chance, at_once=context.settings.auditor.ledgers_at_once
    )
    async with aclosing(scan.chunks()) as chunks:
        async for chunk in chunks:
            naming = [ledger.metadata for ledger in chunk.ledgers]
            naming = [metadata for metadata in naming if metadata.mentions(bookie_id)]
            found.extend(m.ledger_id for m in naming if stores_entries_on(m, bookie_id))
            if marks:
                ids = [metadata.ledger_id for metadata in naming]
                await for_each(ids, mark, at_once=_MARKS_AT_ONCE)
    return found


def _refuse_registered(context: RecoveryContext, bookie_id: BookieId) -> None:
    if bookie_id in context.client.bookies().all:
        raise RefusedError(f"bookie {bookie_id} is running: stop it first")


async def _delete_cookie(context: RecoveryContext, bookie_id: BookieId) -> bool:
    try:
        await context.cookies.delete(bookie_id, version=ANY_VERSION)
    except NoCookieError:
        return False
    return True


# ---------------------------------------------------------------------- by hand


async def recover(
    context: RecoveryContext,
    bookie_id: BookieId,
    *,
    dry_run: bool = False,
    skip_open: bool = False,
    delete_cookie: bool = False,
    ledger_id: LedgerId | None = None,
    target: BookieId | None = None,
    bytes_per_second: int | None = None,
    progress: OnProgress | None = None,
) -> BookieReport:
    """Restore elsewhere what a stopped bookie held, in this process and without marks.

    Takes the same locks as workers, so that nobody copies or collects the same ledger meanwhile.
    Works while re-replication is disabled: whoever orders it by hand means it. Open ledgers that
    the bookie's slot still belongs to are recovered first, which stops their writers. With
    `ledger_id` only this ledger is looked at, and the cookie stays; with `target` all copies go to
    this bookie, as far as it does not have one already.
    """
    _refuse_registered(context, bookie_id)
    if target is not None and target not in context.client.bookies().writable:
        raise RefusedError(f"bookie {target} is not writable: copies cannot go there")
    if ledger_id is None:
        needed = await _ledgers_on(context, bookie_id)
    else:
        metadata = (await context.client.ledgers.read(ledger_id)).metadata
        needed = array("q", [ledger_id] if stores_entries_on(metadata, bookie_id) else [])
    report = BookieReport(bookie_id, ledgers=len(needed))
    if dry_run:
        report.skipped = [LedgerId(ledger_id) for ledger_id in needed]
        return report
    shown = Progress(total=len(needed))
    order = Order(leaving=frozenset({bookie_id}), target=target)
    rate = bytes_per_second or context.settings.worker.bytes_per_second
    by_hand = _ByHand(context, bookie_id, order, rate=rate, skip_open=skip_open, report=report)

    async def one(ledger_id: int) -> None:
        await by_hand.restore(LedgerId(ledger_id))
        shown.done += 1
        shown.stuck = len(report.stuck) + len(report.skipped)
        if progress is not None:
            progress(shown)

    await for_each(needed, one, at_once=_LEDGERS_AT_ONCE)
    if delete_cookie and report.is_done and ledger_id is None:
        report.cookie_deleted = await _delete_cookie(context, bookie_id)
    return report


class _ByHand:
    def __init__(
        self,
        context: RecoveryContext,
        bookie_id: BookieId,
        order: Order,
        *,
        rate: int,
        skip_open: bool,
        report: BookieReport,
    ) -> None:
        self._context = context
        self._bookie_id = bookie_id
        self._order = order
        self._skip_open = skip_open
        self._report = report
        self._replicator = Replicator(context.client, Throttle(bytes_per_second=rate))

    async def restore(self, ledger_id: LedgerId) -> None:
        lock = await self._context.marks.lock(ledger_id)
        if lock is None:
            self._report.skipped.append(ledger_id)  # a worker has it, and does the same
            return
        try:
            await self._restore_locked(lock)
        except LedgerGoneError:
            return
        except MetadataError:
            raise
        except LedgerError as error:
            self._stuck(ledger_id, Verdict(reason=Reason.UNDETERMINED, detail=str(error)))
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _RELEASE_SECONDS):
                await self._context.marks.release(lock)

    async def _restore_locked(self, lock: Lock) -> None:
        client, ledger_id = self._context.client, lock.ledger_id
        ledger = await client.ledgers.read(ledger_id)
        if not ledger.metadata.is_closed and self._is_growing_there(ledger):
            if self._skip_open:
                self._report.skipped.append(ledger_id)
                return
            await LedgerRecovery(client, ledger, access_of(ledger.metadata)).run()
        repair = LedgerRepair(self._replicator, ledger_id, session=lock.session, order=self._order)
        result = await repair.run()
        self._report.bytes += result.bytes
        if result.ending not in (Ending.WHOLE, Ending.GONE):
            verdict = result.verdict or Verdict(reason=Reason.NO_SOURCE, detail=result.detail)
            self._stuck(ledger_id, await judged_by_cookies(self._context, verdict))

    def _is_growing_there(self, ledger: VersionedLedger) -> bool:
        return self._bookie_id in ledger.metadata.last_fragment.ensemble

    def _stuck(self, ledger_id: LedgerId, verdict: Verdict) -> None:
        self._report.stuck[ledger_id] = verdict
