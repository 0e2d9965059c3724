"""Restoring the copies of one ledger, under its lock: find, copy, commit, look again.

A commit says "these slots have these bookies now", and it is made only after every entry that the
slots must hold is durable there, on the session that owns the lock, and if the fragment is still
the one that was copied. Everything before it is harmless: a copy that is not committed is garbage
that its bookie collects.

What cannot be done is said, not tried for ever: the result names the reason and the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from autorecovery.core.copying import Copy
from autorecovery.core.fragments import (
    CopyJob,
    Damage,
    DamagedFragment,
    Run,
    choose_substitutes,
    find_damage,
    missing_runs,
    refilling,
    replacing,
    settled_ranges,
    verifying,
)
from autorecovery.core.parking import Reason, Verdict, joined
from autorecovery.replicator import Progress, Replicator
from autorecovery.worker_listing import Listed, list_entries
from ledger_client.core.distribution import Distribution
from ledger_client.environment import Access
from metadata.model import FragmentRange, InvalidMetadataError, LedgerMetadata
from metadata.store import SessionId
from metadata.update import (
    LedgerGoneError,
    MetadataConflictError,
    ReplaceBookies,
    VersionedLedger,
)
from wire.types import BookieId, DigestType, LedgerId

#: Looks at one ledger in one go. More of them and somebody changes it as fast as we do.
ROUNDS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be put right besides slots whose bookies are gone."""

    #: Bookies to be emptied, dead or alive.
    leaving: frozenset[BookieId] = frozenset()
    #: Living bookies that may lack entries: asked for a list of what they have.
    suspects: frozenset[BookieId] = frozenset()
    #: Living bookies that may have bad copies: every one of them is read.
    distrusted: frozenset[BookieId] = frozenset()
    #: Somebody has decided to go on without these entries.
    accepted: tuple[Run, ...] = ()
    #: One slot of one fragment that is to move to a certain bookie.
    move: Move | None = None
    #: The one bookie that may get copies; by default any that the policy likes.
    target: BookieId | None = None
    #: Leave everything else to others; the suspects keep their slots.
    only_suspects: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    first_entry_id: int
    source: BookieId
    target: BookieId


class Ending(Enum):
    WHOLE = "whole"
    GONE = "deleted"  # the ledger is not there any more
    GROWING = "growing"  # what is left to do waits for the writer, or for recovery
    STUCK = "stuck"  # something stands in the way, see the verdict
    FAILED = "failed"  # it did not work now, and may the next time


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    ending: Ending
    ledger: VersionedLedger | None = None
    verdict: Verdict | None = None
    detail: str = ""
    #: Bookies of the growing fragment that are away.
    growing: tuple[BookieId, ...] = ()
    #: Bookies found to lack entries that could not be given back to them.
    unfilled: frozenset[BookieId] = frozenset()
    fragments: int = 0  # committed
    entries: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCopies:
    """ReplaceBookies, for the very range that was copied."""

    first_entry_id: int
    last_entry_id: int
    replacements: Mapping[int, tuple[BookieId, BookieId]]

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        for found in settled_ranges(current):
            if found.fragment.first_entry_id == self.first_entry_id:
                if found.last_entry_id == self.last_entry_id:
                    change = ReplaceBookies(
                        first_entry_id=self.first_entry_id, replacements=self.replacements
                    )
                    return change.apply(current)
                break
        raise MetadataConflictError(
            f"ledger {current.ledger_id} has no fragment of entries {self.first_entry_id} to "
            f"{self.last_entry_id} any more: plan again"
        )


def access_of(metadata: LedgerMetadata) -> Access:
    """What the record itself gives: enough to check digests and to write copies.

    The oldest records say neither digest nor password; Apache's tools then try these.
    """
    digest_type = metadata.digest_type or DigestType.CRC32
    return Access.of(metadata.ledger_id, digest_type, metadata.password or b"")


