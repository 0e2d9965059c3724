"""Faults of a local cluster, on processes that do nothing else."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from quire.console.faults import Fault, FaultRefusedError, UnknownBookieError
from quire.fleet import Fleet, running_fleet
from quire.local_faults import LocalFaults
from quire.packet_cut import PacketCut
from quire.processes import Program
from wire.types import BookieId

ONE, OTHER = BookieId("127.0.0.1:3181"), BookieId("127.0.0.1:3182")


class Cut(PacketCut):
    """Remembers what would be cut."""

    def __init__(self, obstacle: str | None = None) -> None:
        self.ports: set[int] = set()
        self._obstacle = obstacle

    def obstacle(self) -> str | None:
        return self._obstacle

    def cut(self, port: int) -> None:
        self.ports.add(port)

    def mend(self, port: int) -> None:
        self.ports.remove(port)


class World:
    def __init__(self, fleet: Fleet, faults: LocalFaults, cut: Cut) -> None:
        self.fleet = fleet
        self.faults = faults
        self.cut = cut
        self.restarts = 0
        self.news: list[str] = []

    def state(self, bookie_id: BookieId = ONE) -> str:
        return self.faults.states()[bookie_id].state

    def pid(self, bookie_id: BookieId = ONE) -> int:
        pid = self.faults.states()[bookie_id].pid
        assert pid is not None
        return pid

    def available(self) -> set[Fault]:
        return {fault for fault, why in self.faults.states()[ONE].buttons.items() if why is None}

    async def inflict(self, fault: Fault) -> None:
        await self.faults.inflict(ONE, fault)


@asynccontextmanager
async def world(folder: Path, *, obstacle: str | None = None) -> AsyncIterator[World]:
    programs = [
        Program(
            name=f"bookie-{number}",
            folder=folder / f"bookie-{number}",
            module="tests.console.sleeper",
            arguments=(),
        )
        for number in (1, 2)
    ]
    news: list[str] = []
    async with trio.open_nursery() as nursery:
        async with running_fleet(programs, nursery, news.append) as fleet:
            cut = Cut(obstacle)
            faults = LocalFaults(fleet, nursery, cut, lambda: _restarted(made))
            await faults.open(dict(zip((ONE, OTHER), fleet.children, strict=True)))
            made = World(fleet, faults, cut)
            made.news = news
            yield made
        nursery.cancel_scope.cancel()


def _restarted(made: World) -> None:
    made.restarts += 1


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - the kernel sets no events
        await trio.sleep(0.002)


async def test_killed_bookie_is_gone_until_it_is_revived(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = made.pid()
        await made.inflict(Fault.KILL)
        assert (made.state(), made.state(OTHER)) == ("ended", "running")
        assert made.available() == {Fault.REVIVE}
        with pytest.raises(FaultRefusedError, match="its process has ended: revive it"):
            await made.inflict(Fault.PAUSE)
        await until(lambda: made.news != [])
        assert "bookie-1 was killed by signal 9" in made.news[0]
        await made.inflict(Fault.REVIVE)
        assert made.state() == "running"
        assert made.pid() != first
        assert made.restarts == 1
        await made.inflict(Fault.KILL)
        await until(lambda: len(made.news) == 2)


async def test_paused_bookie_stands_still_until_it_is_resumed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for undo in (Fault.RESUME, Fault.REVIVE):
            await made.inflict(Fault.PAUSE)
            await until(lambda: is_stopped(made.pid()))
            assert made.state() == "paused"
            assert made.available() == {Fault.KILL, Fault.RESUME, Fault.REVIVE}
            with pytest.raises(FaultRefusedError, match="it is paused: revive it first"):
                await made.inflict(Fault.SLOW)
            await made.inflict(undo)
            await until(lambda: not is_stopped(made.pid()))
            assert made.state() == "running"
        assert made.restarts == 0


async def test_slow_bookie_runs_now_and_then(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.inflict(Fault.SLOW)
        for _ in range(2):
            await until(lambda: is_stopped(made.pid()))
            await until(lambda: not is_stopped(made.pid()))
        assert made.state() == "slow"
        await until(lambda: is_stopped(made.pid()))
        await made.inflict(Fault.RESUME)
        await until(lambda: not is_stopped(made.pid()))
        assert made.state() == "running"
        await made.inflict(Fault.SLOW)
        await made.inflict(Fault.KILL)
        assert made.state() == "ended"


async def test_full_bookie_was_restarted_with_a_low_threshold(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = made.pid()
        log = tmp_path / "bookie-1" / "bookie-1.log"
        await made.inflict(Fault.FILL)
        assert made.state() == "disk full"
        assert made.pid() != first
        threshold = float(log.read_text().split()[-1])
        disk = os.statvfs(tmp_path)
        assert 0.01 <= threshold < 1 - disk.f_bavail / disk.f_blocks
        await made.inflict(Fault.REVIVE)
        assert made.state() == "running"
        assert log.read_text().split()[-1] == "none"
        assert made.restarts == 2
        assert made.news == []


async def test_partition_is_mended_by_a_revival_and_by_a_kill(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for undo, after in ((Fault.REVIVE, "running"), (Fault.KILL, "ended")):
            await made.inflict(Fault.PARTITION)
            assert (made.state(), made.cut.ports) == ("cut off", {3181})
            await made.inflict(undo)
            assert (made.state(), made.cut.ports) == (after, set())


async def test_obstacle_to_a_partition_is_said_on_the_button(tmp_path: Path) -> None:
    async with world(tmp_path, obstacle="iptables is not installed") as made:
        buttons = made.faults.states()[ONE].buttons
        assert buttons[Fault.PARTITION] == "iptables is not installed"
        with pytest.raises(FaultRefusedError, match="iptables is not installed"):
            await made.inflict(Fault.PARTITION)


async def test_healthy_bookie_has_nothing_to_revive(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for fault in (Fault.REVIVE, Fault.RESUME):
            with pytest.raises(FaultRefusedError):
                await made.inflict(fault)
        with pytest.raises(UnknownBookieError, match="no bookie of this cluster"):
            await made.faults.inflict(BookieId("elsewhere:1"), Fault.KILL)


async def test_bookie_that_ended_by_itself_can_be_revived(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        os.kill(made.pid(), signal.SIGTERM)
        await until(lambda: made.state() == "ended")
        await made.inflict(Fault.REVIVE)
        assert made.state() == "running"


async def test_restart_goes_on_when_the_page_that_asked_is_closed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.inflict(Fault.KILL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.inflict, Fault.REVIVE)
            await until(lambda: made.state() == "starting")
            assert made.available() == set()
            nursery.cancel_scope.cancel()
        await until(lambda: made.state() == "running")
        assert made.restarts == 1


async def test_revival_that_fails_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.inflict(Fault.KILL)
        member = made.faults._members[ONE]
        member.program = replace(member.program, environment=(("SLEEPER_FAILS", "1"),))
        with pytest.raises(FaultRefusedError, match="bookie-1 ended: it cannot be"):
            await made.inflict(Fault.REVIVE)
        assert made.state() == "ended"
        member.program = replace(member.program, environment=())
        await made.inflict(Fault.REVIVE)
        assert made.state() == "running"


def test_packets_are_dropped_until_it_is_mended(tmp_path: Path) -> None:
    """Where the kernel lets us; elsewhere the obstacle is said and nothing is done."""
    cut = PacketCut(tmp_path / "cut-off")
    obstacle = cut.obstacle()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if obstacle is not None:
            with pytest.raises(FaultRefusedError):
                cut.cut(port)
            return
        cut.cut(port)
        try:
            assert not reaches(port)
            assert (tmp_path / "cut-off").read_text() == f"{port}\n"
        finally:
            PacketCut(tmp_path / "cut-off").mend_all()  # as the next start of the cluster does
        assert reaches(port)
        assert not (tmp_path / "cut-off").exists()


def reaches(port: int) -> bool:
    with suppress(TimeoutError), socket.create_connection(("127.0.0.1", port), timeout=0.3):
        return True
    return False
