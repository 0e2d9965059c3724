"""What operators ask and order: who audits, what is short of copies and why, may I stop this one.

Library functions; a command line or a page shows what they return. None of them needs an auditor in
the same process: everything they know is in the metadata store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.core.checks import worst_copies
from autorecovery.core.forecast import Forecast, Progress
from autorecovery.core.parking import Parked, Reason, Verdict
from autorecovery.forecast import look
from autorecovery.gone import judged_by_cookies
from autorecovery.ledger_scan import LedgerScan
from metadata.election import current_auditor
from metadata.model import LedgerMetadata, LedgerState
from metadata.rereplication_settings import PeriodicCheck
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

#: Ledgers that an answer names one by one; of more it gives the number.
NAMED_MAX: Final = 1000


class RefusedError(LedgerError):
    """The order was not carried out; the message says why and what to do."""


# ---------------------------------------------------------------------- looking


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderReplicated:
    """One marked ledger."""

    ledger_id: LedgerId
    missing: tuple[BookieId, ...]
    marked_ms: int | None
    #: The host whose worker is at it now.
    holder: str | None
    #: Why it is stuck; None if nobody has said so.
    parked: Parked | None

    @property
    def reason(self) -> str:
        if self.parked is not None:
            text = self.parked.verdict.text
            return f"{text} (accepted)" if self.parked.is_accepted else text
        return f"being restored by {self.holder}" if self.holder else "waiting for a worker"


async def under_replicated(
    context: RecoveryContext,
    *,
    missing: BookieId | None = None,
    excluding: BookieId | None = None,
) -> AsyncIterator[UnderReplicated]:
    """Every marked ledger, ascending; of those with `missing` among the names, or without
    `excluding`, if that is asked for."""
    for ledger_id in await context.marks.marked():
        mark = await context.marks.read_mark(ledger_id)
        if mark is None:
            continue
        names = mark.content.replicas
        if (missing is not None and missing not in names) or excluding in names:
            continue
        yield UnderReplicated(
            ledger_id=ledger_id,
            missing=names,
            marked_ms=mark.content.ctime_ms,
            holder=await context.marks.holder(ledger_id),
            parked=await context.parking.read(ledger_id),
        )


async def who_is_auditor(context: RecoveryContext) -> BookieId | None:
    return await current_auditor(context.store, context.cluster.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    is_enabled: bool
    auditor: BookieId | None
    delay_seconds: int | None  # None: nobody has ever audited this cluster
    last_checks_ms: dict[PeriodicCheck, int | None]
    forecast: Forecast


async def status(context: RecoveryContext, progress: Progress | None = None) -> Status:
    """One look. With the same `progress` at every look the forecast knows rate and time left."""
    settings = context.marks.settings
    delay = await settings.delay()
    overview = await look(context, progress or Progress())
    return Status(
        is_enabled=await settings.is_enabled(),
        auditor=await who_is_auditor(context),
        delay_seconds=None if delay is None else delay.seconds,
        last_checks_ms={check: await settings.last_check_ms(check) for check in PeriodicCheck},
        forecast=overview.forecast,
    )


async def follow_forecast(
    context: RecoveryContext, *, every_seconds: float = 5.0
) -> AsyncIterator[Forecast]:
    """A look every few seconds, until nothing is left that could be restored."""
    progress = Progress()
    while True:
        forecast = (await look(context, progress)).forecast
        yield forecast
        if forecast.ledgers == forecast.parked:
            return
        await trio.sleep(every_seconds)


# ---------------------------------------------------------------------- may I stop it?


@dataclass(frozen=True, slots=True)
class Endangered:
    """A ledger that would be below its ack quorum, with the copies its worst entry would have."""

    ledger_id: LedgerId
    copies: int
    ack_quorum: int


@dataclass(slots=True)
class StopAnswer:
    """What stopping a bookie would do."""

    bookie_id: BookieId
    ledgers: int = 0  # that name it
    below_ack_quorum: int = 0
    unreadable: int = 0  # of these: with entries that nobody could read
    #: The first of them, ascending.
    named: tuple[Endangered, ...] = ()
    #: The largest ensemble of a ledger that is being written, and the bookies left to write to.
    largest_open_ensemble: int = 0
    writable_left: int = 0
    #: Records that could not be understood: nothing is known about these ledgers.
    unknown: int = 0

    @property
    def is_safe(self) -> bool:
        return (
            not self.below_ack_quorum
            and not self.unknown
            and self.writable_left >= self.largest_open_ensemble
        )

    @property
    def text(self) -> str:
        """One line for people."""
        if self.is_safe:
            return f"safe: all {self.ledgers} ledgers on {self.bookie_id} keep their ack quorum"
        reasons = []
        if self.below_ack_quorum:
            first = ", ".join(str(found.ledger_id) for found in self.named[:10])
            more = ", ..." if self.below_ack_quorum > 10 else ""
            reasons.append(
                f"{self.below_ack_quorum} ledgers would be below their ack quorum ({first}{more})"
            )
        if self.unreadable:
            reasons.append(f"{self.unreadable} of them could not be read in full")
        if self.writable_left < self.largest_open_ensemble:
            reasons.append(
                f"writers need ensembles of {self.largest_open_ensemble} bookies, "
                f"{self.writable_left} would be left"
            )
        if self.unknown:
            reasons.append(f"{self.unknown} records cannot be read")
        return f"not safe to stop {self.bookie_id}: {'; '.join(reasons)}"


async def safe_to_stop(
    context: RecoveryContext,
    bookie_id: BookieId,
    *,
    progress: Callable[[int], None] | None = None,
) -> StopAnswer:
    """Whether every entry keeps its ack quorum if this bookie is stopped now.

    By the records, by who is alive, and by the marks: copies that are known to be missing on a
    living bookie do not count. `progress` is told how many ledgers were looked at.
    """
    alive = context.client.bookies().all
    answer = StopAnswer(bookie_id)
    answer.writable_left = len(context.client.bookies().writable - {bookie_id})
    marked = frozenset(await context.marks.marked())
    named: list[Endangered] = []
    scan = _scan(context)
    async with aclosing(scan.chunks()) as chunks:
        async for chunk in chunks:
            answer.unknown += len(chunk.unreadable)
            for ledger in chunk.ledgers:
                metadata = ledger.metadata
                if metadata.state is LedgerState.OPEN:
                    answer.largest_open_ensemble = max(
                        answer.largest_open_ensemble, metadata.ensemble_size
                    )
                if not metadata.mentions(bookie_id):
                    continue
                left = alive - {bookie_id}
                if metadata.ledger_id in marked:
                    left -= await _missing(context, metadata)
                found = _endangered(metadata, left)
                answer.ledgers += 1
                if found is not None:
                    answer.below_ack_quorum += 1
                    answer.unreadable += found.copies == 0
                    if len(named) < NAMED_MAX:
                        named.append(found)
            if progress is not None:
                progress(scan.count)
    answer.named = tuple(named)
    return answer


def _endangered(metadata: LedgerMetadata, left: frozenset[BookieId]) -> Endangered | None:
    copies = worst_copies(metadata, left)
    if copies is None or copies >= metadata.ack_quorum:
        return None
    return Endangered(metadata.ledger_id, copies, metadata.ack_quorum)


async def _missing(context: RecoveryContext, metadata: LedgerMetadata) -> frozenset[BookieId]:
    mark = await context.marks.read_mark(metadata.ledger_id)
    return frozenset() if mark is None else frozenset(mark.content.replicas)


def _scan(context: RecoveryContext) -> LedgerScan:
    settings = context.settings.auditor
    client = context.client
    return LedgerScan(client.ledgers, chance=client.chance, at_once=settings.ledgers_at_once)


# ---------------------------------------------------------------------- orders


async def disable(context: RecoveryContext) -> None:
    """Pause auditors and workers of the whole cluster. AlreadyDisabledError if they are."""
    await context.marks.settings.disable()


async def enable(context: RecoveryContext) -> None:
    """AlreadyEnabledError if they are not paused."""
    await context.marks.settings.enable()


async def trigger_audit(context: RecoveryContext) -> BookieId:
    """Let the auditor look for lost bookies now; who that is."""
    if not await context.marks.settings.is_enabled():
        raise RefusedError("re-replication is disabled: enable it, and what was lost is marked")
    auditor = await who_is_auditor(context)
    if auditor is None:
        raise RefusedError("nobody is auditor: start autorecovery somewhere")
    await context.marks.settings.trigger_audit()
    return auditor


async def accept_loss(context: RecoveryContext, ledger_id: LedgerId) -> Parked:
    """Go on without the entries that are lost. Workers then restore whatever else there is.

    Only after the verdict that they are lost: of entries on a bookie that is merely away, nobody
    can say so. Of one whose cookie was deleted everybody can, without waiting for a worker.
    """
    parked = await context.parking.read(ledger_id)
    if parked is None:
        raise RefusedError(
            f"ledger {ledger_id} has no verdict: there is nothing to accept, or no worker of ours "
            "has tried it yet"
        )
    verdict = await judged_by_cookies(context, parked.verdict)
    if verdict.reason is not Reason.LOST:
        raise RefusedError(
            f"ledger {ledger_id} is not lost but stuck ({verdict.text}): {_remedy(verdict)}"
        )
    if verdict != parked.verdict:
        await context.parking.park(ledger_id, verdict)
    accepted = await context.parking.accept(ledger_id)
    if accepted is None:
        raise RefusedError(f"ledger {ledger_id} was restored in this moment: nothing to accept")
    return accepted


def _remedy(verdict: Verdict) -> str:
    away = ", ".join(verdict.waits_for)
    if not away:
        return "remove the obstacle"
    if verdict.reason is Reason.UNDETERMINED:
        return f"start {away} again; if that is impossible, its end is lost: delete the ledger"
    return f"start {away} again; if that is impossible, delete the cookie of what is gone"
