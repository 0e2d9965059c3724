"""Random histories of one bookie's storage: requests, faults and crashes, all from one seed.

Every answer is checked against the model at once, everything acknowledged after every start. At the
end faults are lifted, and everything that was asked for must come to its end.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace

from bookie.core.compaction import Rules
from bookie.core.disk_space import Thresholds
from bookie.storage.disk_watch import DiskOptions
from bookie.storage.engine_values import EngineOptions
from bookie.storage.garbage_values import GarbageOptions
from bookie.storage.journal_format import JournalError
from bookie.storage.journal_options import JournalOptions
from bookie.storage.reads import Cold
from bookie.storage.start import StoreOptions
from runtime.memory_files import CAPACITY_BYTES, Fault
from tests.bookie.history_requests import Requests
from tests.bookie.machine import Machine, PowerCut

PAGE = 4096


class History(Requests):
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        engine = EngineOptions(
            generation_bytes=rng.choice((400, 1500, 6000)),
            write_cache_bytes=64 * 1024,
            read_cache_bytes=rng.choice((2000, 64 * 1024)),
            log_bytes=PAGE + rng.choice((500, 3000, 20_000)),
            ledgers_in_memory=5,
            reader_count=rng.choice((1, 2)),
        )
        journal = JournalOptions(
            file_bytes=PAGE * rng.choice((3, 5)), payload_bytes_max=rng.choice((300, 3000))
        )
        garbage = GarbageOptions(
            rules=Rules(minor_threshold=0.5, major_threshold=0.9),
            compaction_bytes_per_second=0,
            scrub_bytes_per_second=0,
            tombstone_seconds=20,
        )
        disks = DiskOptions(
            thresholds=Thresholds(priority_bytes=rng.choice((0, 20_000))),
            check_seconds=5,
            reserve_bytes=rng.choice((0, 0, 12_000)),
        )
        machine = Machine(
            rng.getrandbits(32),
            journals=rng.choice((1, 1, 2)),
            directories=rng.choice((1, 1, 2, 3)),
            options=StoreOptions(engine=engine, journal=journal, garbage=garbage, disks=disks),
        )
        for path in machine.journal_paths + machine.ledger_paths:
            machine.files.mount(path)
        machine.files.is_cached = lambda path, offset, size: rng.random() < 0.7
        super().__init__(rng, machine)
        self.trace: list[str] = []
        self.faults: list[Fault] = []

    def run(self, length: int) -> None:
        rng = self.random
        self.start()
        names = list(WEIGHTS)
        weights = list(WEIGHTS.values())
        for name in rng.choices(names, weights, k=length):
            self._do(name, getattr(self, name))
        self._do("end", self.end)

    def _do(self, name: str, operation: Callable[[], str | None]) -> None:
        self.trace.append(name)
        try:
            detail = operation()
            if detail:
                self.trace[-1] += f" {detail}"
        except PowerCut:
            self.trace.append("  the power went")
            self._crash()
        except JournalError:
            assert self.machine.failures, "the journal failed, and nobody was told"
        if self._gave_up():
            self.trace.append("  the bookie gave up")
            self._crash()

    def _gave_up(self) -> bool:
        failed = any(directory.failed for directory in self.machine.engine.directories)
        return failed or bool(self.machine.failures)

    # Time and work.

    def step(self) -> str:
        count = self.random.choice((1, 3, 8))
        self.machine.step(count)
        return str(count)

    def settle(self) -> None:
        self.machine.settle()

    def checkpoint(self) -> None:
        self.machine.engine.checkpoint()

    def tick(self) -> None:
        self.machine.now += self.random.choice((0.1, 5, 11))
        self.machine.engine.tick()

    # Faults.

    def cut(self) -> str:
        """Power loss, or death of the process, in front of one of the next operations."""
        count = int(self.random.expovariate(1 / 15))
        self.machine.cut_after(count)
        return f"after {count} operations"

    def full(self) -> str:
        """A disk is full, or has room again."""
        machine = self.machine
        path = self.random.choice(machine.journal_paths + machine.ledger_paths)
        space = machine.files.space(path)
        room = self.random.choice((0, 500, 9000, 30_000, CAPACITY_BYTES))
        machine.files.set_capacity(path, space.total_bytes - space.free_bytes + room)
        return f"{path} has {room} bytes of room"

    def index_trouble(self) -> str:
        index = self.random.choice(list(self.machine.opened.values()))
        if self.random.random() < 0.5:
            index.stalls += self.random.randint(1, 5)
            return "stalls"
        index.fails = True
        index.kept_by_reopen = lambda count: self.random.randint(0, count)
        return "fails"

    def log_error(self) -> None:
        """One write or sync of an entry log fails."""
        operation = self.random.choice(("write", "sync", "create", "sync-directory"))
        files = self.machine.files
        self.faults.append(files.fail(operation, path="/disk/ledgers*", error=errno.EIO))  # type: ignore[arg-type]

    def journal_error(self) -> None:
        operation = self.random.choice(("write", "sync"))
        files = self.machine.files
        self.faults.append(files.fail(operation, path="/disk/journal*", error=errno.EIO))  # type: ignore[arg-type]

    # Stops, crashes and starts.

    def _heal(self) -> None:
        for fault in self.faults:
            fault.clear()
        self.faults.clear()
        for path in self.machine.journal_paths + self.machine.ledger_paths:
            self.machine.files.set_capacity(path, CAPACITY_BYTES)
        for index in self.machine.opened.values():
            index.stalls = 0
            index.fails = False

    def crash(self) -> None:
        self._crash()

    def _crash(self) -> None:
        self._die()
        self._died()
        if self.random.random() < 0.1:
            self._add_directory()
        self.start()
        if self.random.random() < 0.2:  # again at once: what was replayed must be durable now
            self.machine.step(self.random.choice((0, 1, 3)))
            self._die()
            self._died()
            self.start()

    def _die(self) -> None:
        power = self.random.random() < 0.6
        self.trace.append(f"  crash, {'power loss' if power else 'process killed'}")
        self.machine.crash(power=power)
        if power:
            for ledger in self.ledgers:
                ledger.lose_power()

    def _died(self) -> None:
        self.waiting.clear()
        self.cold_reads = 0
        self.machine.failures.clear()
        self.machine.keep_power()
        self._heal()

    def _add_directory(self) -> None:
        machine = self.machine
        machine.options = replace(machine.options, allow_expansion=True)
        machine.ledger_paths.append(f"/disk/ledgers{len(machine.ledger_paths)}")
        machine.files.mount(machine.ledger_paths[-1])
        self.trace.append(f"  added {machine.ledger_paths[-1]}")

    def _let_time_pass(self) -> None:
        for _ in range(4):
            self.machine.now += 6
            self.machine.engine.tick()
            self.machine.settle()

    def stop(self) -> None:
        """A clean stop, after which even the list of journals may grow."""
        self._heal()
        self._let_time_pass()
        self.machine.stop()
        assert not self.waiting, "a clean stop left requests without an answer"
        self._died()
        machine = self.machine
        if self.random.random() < 0.3:
            self._add_directory()
            if self.random.random() < 0.3:
                machine.journal_paths.append(f"/disk/journal{len(machine.journal_paths)}")
                machine.files.mount(machine.journal_paths[-1])
        self.start()

    def start(self) -> None:
        while True:
            try:
                if self.random.random() < 0.2:
                    self.machine.cut_after(int(self.random.expovariate(1 / 30)))
                self.machine.start()
                break
            except PowerCut:
                self.trace.append("  died while starting")
                self._die()
        self.machine.keep_power()
        self.trace.append("  started")
        for ledger in self.ledgers:
            found = self.machine.engine.ledger(ledger.id)
            if ledger.dropped and ledger.id in self.forgettable and found.master_key is None:
                ledger.forgotten()
            ledger.restarted(found)
        self.verify()

    def verify(self) -> None:
        """Read everything that was ever written. What is found once stays."""
        for ledger in self.ledgers:
            if not ledger.offered:
                continue
            self._look_for_tombstone(ledger)
            left = sorted(ledger.offered)
            while left:
                found = self.machine.engine.read_run(ledger.id, left)
                cold = []
                for entry_id, entry in zip(left, found, strict=True):
                    if isinstance(entry, Cold):
                        cold.append(entry_id)
                        self._fetch(entry, lambda: None)
                        continue
                    ledger.check_entry(entry_id, entry)
                    if isinstance(entry, bytes):
                        ledger.kept.add(entry_id)
                left = cold
                if left:
                    self.machine.settle()

    def end(self) -> None:
        """Without faults everything comes to its end, and a last life finds all of it."""
        self._heal()
        self.machine.engine.checkpoint()
        self._let_time_pass()
        if self._gave_up():  # its third try met the last of the faults
            self._crash()
            self._let_time_pass()
        assert not self.machine.engine.upkeep.disks.acceptance.read_only, "still read-only"
        assert self.machine.engine.upkeep.is_idle, "garbage collection is stuck"
        assert not self.waiting, f"{len(self.waiting)} requests were never answered"
        assert not self.cold_reads, "reads that were never answered"
        assert self.machine.engine.statistics().generations_waiting == 0, "flushing is stuck"
        self.verify()
        self._crash()
        self.machine.settle()
        self.verify()


WEIGHTS = {
    "add": 30, "fence": 3, "write_lac": 3, "force": 2, "limbo": 1,
    "drop": 2, "collect": 1, "compact": 2, "scrub": 0.5,
    "read": 8, "read_run": 3, "read_batch": 4, "read_lac": 3,
    "step": 20, "settle": 4, "checkpoint": 4, "tick": 4,
    "crash": 2, "cut": 4, "stop": 1, "full": 2, "index_trouble": 1, "log_error": 1,
    "journal_error": 0.3,
}  # fmt: skip
