"""Whether a process that did the same for hours has grown meanwhile."""

from __future__ import annotations

from pathlib import Path
from statistics import median

#: Looks that are kept; of more, every second one.
SAMPLES_MAX = 2000
#: The first tenth fills caches.
WARM_UP = 0.1
#: What the second half may have more than the first: fragmentation, logs that are open.
GROWTH_MIB_MAX = 24.0


class LeakError(AssertionError):
    """More and more memory for the same work."""


class MemoryLog:
    """How much memory there was after how much work. It takes none of its own to speak of."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float]] = []
        self._stride = 1
        self._seen = 0

    def note(self, work: int, mib: float) -> None:
        if self._seen % self._stride == 0:
            self.samples.append((work, mib))
            if len(self.samples) >= SAMPLES_MAX:
                del self.samples[1::2]
                self._stride *= 2
        self._seen += 1

    def halves(self) -> tuple[float, float]:
        """The middle of the memory in the first half of the work, without its begin, and after."""
        assert self.samples, "nobody has looked"
        total = self.samples[-1][0]
        warm = [(work, mib) for work, mib in self.samples if work >= WARM_UP * total]
        middle = (1 + WARM_UP) / 2 * total
        first = [mib for work, mib in warm if work < middle]
        second = [mib for work, mib in warm if work >= middle]
        return median(first or second), median(second)

    def check(self) -> None:
        """LeakError if the second half has more than the first."""
        first, second = self.halves()
        if second - first > GROWTH_MIB_MAX:
            work = max(1.0, self.samples[-1][0] * (1 - WARM_UP) / 2)
            raise LeakError(
                f"{first:.0f} MiB in the first half and {second:.0f} MiB in the second: "
                f"{(second - first) * 2**20 / work:.0f} bytes for each frame"
            )

    def line(self, count: int = 20) -> str:
        """Some of the samples, evenly."""
        step = max(1, len(self.samples) // count)
        shown = " ".join(f"{mib:.0f}" for _, mib in self.samples[::step])
        first, second = self.halves()
        return f"memory in MiB: {first:.1f} in the first half, {second:.1f} in the second; {shown}"


def resident_mib(pid: int | str = "self") -> float:
    """What a process has now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
