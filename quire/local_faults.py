"""Real faults for the bookies of a local cluster, inflicted by their parent.

kill       SIGKILL
pause      SIGSTOP, until it is resumed
slow       stopped four fifths of the time, in turns: every answer waits, the session stays
fill       restarted with a disk threshold below what is in use: it finds its disk full
partition  packets between it and its clients are dropped; its session with ZooKeeper stays
revive     whatever was done to it is undone

One fault at a time, so that what one sees has one cause; kill is always possible.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import trio

from quire.console.faults import Fault, FaultRefusedError, ProcessState, UnknownBookieError
from quire.fleet import Fleet
from quire.packet_cut import PacketCut
from quire.processes import Child, Program
from wire.errors import LedgerError
from wire.types import BookieId

_SLOW_STOPPED_SECONDS: Final = 0.2
_SLOW_RUNNING_SECONDS: Final = 0.05
#: Below what is in use by enough that a cleaner disk does not undo the fault.
_FILL_SHARE: Final = 0.5
_THRESHOLD_MIN: Final = 0.01
_THRESHOLDS: Final = ("diskUsageThreshold", "diskUsageWarnThreshold", "diskUsageLwmThreshold")

RUNNING: Final = "running"
ENDED: Final = "ended"
_STATE_OF: Final = {
    Fault.PAUSE: "paused",
    Fault.SLOW: "slow",
    Fault.FILL: "disk full",
    Fault.PARTITION: "cut off",
}


@dataclass(slots=True, eq=False)
class _Member:
    program: Program  # as configured, whatever it runs with at present
    port: int
    fault: Fault | None = None
    #: What is being done to it right now.
    doing: str | None = None
    slowing: trio.CancelScope | None = None


@dataclass(slots=True, eq=False)
class LocalFaults:
    """The panel of `quire up`. `on_restart` hears of a bookie's new process."""

    fleet: Fleet
    nursery: trio.Nursery
    cut: PacketCut
    on_restart: Callable[[], None]
    _members: dict[BookieId, _Member] = field(default_factory=dict)
    _cut_obstacle: str | None = None

    async def open(self, bookies: Mapping[BookieId, Child]) -> None:
        for bookie_id, child in bookies.items():
            port = int(bookie_id.rpartition(":")[2])
            self._members[bookie_id] = _Member(child.program, port)
        self._cut_obstacle = await trio.to_thread.run_sync(self.cut.obstacle)

    # ------------------------------------------------------------------ looking

    def states(self) -> Mapping[BookieId, ProcessState]:
        return {bookie_id: self._state(member) for bookie_id, member in self._members.items()}

    def _state(self, member: _Member) -> ProcessState:
        child = self.fleet.child(member.program.name)
        state = member.doing or self._what_is(member, child)
        return ProcessState(
            state=state,
            pid=child.pid if child.is_running else None,
            buttons={fault: self._reason_against(member, child, fault) for fault in Fault},
        )

    def _what_is(self, member: _Member, child: Child) -> str:
        if not child.is_running:
            return ENDED
        return RUNNING if member.fault is None else _STATE_OF[member.fault]

    def _reason_against(self, member: _Member, child: Child, fault: Fault) -> str | None:
        if member.doing is not None:
            return f"it is {member.doing} just now"
        state = self._what_is(member, child)
        if fault is Fault.REVIVE:
            return "nothing is wrong with it" if state == RUNNING else None
        if not child.is_running:
            return "its process has ended: revive it"
        if fault is Fault.KILL:
            return None
        if fault is Fault.RESUME:
            is_held = member.fault in (Fault.PAUSE, Fault.SLOW)
            return None if is_held else "it is neither paused nor slow"
        if member.fault is not None:
            return f"it is {state}: revive it first"
        if fault is Fault.PARTITION:
            return self._cut_obstacle
        if fault is Fault.FILL and _disk_used(member) * _FILL_SHARE < _THRESHOLD_MIN:
            return "its disk is too empty to count as full"
        return None

    # ------------------------------------------------------------------ doing

    async def inflict(self, bookie_id: BookieId, fault: Fault) -> None:
        member = self._members.get(bookie_id)
        if member is None:
            raise UnknownBookieError(f"{bookie_id} is no bookie of this cluster")
        child = self.fleet.child(member.program.name)
        reason = self._reason_against(member, child, fault)
        if reason is not None:
            raise FaultRefusedError(f"{bookie_id}: {reason}")
        match fault:
            case Fault.KILL:
                await self._doing(member, "dying", partial(self._kill, member, child))
            case Fault.PAUSE:
                child.send(signal.SIGSTOP)
                member.fault = fault
            case Fault.SLOW:
                member.slowing = trio.CancelScope()
                member.fault = fault
                self.nursery.start_soon(_slow_down, child, member.slowing)
            case Fault.FILL:
                await self._doing(member, "filling up", partial(self._fill, member, child))
            case Fault.PARTITION:
                await trio.to_thread.run_sync(self.cut.cut, member.port)
                member.fault = fault
            case Fault.RESUME:
                self._let_run(member, child)
            case Fault.REVIVE:
                await self._doing(member, "starting", partial(self._revive, member, child))

    async def _doing(self, member: _Member, what: str, do: Callable[[], Awaitable[None]]) -> None:
        """In a task of ours: a page that is closed meanwhile does not leave half a restart."""
        done = trio.Event()
        failures: list[LedgerError] = []

        async def work() -> None:
            try:
                await do()
            except LedgerError as error:
                failures.append(error)
            finally:
                member.doing = None
                done.set()

        member.doing = what
        self.nursery.start_soon(work)
        await done.wait()
        if failures:
            raise FaultRefusedError(str(failures[0]))

    async def _kill(self, member: _Member, child: Child) -> None:
        await self._undo(member, child)
        child.send(signal.SIGKILL)
        await child.wait()

    async def _fill(self, member: _Member, child: Child) -> None:
        threshold = f"{max(_THRESHOLD_MIN, _disk_used(member) * _FILL_SHARE):.4f}"
        full = replace(
            member.program, environment=tuple((f"BK_{key}", threshold) for key in _THRESHOLDS)
        )
        await child.stop()
        await self._start(full)
        member.fault = Fault.FILL

    async def _revive(self, member: _Member, child: Child) -> None:
        was_full = member.fault is Fault.FILL
        await self._undo(member, child)
        if was_full and child.is_running:
            await child.stop()
        if not child.is_running:
            await self._start(member.program)

    async def _start(self, program: Program) -> None:
        await self.fleet.start_again(program)
        self.on_restart()

    async def _undo(self, member: _Member, child: Child) -> None:
        self._let_run(member, child)
        if member.fault is Fault.PARTITION:
            await trio.to_thread.run_sync(self.cut.mend, member.port)
        member.fault = None

    def _let_run(self, member: _Member, child: Child) -> None:
        if member.slowing is not None:
            member.slowing.cancel()
            member.slowing = None
        if member.fault in (Fault.PAUSE, Fault.SLOW):
            child.send(signal.SIGCONT)
            member.fault = None


async def _slow_down(child: Child, scope: trio.CancelScope) -> None:
    with scope:
        try:
            while child.is_running:
                child.send(signal.SIGSTOP)
                await trio.sleep(_SLOW_STOPPED_SECONDS)
                child.send(signal.SIGCONT)
                await trio.sleep(_SLOW_RUNNING_SECONDS)
        finally:
            child.send(signal.SIGCONT)


def _disk_used(member: _Member) -> float:
    """As the bookie sees it, of the disk that its folder is on."""
    disk = os.statvfs(member.program.folder)
    return 1 - disk.f_bavail / disk.f_blocks if disk.f_blocks else 1.0
