"""Which slots of which fragments lack their copies, and which entries bring one of them back.

A slot is bad when its bookie is gone, when it is to leave, or when the same bookie sits in another
slot of the ensemble already. What can be replaced is a fragment that does not grow any more: every
one but the last of an open ledger. That one belongs to its writer; losing a bookie of it is told
apart, because the cure is another one.

Entries are cut into chunks in which all entries share their write set, so that a chunk has one list
of sources and one of targets. With striping these are the entries of one residue modulo the
ensemble size; they are cut out of the same stretch of the ledger one residue after the other, or
sources would read every stretch as often as there are slots, with everything else in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from ledger_client.core.distribution import Distribution
from ledger_client.core.placement import Cluster, PlacementPolicy, choose_replacements
from metadata.model import Fragment, FragmentRange, LedgerMetadata
from wire.types import BookieId

Run: TypeAlias = tuple[int, int]  # first and last entry, inclusive


@dataclass(frozen=True, slots=True)
class DamagedFragment:
    """A fragment with settled ends, and the slots in it that need another bookie."""

    fragment: Fragment
    last_entry_id: int  # one before the first for a fragment without entries
    bad: tuple[int, ...]

    @property
    def first_entry_id(self) -> int:
        return self.fragment.first_entry_id

    @property
    def is_empty(self) -> bool:
        return self.last_entry_id < self.first_entry_id


@dataclass(frozen=True, slots=True)
class Damage:
    settled: tuple[DamagedFragment, ...]
    #: Bookies of the growing fragment that are gone. Only the writer, or recovery, can help.
    growing: tuple[BookieId, ...] = ()

    @property
    def is_none(self) -> bool:
        return not self.settled and not self.growing


def find_damage(
    metadata: LedgerMetadata,
    *,
    present: Collection[BookieId],
    leaving: Collection[BookieId] = (),
) -> Damage:
    """What is bad in this ledger. A read-only bookie is present: its copies are as good as any."""
    settled: list[DamagedFragment] = []
    growing: tuple[BookieId, ...] = ()
    for found in metadata.ranges():
        ensemble = found.fragment.ensemble
        if found.last_entry_id is None:
            growing = tuple(bookie for bookie in ensemble if bookie not in present)
            continue
        bad = tuple(
            slot
            for slot, bookie in enumerate(ensemble)
            if bookie not in present or bookie in leaving or bookie in ensemble[:slot]
        )
        if bad:
            settled.append(DamagedFragment(found.fragment, found.last_entry_id, bad))
    return Damage(tuple(settled), growing)


def settled_ranges(metadata: LedgerMetadata) -> Iterator[FragmentRange]:
    """The fragments that nobody adds to any more."""
    return (found for found in metadata.ranges() if found.last_entry_id is not None)


# ---------------------------------------------------------------------- substitutes


def choose_substitutes(
    policy: PlacementPolicy,
    cluster: Cluster,
    damaged: DamagedFragment,
    *,
    chance: Random,
    leaving: Collection[BookieId] = (),
    avoid: Collection[BookieId] = (),
) -> dict[int, BookieId]:
    """A bookie for each bad slot, as far as there are enough.

    Never one that is in the ensemble, that is to leave, or that has just failed as a target: it
    would fail again, and a half copied fragment is worth nothing.
    """
    usable = cluster.writable - frozenset(leaving) - frozenset(avoid)
    ensemble = damaged.fragment.ensemble
    return choose_replacements(
        policy,
        Cluster(usable, cluster.read_only, cluster.quarantined, cluster.weights),
        ensemble=ensemble,
        failed={slot: ensemble[slot] for slot in damaged.bad},
        chance=chance,
    )


# ---------------------------------------------------------------------- what to copy


@dataclass(frozen=True, slots=True)
class CopyJob:
    """Entries of one fragment, on their way to the bookies that shall hold them from now on."""

    distribution: Distribution
    fragment: Fragment
    runs: tuple[Run, ...]  # ascending; of them, the entries of the target or verified slots
    targets: Mapping[int, BookieId]  # slot to the bookie that gets its entries
    sources: tuple[int, ...]  # slots whose bookies may be read from, the best first
    #: A slot whose own copies are to be read, too, and made good where they are not.
    verified: int | None = None

    def sources_of(self, entry_id: int) -> tuple[int, ...]:
        holds = self.distribution.holds
        return tuple(slot for slot in self.sources if holds(slot=slot, entry_id=entry_id))

    def targets_of(self, entry_id: int) -> tuple[int, ...]:
        holds = self.distribution.holds
        return tuple(slot for slot in self.targets if holds(slot=slot, entry_id=entry_id))

    def is_wanted(self, entry_id: int) -> bool:
        holds, verified = self.distribution.holds, self.verified
        if verified is not None and holds(slot=verified, entry_id=entry_id):
            return True
        return any(holds(slot=slot, entry_id=entry_id) for slot in self.targets)

    @property
    def span(self) -> int:
        """How many entries there are in all, wanted or not."""
        return sum(last - first + 1 for first, last in self.runs)

    @property
    def entries(self) -> int:
        """How many copies are to be made."""
        return sum(
            self.distribution.count_of(slot=slot, first=first, last=last)
            for first, last in self.runs
            for slot in self.targets
        )


def replacing(
    metadata: LedgerMetadata,
    damaged: DamagedFragment,
    substitutes: Mapping[int, BookieId],
    *,
    present: Collection[BookieId],
    order: Sequence[int],
) -> CopyJob:
    """The job that fills `substitutes`. `order` is all slots as the placement policy ranks them.

    A bookie that is to leave has its copies still and is read from, after all others. One that
    sits in two slots is read from once.
    """
    ensemble = damaged.fragment.ensemble
    usable = [slot for slot in order if ensemble[slot] in present]
    good = [slot for slot in usable if slot not in damaged.bad]
    leaving = [slot for slot in usable if slot in damaged.bad]
    runs = () if damaged.is_empty else ((damaged.first_entry_id, damaged.last_entry_id),)
    return CopyJob(
        Distribution.of(metadata), damaged.fragment, runs, substitutes, (*good, *leaving)
    )


def refilling(
    metadata: LedgerMetadata,
    fragment: Fragment,
    slot: int,
    missing: Iterable[Run],
    *,
    present: Collection[BookieId],
    order: Sequence[int],
) -> CopyJob:
    """The job that gives a living bookie back what it lacks of its own slot."""
    ensemble = fragment.ensemble
    sources = tuple(other for other in order if other != slot and ensemble[other] in present)
    return CopyJob(
        Distribution.of(metadata), fragment, tuple(missing), {slot: ensemble[slot]}, sources
    )


def verifying(
    metadata: LedgerMetadata,
    found: FragmentRange,
    slot: int,
    *,
    present: Collection[BookieId],
    order: Sequence[int],
) -> CopyJob:
    """The job that reads every copy of a living bookie, and replaces bad ones from the others."""
    fragment, last = found.fragment, found.last_entry_id
    assert last is not None
    others = (other for other in order if other != slot and fragment.ensemble[other] in present)
    first = fragment.first_entry_id
    runs = ((first, last),) if first <= last else ()
    return CopyJob(Distribution.of(metadata), fragment, runs, {}, (slot, *others), verified=slot)


def missing_runs(
    distribution: Distribution, *, slot: int, first: int, last: int, listed: Iterable[Run]
) -> list[Run]:
    """The entries of `first..last` that the slot must hold and `listed` does not name.

    `listed` ascends and does not overlap. The answer is runs over the entries of the slot: with
    striping there are entries of others in between, and a slot that lost everything has still one.
    """
    missing: list[Run] = []
    expected = distribution.next_entry_of(slot=slot, entry_id=first)
    for run_first, run_last in (*listed, (last + 1, last + 1)):
        if expected > last:
            break
        stop = min(run_first, last + 1)
        if expected < stop:
            end = distribution.previous_entry_of(slot=slot, entry_id=stop - 1)
            assert end is not None
            missing.append((expected, end))
        if run_last >= expected:
            expected = distribution.next_entry_of(slot=slot, entry_id=run_last + 1)
    return missing


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries with one write set, few enough to be asked for at once."""

    entry_ids: range
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Cutter:
    """Cuts a job into pieces, from the first entry to the last, as it is asked for them."""

    def __init__(self, job: CopyJob) -> None:
        self._job = job
        self._runs = iter(job.runs)
        self._run: Run | None = next(self._runs, None)
        self._ready: list[Piece] = []  # the next one last

    @property
    def is_done(self) -> bool:
        return not self._ready and self._run is None

    def next(self, count_max: int) -> Piece | None:
        """The next piece, of about `count_max` entries at most; None when all are cut."""
        while not self._ready:
            if self._run is None:
                return None
            self._cut(max(1, count_max))
        return self._ready.pop()

    def _cut(self, count_max: int) -> None:
        assert self._run is not None
        job, size = self._job, self._job.distribution.ensemble_size
        first, last = self._run
        step = size if job.distribution.is_striped else 1
        stretch = count_max * step
        end = min(last, first + stretch - 1)
        self._run = (end + 1, last) if end < last else next(self._runs, None)
        for start in range(first, min(end, first + step - 1) + 1):
            if job.is_wanted(start):
                ids = range(start, end + 1, step)
                self._ready.append(Piece(ids, job.sources_of(start), job.targets_of(start)))
        self._ready.reverse()
