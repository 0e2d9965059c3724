"""kill -9, again and again: nothing acknowledged is lost, nothing is wrong, every start succeeds.

A child process runs the storage engine on real files (`process.py`) and tells what it does. It is
killed at a random moment, often while it starts or replays; the next child finds the directories
as they are, checks them against everything that was ever acknowledged, and goes on.

Each start checks in full what no two starts have found yet, and a sample of the rest; the last
start checks everything. QUIRE_KILLS=500 makes the loops longer, QUIRE_KILL_SEED changes their
course.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import pytest

from tests.bookie.process import LedgerOrder, Order

KILLS = int(os.environ.get("QUIRE_KILLS", "100"))
SEED = int(os.environ.get("QUIRE_KILL_SEED", "1"))
#: Ranges of each ledger that are looked at again although an earlier life has found them.
SAMPLE = 8
ROOT = Path(__file__).parents[2]
#: A kill follows one of these lines, after up to so many seconds.
_MOMENTS = (("S", 0.0), ("S", 0.06), ("O", 0.03), ("C", 0.02), ("A", 0.01), ("A", 0.01))


@dataclass
class Ledger:
    """What was asked and acknowledged of one ledger, over all lives."""

    state: LedgerOrder
    ranges: list[tuple[int, int, int]] = field(default_factory=list)  # life, first, last


class Model:
    """What the bookie has promised so far."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.life = 0
        self.checked = 0  # the last life that lived to find everything
        self.counts: Counter[str] = Counter()

    def take(self, line: str) -> None:
        """One line of a child."""
        word, *rest = line.split()
        self.counts[word] += 1
        assert word != "X", f"life {self.life}: {line}"
        if word in "SOCQ":
            self.counts[f"{word} sum"] += int(rest[0]) if rest else 0
            self.checked = self.life if word == "C" else self.checked
            return
        ledger_id, *numbers = map(int, rest)
        ledger = self.ledgers.setdefault(ledger_id, Ledger(LedgerOrder(ledger_id, [])))
        state = ledger.state
        match word, numbers:
            case "a", [_, last]:
                state.asked = max(state.asked, last)
            case "A", [first, last]:
                state.acknowledged = max(state.acknowledged, last)
                ledger.ranges.append((self.life, first, last))
            case "f", []:
                state.fence_asked = True
            case "F", []:
                state.fenced = True
            case "l", [lac]:
                state.lac_asked = lac
            case "L", [lac]:
                state.lac = max(state.lac, lac)
            case _:
                raise AssertionError(f"the child says {line!r}")

    def order(self, rng: random.Random, *, everything: bool) -> list[LedgerOrder]:
        """What the next child has to find."""
        orders = []
        for ledger in self.ledgers.values():
            ranges = ledger.ranges
            new = [r for r in ranges if everything or r[0] >= self.checked - 1]
            old = ranges[: len(ranges) - len(new)]
            chosen = new + rng.sample(old, min(SAMPLE, len(old)))
            orders.append(replace(ledger.state, check=[(first, last) for _, first, last in chosen]))
        return orders

    @property
    def entries(self) -> int:
        ledgers = self.ledgers.values()
        return sum(last - first + 1 for ledger in ledgers for _, first, last in ledger.ranges)


class Child:
    """One life, in a process that can be killed."""

    def __init__(self, commands: socket.socket, order: Order) -> None:
        order_out, order_in = os.pipe()
        lines_out, lines_in = os.pipe()
        socket.send_fds(commands, [b"."], [order_out, lines_in])
        os.close(order_out)
        os.close(lines_in)
        _, [self._handle], _, _ = socket.recv_fds(commands, 1, 1)
        with open(order_in, "w") as file:
            file.write(order.encode())
        self._lines = os.fdopen(lines_out, "rb")

    def lines(self) -> Iterator[str]:
        """Whole lines; the last one may have been cut off by the kill."""
        for line in self._lines:
            if line.endswith(b"\n"):
                yield line.decode()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        # Its pipe may close before its locks do: only the end of the process is the end.
        select.select([self._handle], [], [])

    def close(self) -> None:
        self.kill()
        os.close(self._handle)
        self._lines.close()


class Nursery:
    """The process that children are forked from (`process.main`)."""

    def __init__(self, errors: IO[bytes]) -> None:
        self.commands, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.bookie.process", str(theirs.fileno())],
                cwd=ROOT,
                stderr=errors,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        self.commands.close()
        self._process.wait()


class Loop:
    def __init__(self, tmp_path: Path, *, journals: int, directories: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.journals = [str(tmp_path / f"journal{n}") for n in range(journals)]
        self.directories = [str(tmp_path / f"ledgers{n}") for n in range(directories)]
        self.errors_path = tmp_path / "errors"
        self.errors = self.errors_path.open("ab")
        self.model = Model()
        self.nursery = Nursery(self.errors)

    @contextmanager
    def life(self, *, everything: bool = False, commits: int = 0) -> Iterator[Child]:
        ledgers = self.model.order(self.random, everything=everything)
        seed = self.random.randrange(2**32)
        order = Order(self.journals, self.directories, seed, ledgers, commits)
        child = Child(self.nursery.commands, order)
        try:
            yield child
            for line in child.lines():
                self.model.take(line)
        finally:
            child.close()
            self.model.life += 1

    def kill_one(self) -> None:
        """Kill while the store is being opened, at the first checkpoint, or at work."""
        rng, model = self.random, self.model
        until, seconds = rng.choice(_MOMENTS)
        count = rng.randrange(1, 500) if until == "A" else 1
        with self.life() as child:
            for line in child.lines():
                model.take(line)
                count -= line[0] == until
                if not count:
                    break
            else:
                raise AssertionError(f"the child ended by itself: {self.errors_path.read_text()}")
            time.sleep(rng.random() * seconds)
            child.kill()

    def stop_one(self) -> None:
        with self.life(commits=self.random.randrange(1, 200)) as child:
            lines = list(child.lines())
            for line in lines:
                self.model.take(line)
            assert lines[-1] == "Q\n", self.errors_path.read_text()

    def close(self) -> None:
        self.nursery.close()
        self.errors.close()


@pytest.mark.timeout(120 + 5 * KILLS)
@pytest.mark.parametrize(("journals", "directories", "share"), [(1, 1, 0.6), (2, 2, 0.4)])
def test_killed_bookie_keeps_all_that_it_acknowledged(
    tmp_path: Path, journals: int, directories: int, share: float
) -> None:
    kills = round(KILLS * share)
    loop = Loop(tmp_path, journals=journals, directories=directories, seed=SEED)
    counts = loop.model.counts
    try:
        for number in range(kills):
            loop.kill_one()
            if number % 10 == 9:
                loop.stop_one()
        with loop.life(everything=True, commits=1) as child:
            last = list(child.lines())
            assert last[-1] == "Q\n", last[-1] + loop.errors_path.read_text()
            assert f"C {loop.model.entries}\n" in last
    finally:
        loop.close()

    if kills < 30:
        return
    # The loop has been where it was meant to go; how often, the machine's speed decides.
    assert counts["S"] - counts["O"] >= 1, "killed while starting"
    assert counts["O sum"] > 0, "replayed"
    assert counts["F"] >= 1
    assert counts["L"] >= 10
    names = [name for path in loop.journals for name in os.listdir(f"{path}/current")]
    assert max(int(name[:16], 16) for name in names if name.endswith(".jnl")) > kills // 4
    logs = [name for path in loop.directories for name in os.listdir(f"{path}/current")]
    assert sum(name.endswith(".log") for name in logs) > kills // 10