def entry_bytes_of(metadata: LedgerMetadata) -> int | None:
    """The average size of an entry as a record, if the ledger is closed and says it."""
    if metadata.last_entry_id is None or metadata.last_entry_id < 0:
        return None
    return metadata.length // (metadata.last_entry_id + 1) + 40


@dataclass(slots=True)
class _Obstacles:
    """Everything that was in the way during one look at the ledger."""

    lost: list[Run] = field(default_factory=list)
    waits_for: set[BookieId] = field(default_factory=set)
    targets_missing: int = 0
    troubles: list[str] = field(default_factory=list)


class LedgerRepair:
    """One ledger, once. `session` owns its lock; without one nothing is bound to a session."""

    def __init__(
        self,
        replicator: Replicator,
        ledger_id: LedgerId,
        *,
        session: SessionId | None,
        order: Order | None = None,
        progress: Progress | None = None,
        known: VersionedLedger | None = None,
        is_deferred: bool = False,
    ) -> None:
        """`known`: the record, just read. `is_deferred`: leave it to the caller to write what
        becomes of it; the result has it under the version that was read."""
        self._known = known
        self._is_deferred = is_deferred
        self._replicator = replicator
        self._client = replicator.client
        self._ledger_id = ledger_id
        self._session = session
        self._order = order = order or Order()
        self._progress = progress
        self._avoid: set[BookieId] = set()
        self._leaving = set(order.leaving)
        self._unfilled: set[BookieId] = set()
        self._fragments = self._entries = self._bytes = 0

    async def run(self) -> RepairResult:
        try:
            ledger = self._known or await self._client.ledgers.read(self._ledger_id)
            return await self._repair(ledger)
        except LedgerGoneError:
            return self._result(Ending.GONE)
        except InvalidMetadataError as error:
            verdict = Verdict(reason=Reason.UNREADABLE, detail=str(error))
            return self._result(Ending.STUCK, verdict=verdict)

    async def _repair(self, ledger: VersionedLedger) -> RepairResult:
        obstacles = _Obstacles()
        await self._check_suspects(ledger.metadata, obstacles)
        if self._order.only_suspects:
            if self._leaving:
                obstacles.troubles.append("it does not take its copies back")
            return self._judged(ledger, obstacles)
        for _ in range(ROUNDS_MAX):
            damage = self._damage(ledger.metadata)
            if not damage.settled:
                break
            committed, avoided = self._fragments, len(self._avoid)
            found = _Obstacles()
            ledger = await self._one_round(ledger, damage, found)
            if self._fragments == committed and len(self._avoid) == avoided:
                obstacles.lost += found.lost
                obstacles.waits_for |= found.waits_for
                obstacles.targets_missing += found.targets_missing
                obstacles.troubles += found.troubles
                break
        else:
            obstacles.troubles.append(f"still not whole after {ROUNDS_MAX} rounds")
        return self._judged(ledger, obstacles)

    def _damage(self, metadata: LedgerMetadata) -> Damage:
        move = self._order.move
        if move is None:
            return find_damage(metadata, present=self._present, leaving=self._leaving)
        for found in settled_ranges(metadata):
            fragment = found.fragment
            if fragment.first_entry_id == move.first_entry_id and move.source in fragment.ensemble:
                slot = fragment.ensemble.index(move.source)
                assert found.last_entry_id is not None
                return Damage((DamagedFragment(fragment, found.last_entry_id, (slot,)),))
        return Damage(())

    @property
    def _present(self) -> frozenset[BookieId]:
        return self._client.bookies().all

    # ------------------------------------------------------------------ lost bookies

    async def _one_round(
        self, ledger: VersionedLedger, damage: Damage, obstacles: _Obstacles
    ) -> VersionedLedger:
        """Every damaged fragment once, on the record as each commit leaves it."""
        for damaged in damage.settled:
            substitutes = self._substitutes(damaged)
            obstacles.targets_missing += len(damaged.bad) - len(substitutes)
            if not substitutes:
                continue
            job = replacing(
                ledger.metadata,
                damaged,
                substitutes,
                present=self._present,
                order=self._read_order(damaged.fragment.ensemble),
            )
            copy = await self._copy(job, ledger.metadata, obstacles)
            self._avoid |= copy.failed.keys()
            if copy.is_complete:
                try:
                    ledger = await self._commit(ledger, damaged, substitutes)
                except (MetadataConflictError, InvalidMetadataError) as error:
                    obstacles.troubles.append(str(error))
                    return await self._client.ledgers.read(self._ledger_id)
        return ledger

    def _substitutes(self, damaged: DamagedFragment) -> dict[int, BookieId]:
        move = self._order.move
        if move is not None:
            usable = move.target in self._client.bookies().writable - self._avoid
            if not usable or move.target in damaged.fragment.ensemble:
                return {}
            return {damaged.bad[0]: move.target}
        return choose_substitutes(
            self._client.policy,
            self._client.cluster,
            damaged,
            chance=self._client.chance,
            leaving=self._leaving,
            avoid=self._avoid | self._others_than_target(),
        )

    def _others_than_target(self) -> frozenset[BookieId]:
        target = self._order.target
        return frozenset() if target is None else self._client.bookies().writable - {target}

    def _read_order(self, ensemble: tuple[BookieId, ...]) -> tuple[int, ...]:
        """Sources as the policy ranks them; among equals each ledger begins with another one."""
        size = len(ensemble)
        slots = [(self._ledger_id + slot) % size for slot in range(size)]
        return tuple(self._client.read_order(slots, ensemble))

    async def _commit(
        self,
        ledger: VersionedLedger,
        damaged: DamagedFragment,
        substitutes: Mapping[int, BookieId],
    ) -> VersionedLedger:
        ensemble = damaged.fragment.ensemble
        update = CommitCopies(
            first_entry_id=damaged.first_entry_id,
            last_entry_id=damaged.last_entry_id,
            replacements={slot: (ensemble[slot], new) for slot, new in substitutes.items()},
        )
        if self._is_deferred:
            changed = update.apply(ledger.metadata) or ledger.metadata
            self._fragments += 1
            return replace(ledger, metadata=changed)
        updated = await self._client.ledgers.update(
            self._ledger_id, update, known=ledger, session=self._session
        )
        self._fragments += 1
        return updated.ledger

    async def _copy(self, job: CopyJob, metadata: LedgerMetadata, obstacles: _Obstacles) -> Copy:
        copy = await self._replicator.copy(
            job,
            access_of(metadata),
            entry_bytes=entry_bytes_of(metadata),
            accepted=self._order.accepted,
            progress=self._progress,
        )
        self._entries += copy.entries_copied
        self._bytes += copy.bytes_copied
        self._unfilled |= copy.unfilled
        if copy.lost.count:
            obstacles.lost += copy.lost.runs
            away = set(job.fragment.ensemble) - self._present
            obstacles.waits_for |= away
        if copy.unread.count or copy.failed:
            said = {**copy.troubles, **copy.failed}
            obstacles.troubles += [
                f"bookie {bookie_id}: {outcome.name.lower().replace('_', ' ')}"
                for bookie_id, outcome in said.items()
            ]
        return copy

    # ------------------------------------------------------------------ suspects

    async def _check_suspects(self, metadata: LedgerMetadata, obstacles: _Obstacles) -> None:
        suspects = self._order.suspects & metadata.bookies() & self._present
        for bookie_id in sorted(suspects - self._order.distrusted):
            await self._refill(bookie_id, metadata, obstacles)
        distrusted = self._order.distrusted & metadata.bookies() & self._present
        for bookie_id in sorted(distrusted):
            for found, slot in _places(metadata, bookie_id):
                order = self._read_order(found.fragment.ensemble)
                job = verifying(metadata, found, slot, present=self._present, order=order)
                copy = await self._copy(job, metadata, obstacles)
                if bookie_id in copy.troubles:
                    obstacles.troubles.append(f"bookie {bookie_id} could not be read from")

    async def _refill(
        self, bookie_id: BookieId, metadata: LedgerMetadata, obstacles: _Obstacles
    ) -> None:
        """Give a living bookie back what it lacks; one that takes nothing gets a substitute."""
        places = list(_places(metadata, bookie_id))
        if not places:
            return
        listed = await list_entries(self._client, bookie_id, self._ledger_id)
        if listed is Listed.NO_ANSWER:
            obstacles.troubles.append(f"bookie {bookie_id} does not list its entries")
            return
        if listed is Listed.CANNOT:
            self._leaving.add(bookie_id)
            return
        distribution = Distribution.of(metadata)
        for found, slot in places:
            first, last = found.fragment.first_entry_id, found.last_entry_id
            assert last is not None
            there = () if isinstance(listed, Listed) else listed.runs(first, last)
            missing = missing_runs(distribution, slot=slot, first=first, last=last, listed=there)
            if not missing:
                continue
            if bookie_id not in self._client.bookies().writable:
                self._leaving.add(bookie_id)
                return
            order = self._read_order(found.fragment.ensemble)
            job = refilling(
                metadata, found.fragment, slot, missing, present=self._present, order=order
            )
            copy = await self._copy(job, metadata, obstacles)
            if copy.failed:
                self._leaving.add(bookie_id)  # it does not take its copies back: somebody else may
                self._avoid.add(bookie_id)
                return

    # ------------------------------------------------------------------ the end

    def _judged(self, ledger: VersionedLedger, obstacles: _Obstacles) -> RepairResult:
        damage = self._damage(ledger.metadata)
        if obstacles.lost:
            away = tuple(sorted(obstacles.waits_for))
            reason = Reason.NO_SOURCE if away else Reason.LOST
            verdict = Verdict(
                reason=reason,
                lost=joined(obstacles.lost),
                waits_for=away,
                detail="the only copies of some entries are there" if away else "",
            )
            return self._result(Ending.STUCK, ledger=ledger, verdict=verdict)
        if obstacles.troubles:
            detail = "; ".join(dict.fromkeys(obstacles.troubles))
            return self._result(Ending.FAILED, ledger=ledger, detail=detail)
        if damage.settled and not self._order.only_suspects:
            takers = f"none of the {len(self._client.bookies().writable)} writable bookies can"
            if self._order.target is not None:
                takers = f"bookie {self._order.target} cannot"
            verdict = Verdict(
                reason=Reason.NO_TARGET,
                detail=f"{obstacles.targets_missing} more copies are needed, and {takers} take "
                "one: start more bookies",
            )
            return self._result(Ending.STUCK, ledger=ledger, verdict=verdict)
        if damage.growing:
            return self._result(Ending.GROWING, ledger=ledger, growing=damage.growing)
        return self._result(Ending.WHOLE, ledger=ledger)

    def _result(
        self,
        ending: Ending,
        *,
        ledger: VersionedLedger | None = None,
        verdict: Verdict | None = None,
        detail: str = "",
        growing: tuple[BookieId, ...] = (),
    ) -> RepairResult:
        return RepairResult(
            ending=ending,
            ledger=ledger,
            verdict=verdict,
            detail=detail,
            growing=growing,
            unfilled=frozenset(self._unfilled),
            fragments=self._fragments,
            entries=self._entries,
            bytes=self._bytes,
        )


def _places(metadata: LedgerMetadata, bookie_id: BookieId) -> Collection[tuple[FragmentRange, int]]:
    """The settled fragments that name a bookie, each with its slot."""
    return [
        (found, found.fragment.ensemble.index(bookie_id))
        for found in settled_ranges(metadata)
        if bookie_id in found.fragment.ensemble
    ]
