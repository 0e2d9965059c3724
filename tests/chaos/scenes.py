"""Rows of the fault catalogue that chance would hardly meet, as faults with their own script."""

from __future__ import annotations

import itertools
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import trio

from ledger_client import FencedError, LedgerClient, LedgerClosedError
from tests.chaos.cluster import SESSION_SECONDS, Bookie
from tests.chaos.fault import Fault, bring_up
from tests.chaos.healing import opened_judge
from tests.chaos.network import Cut
from tests.chaos.processes import Process
from tests.chaos.writers import PASSWORD
from wire.errors import LedgerError

_MARK_SECONDS: Final = 30.0
_SLEEPERS: Final = itertools.count(1)


@dataclass(slots=True)
class FenceThenPower(Fault):
    """F22: a ledger without entries is fenced, and the power goes at once; its writer wakes up.

    The fence is all that its bookies know of the ledger, and it is in their journals alone.
    """

    def inject(self) -> None:
        self.kind = "power cut right after a fence"
        self.seconds = 0.5
        trio.run(self._play)

    def lift(self) -> None:
        for bookie in self.cluster.bookies:
            bring_up(bookie)

    async def _play(self) -> None:
        uri = self.cluster.uri
        async with LedgerClient(uri) as writing, LedgerClient(uri) as other:
            ledger = await writing.create(
                ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD
            )
            await other.open(ledger.id, password=PASSWORD)
            ensemble = ledger.metadata.fragments[0].ensemble
            struck = [one for one in self.cluster.bookies if one.bookie_id in ensemble]
            self.targets = tuple(bookie.name for bookie in struck)
            for bookie in struck:
                bookie.kill()
            await trio.to_thread.run_sync(_bring_up_all, struck)
            try:
                with trio.fail_after(120.0):
                    await ledger.append(b"late")
            except (FencedError, LedgerClosedError) as error:
                self.told = f"the writer got {type(error).__name__}"
                return
        raise RuntimeError(f"ledger {ledger.id} took an entry after it was closed")


def _bring_up_all(bookies: list[Bookie]) -> None:
    with ThreadPoolExecutor(len(bookies)) as threads:
        list(threads.map(bring_up, bookies))


@dataclass(slots=True)
class Sleeper(Fault):
    """F19: a writer whose last adds reached one bookie is stopped; the ledger is closed; it wakes.

    Whatever it still sends must be refused: nothing above the end may be confirmed to it.
    """

    def inject(self) -> None:
        self.kind = "a writer that slept through its recovery"
        self.seconds = 0.1
        network = self.cluster.network
        name = f"sleeper{next(_SLEEPERS)}"
        network.add_host(name)
        self.targets = (name,)
        writer = Process(name, self.cluster.folder / name, network)
        module = ("tests.chaos.sleeper", self.cluster.uri, "--ready-fd", "{ready}")
        if not writer.start(writer.python(*module)):
            raise RuntimeError(f"the writer did not start: {writer.last_words()}")
        try:
            self.told = self._play(writer)
        finally:
            writer.kill()

    def lift(self) -> None:
        pass

    def _play(self, writer: Process) -> str:
        head = _told_by(writer)[0]
        ledger_id, ensemble = head["ledger"], head["ensemble"]
        cut = [one.name for one in self.cluster.bookies if one.bookie_id in ensemble[1:]]
        for name in cut:
            self.cluster.network.cut(writer.name, name, Cut.SILENT)
        time.sleep(1.0)  # an add is under way now that one bookie of three gets
        writer.signal(signal.SIGSTOP)
        writer.wait_stopped()
        for name in cut:
            self.cluster.network.mend(writer.name, name)
        end = trio.run(_recovered_end, self.cluster.uri, ledger_id)
        writer.signal(signal.SIGCONT)
        deadline = time.monotonic() + 300.0
        while not any("refused" in line for line in _told_by(writer)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the writer of ledger {ledger_id} was never refused")
            time.sleep(0.2)
        lines = _told_by(writer)
        confirmed = max((line["confirmed"] for line in lines if "confirmed" in line), default=2)
        if confirmed > end:
            raise RuntimeError(f"ledger {ledger_id} ends at {end}, {confirmed} was confirmed")
        return f"confirmed up to {confirmed}, closed at {end}, then {lines[-1]['refused']}"


def _told_by(writer: Process) -> list[dict[str, Any]]:
    lines = writer.log_path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


async def _recovered_end(uri: str, ledger_id: int) -> int:
    async with LedgerClient(uri) as client:
        return (await client.open(ledger_id, password=PASSWORD)).last_confirmed


@dataclass(slots=True)
class KillWorkers(Fault):
    """F45, F42: autorecovery is killed again and again while it restores copies."""

    def inject(self) -> None:
        self.kind = "kill -9 of autorecovery while it copies"
        self.seconds = 1.0
        bookie = self.pick_bookie()
        bookie.kill()
        kills = 0
        for _ in range(3):
            self._wait_marks()
            time.sleep(self.chance.uniform(0.0, 0.7))
            for one in self.cluster.autorecoveries:
                one.kill()
            for one in self.cluster.autorecoveries:
                assert one.begin(), f"{one.name} does not start: {one.last_words()}"
            kills += 1
        self.told = f"{kills} times, while {bookie.name} was away"

    def lift(self) -> None:
        for bookie in self.cluster.bookies:
            bring_up(bookie)

    def _wait_marks(self) -> None:
        """Until something is marked; if all is restored by now there is nothing to wait for."""
        deadline = time.monotonic() + _MARK_SECONDS
        while time.monotonic() < deadline:
            try:
                if trio.run(_marked, self.cluster.uri):
                    return
            except LedgerError:
                pass
            time.sleep(0.2)


async def _marked(uri: str) -> bool:
    async with opened_judge(uri) as context:
        return bool(await context.marks.marked())


@dataclass(slots=True)
class AddDirectory(Fault):
    """F67: a bookie with data gets another ledger directory, and finds everything as before."""

    def inject(self) -> None:
        self.kind = "another ledger directory"
        self.seconds = 0.2
        bookie = self.pick_bookie()
        bookie.stop()
        new = bookie.disk / f"ledgers-{len(bookie.directories) + 1}"
        listed = ",".join(map(str, [*bookie.directories, new]))
        bookie.settings["ledgerDirectories"] = listed
        if not bookie.begin(allowStorageExpansion="true"):
            raise RuntimeError(f"{bookie.name} took no new directory: {bookie.last_words()}")
        time.sleep(SESSION_SECONDS / 2)
        bookie.kill()

    def lift(self) -> None:
        for bookie in self.cluster.bookies:
            self.told += bring_up(bookie)
