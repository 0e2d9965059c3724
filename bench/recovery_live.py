"""Writers at an even pace, and what they felt, with and without copies being made beside them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby
from statistics import median
from typing import Final, NamedTuple

import trio

from bench.disk_stalls import Stall
from ledger_client import LedgerClient, LedgerWriter

PASSWORD: Final = b"secret"
#: Live writers, and the entries that each appends together.
_WRITERS: Final = 4
BATCH: Final = 100

Figures = dict[str, float | None]  # None: unknown


class Took(NamedTuple):
    """A batch: when it was due, by `time.perf_counter`, and how long it took from then."""

    due: float
    seconds: float


@dataclass
class Turns:
    """All turns of one kind."""

    turns: list[list[Took]] = field(default_factory=list)
    #: None where the kernel does not count for the disk, as with one in memory.
    stalls: list[Stall] | None = field(default_factory=list)

    def add(self, took: list[Took], stalls: list[Stall] | None) -> None:
        """A turn, and the stalls that were seen about its time."""
        self.turns.append(took)
        begun, over = min(took).due, max(batch.due + batch.seconds for batch in took)
        if self.stalls is None or stalls is None:
            self.stalls = None
        else:
            self.stalls += [s for s in stalls if s.end > begun and s.start < over]

    def at_share(self, share: float) -> float:
        return at_share(chain(*self.turns), share)

    def apart_from_stalls(self, share: float) -> float | None:
        stalls = self.stalls
        if stalls is None:
            return None
        return at_share(chain(*(unstalled(turn, stalls) for turn in self.turns)), share)

    def typical_p99(self) -> float:
        """The p99 of each second, and of these the median."""
        found: list[float] = []
        for turn in self.turns:
            first = min(turn).due
            for _, second in groupby(sorted(turn), lambda batch: int(batch.due - first)):  # noqa: B023
                found.append(at_share(second, 0.99))
        return median(found)

    @property
    def stalled_ms(self) -> float | None:
        if self.stalls is None:
            return None
        return sum(stall.end - stall.start for stall in self.stalls) * 1000


def at_share(took: Iterable[Took], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(batch.seconds for batch in took)
    return ordered[int(len(ordered) * share)] * 1000


def unstalled(took: Iterable[Took], stalls: Iterable[Stall]) -> list[Took]:
    """Batches that met no stall of the disk, nor the time after it.

    At half load what has piled up in a stall takes as long again to go away.
    """
    spans = [(stall.start, 2 * stall.end - stall.start) for stall in stalls]
    return [
        batch
        for batch in took
        if not any(batch.due < end and start < batch.due + batch.seconds for start, end in spans)
    ]


def figures_of(without: Turns, during: Turns) -> Figures:
    figures: Figures = {
        "p50 without, ms": without.at_share(0.5),
        "p50 with, ms": during.at_share(0.5),
    }
    p99s: dict[str, tuple[float | None, float | None]] = {
        "p99": (without.at_share(0.99), during.at_share(0.99)),
        "p99 apart from stalls of the disk": (
            without.apart_from_stalls(0.99),
            during.apart_from_stalls(0.99),
        ),
        "p99 of a typical second": (without.typical_p99(), during.typical_p99()),
    }
    for name, (before, after) in p99s.items():
        figures |= {
            f"{name}, without, ms": before,
            f"{name}, with, ms": after,
            f"{name}, ratio": None if before is None or after is None else after / before,
        }
    return figures | {
        "the disk stood still without, ms": without.stalled_ms,
        "the disk stood still with, ms": during.stalled_ms,
    }


def as_text(figures: Figures) -> str:
    return ", ".join(
        f"{name} " + ("unknown" if value is None else f"{value:,.1f}")
        for name, value in figures.items()
    )


async def append(uri: str, seconds: float, per_second: float | None) -> list[Took]:
    """How long batches of entries took, of some writers: as fast as it goes, or at an even pace.

    At a pace the next batch does not wait for the one before it, and the clock of a batch runs from
    when it was due.
    """
    payloads = [bytes(1024)] * BATCH
    took: list[Took] = []
    async with LedgerClient(uri) as client:
        ledgers = [
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
            for _ in range(_WRITERS)
        ]
        began = time.perf_counter()

        async def write(ledger: LedgerWriter, due: float) -> None:
            await ledger.append_many(payloads)
            took.append(Took(due, time.perf_counter() - due))

        async def fill(ledger: LedgerWriter) -> None:
            while (now := time.perf_counter()) < began + seconds:
                await write(ledger, now)

        async with trio.open_nursery() as nursery:
            if per_second is None:
                for ledger in ledgers:
                    nursery.start_soon(fill, ledger)
            else:
                for number in range(int(seconds * per_second / BATCH)):
                    due = began + number * BATCH / per_second
                    await trio.sleep(max(0.0, due - time.perf_counter()))
                    nursery.start_soon(write, ledgers[number % _WRITERS], due)
        for ledger in ledgers:
            await ledger.close()
    return took
