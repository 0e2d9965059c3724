"""Random histories of one bookie's storage: operations, faults and crashes, all from one seed.

Every answer is checked against the model at once, everything acknowledged after every start. At the
end faults are lifted, and everything that was asked for must come to its end.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from bookie.core.compaction import Kind, Rules
from bookie.core.disk_space import Thresholds
from bookie.storage.disk_watch import DiskOptions
from bookie.storage.engine_values import EngineOptions
from bookie.storage.garbage_values import GarbageOptions, Listing
from bookie.storage.journal_format import JournalError
from bookie.storage.journal_options import JournalOptions
from bookie.storage.reads import Batch, Cold
from bookie.storage.start import StoreOptions
from runtime.memory_files import CAPACITY_BYTES, Fault
from tests.bookie.machine import Machine, PowerCut, add_frames, entries_of, requests
from tests.bookie.model import LedgerModel, Owed, content_of, lac_of
from wire.batch import encode_batch, join_records
from wire.errors import LedgerError, Status
from wire.scan_v2 import AddBatch, AddMix, AddRun
from wire.types import LAST_ENTRY, Flag

PAGE = 4096


class History:
    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
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
        self.machine = Machine(
            rng.getrandbits(32),
            journals=rng.choice((1, 1, 2)),
            directories=rng.choice((1, 1, 2, 3)),
            options=StoreOptions(engine=engine, journal=journal, garbage=garbage, disks=disks),
        )
        for path in self.machine.journal_paths + self.machine.ledger_paths:
            self.machine.files.mount(path)
        self.machine.on_durable = self._answered
        self.machine.files.is_cached = lambda path, offset, size: rng.random() < 0.7
        self.ledgers = [self._ledger(number) for number in range(rng.choice((2, 4, 9)))]
        self.trace: list[str] = []
        self.waiting: set[object] = set()
        self.faults: list[Fault] = []
        self.cold_reads = 0
        self.forgettable: set[int] = set()

    def run(self, length: int) -> None:
        rng = self.random
        self.start()
        names = list(WEIGHTS)
        weights = list(WEIGHTS.values())
        for name in rng.choices(names, weights, k=length):
            self._do(name, getattr(self, name))
        self._do("end", self.end)

    def _ledger(self, number: int) -> LedgerModel:
        ledger_id = number * 7 + self.random.choice((0, 1 << 40))
        length = self.random.choice((20, 20, 20, 20, 0, 5, 33))
        return LedgerModel(ledger_id, bytes((number + at) % 255 + 1 for at in range(length)))

    def _some_ledger(self) -> LedgerModel:
        ledger = self.random.choice(self.ledgers)
        self._look_for_tombstone(ledger)
        return ledger

    def _look_for_tombstone(self, ledger: LedgerModel) -> None:
        if ledger.dropped and self.machine.engine.ledger(ledger.id).tombstone is None:
            assert ledger.id in self.forgettable, f"the tombstone of {ledger.id} is gone"
            ledger.forgotten()

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
        if self.machine.failures or any(d.failed for d in self.machine.engine.directories):
            self.trace.append("  the bookie gave up")
            self._crash()

    def _answered(self, tokens: list[object]) -> None:
        for token in tokens:
            self.waiting.remove(token)
            assert isinstance(token, tuple)
            for owed in token:
                owed.answer()

    def _token(self, *owed: Owed) -> object:
        self.waiting.add(owed)
        return owed

    # Adds.

    def add(self) -> str:
        """One receive buffer: adds of one or several ledgers, by any protocol."""
        token: list[Owed] = []
        told = []
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            ledger = self._some_ledger()
            ways = (self._add_v2, self._add_v3, self._add_batch, self._add_mix)
            told.append(self.random.choice(ways)(ledger, token))
        owed = self._token(*token)
        if not self.machine.engine.commit(owed):
            assert not token
            self.waiting.discard(owed)
        return "; ".join(told)

    def _add_v2(self, ledger: LedgerModel, token: list[Owed]) -> str:
        if len(ledger.key) != 20:
            return self._add_v3(ledger, token)
        ids = self._ids(ledger)
        version = self.random.choice((2, 2, 2, 1, 0))
        flags = self._flags() & ~Flag.DEFERRED_SYNC if version else 0
        key = self._key(ledger)
        bodies = [content_of(ledger.id, entry_id) for entry_id in ids]
        for item in requests(add_frames(bodies, key=key, flags=flags, version=version)):
            assert isinstance(item, AddRun)
            status = self.machine.engine.add_run(item)
            self._added(ledger, status, key, flags, item.entry_ids, token)
        return f"v{version} {ledger.id}/{ids} flags {flags:x}"

    def _add_mix(self, ledger: LedgerModel, token: list[Owed]) -> str:
        """Frames of several ledgers, one after the other: what many writers leave in a buffer."""
        writers = [ledger for ledger in self.ledgers if len(ledger.key) == 20]
        frames, told = b"", []
        for _ in range(self.random.choice((2, 5))):
            if not writers:
                return "-"
            writer = self.random.choice(writers)
            self._look_for_tombstone(writer)
            entry_id = self._ids(writer)[0]
            key = self._key(writer)
            frames += add_frames([content_of(writer.id, entry_id)], key=key)
            told.append((writer, key, entry_id))
        rows = iter(told)
        for item in requests(frames):
            if isinstance(item, AddMix):
                refused = self.machine.engine.add_mix(item)
                statuses = [refused.get(place, Status.OK) for place in range(len(item.entry_ids))]
            else:
                assert isinstance(item, AddRun)
                statuses = [self.machine.engine.add_run(item)] * len(item.entry_ids)
            for status, (writer, key, entry_id) in zip(statuses, rows, strict=False):
                self._added(writer, status, key, 0, [entry_id], token)
        return f"mix {[(writer.id, entry_id) for writer, _, entry_id in told]}"

    def _add_v3(self, ledger: LedgerModel, token: list[Owed]) -> str:
        flags = self._flags()
        key = self._key(ledger)
        [entry_id] = ids = self._ids(ledger)[:1]
        status = self.machine.engine.add_entry(
            ledger.id, entry_id, lac_of(entry_id), key, content_of(ledger.id, entry_id), flags
        )
        self._added(ledger, status, key, flags, ids, token)
        return f"v3 {ledger.id}/{ids} flags {flags:x}: {status.name}"

    def _add_batch(self, ledger: LedgerModel, token: list[Owed]) -> str:
        if len(ledger.key) != 20:
            return self._add_v3(ledger, token)
        flags = self._flags()
        key = self._key(ledger)
        ids = self._ids(ledger)
        frame = encode_batch(
            join_records([content_of(ledger.id, entry_id) for entry_id in ids]),
            request_id=1, ledger_id=ledger.id, first_entry_id=ids[0], last_entry_id=ids[-1],
            count=len(ids), master_key=key, flags=flags,
        )  # fmt: skip
        [item] = requests(frame)
        assert isinstance(item, AddBatch)
        status = self.machine.engine.add_batch(item)
        self._added(ledger, status, key, flags, ids, token)
        return f"batch {ledger.id}/{ids} flags {flags:x}: {status.name}"

    def _added(
        self, ledger: LedgerModel, status: Status, key: bytes, flags: int, ids: Sequence[int],
        token: list[Owed],
    ) -> None:  # fmt: skip
        wanted = ledger.add_status(key, flags)
        taken = self.machine.engine.upkeep.disks.acceptance
        if taken.read_only and not (flags & Flag.HIGH_PRIORITY and taken.accepts_priority):
            wanted = Status.READ_ONLY
        assert status is wanted, f"add to {ledger.id}: {status.name}, should be {wanted.name}"
        if status is Status.OK:
            ledger.added(ids)
            soft = bool(flags & Flag.DEFERRED_SYNC) and not flags & Flag.RECOVERY_ADD
            token.append(Owed(ledger, ids=ids, soft=soft))

    def _ids(self, ledger: LedgerModel) -> list[int]:
        """The next ids of a ledger, now and then with gaps, or ones it has had before."""
        rng = self.random
        top = max(ledger.offered, default=-1)
        first = top + rng.choice((1, 1, 1, 1, 2, 5000))
        if ledger.offered and rng.random() < 0.25:
            first = rng.choice(sorted(ledger.offered))
        stride = rng.choice((1, 1, 1, 2, 3, 700))
        return list(range(first, first + stride * rng.choice((1, 2, 5, 12)), stride))

    def _key(self, ledger: LedgerModel) -> bytes:
        if ledger.key and ledger.key_kept and not ledger.dropped and self.random.random() < 0.05:
            return ledger.key[::-1] + b"!" * (len(ledger.key) == 1)
        return ledger.key

    def _flags(self) -> int:
        return self.random.choice(
            (0, 0, 0, Flag.RECOVERY_ADD, Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY, Flag.DEFERRED_SYNC)
        )

    # State.

    def fence(self) -> str:
        ledger = self._some_ledger()
        token = self._token(Owed(ledger, ids=ledger.accepted, fence=True, key=not ledger.fenced))
        status, wait = self.machine.engine.fence(ledger.id, ledger.key, token)
        if ledger.dropped:
            assert status is Status.NO_LEDGER
        else:
            assert status is Status.OK
            ledger.fenced = ledger.fence_offered = True
        if not wait:
            self.waiting.remove(token)
            assert status is not Status.OK or ledger.fence_kept, "a fence that is not durable"
        return f"{ledger.id}: {status.name}"

    def write_lac(self) -> str:
        ledger = self._some_ledger()
        lac = self.random.choice(sorted(ledger.offered) or [-1])
        body = b"".join(n.to_bytes(8, "big", signed=True) for n in (ledger.id, lac, 0))
        if self.machine.engine.upkeep.disks.acceptance.read_only:
            assert (
                self.machine.engine.write_lac(ledger.id, ledger.key, body, ()) is Status.READ_ONLY
            )
            return "read-only"
        if ledger.dropped:
            token: object = ()
        else:
            number = ledger.explicit.offer(body)
            token = self._token(Owed(ledger, explicit=number))
            ledger.lac_offered = max(ledger.lac_offered, lac)
        status = self.machine.engine.write_lac(ledger.id, ledger.key, body, token)
        assert status is (Status.NO_LEDGER if ledger.dropped else Status.OK)
        return f"{ledger.id}: {lac}"

    def force(self) -> str:
        ledger = self._some_ledger()
        token = self._token(Owed(ledger, ids=ledger.accepted, key=bool(ledger.accepted)))
        self.machine.engine.force(ledger.id, token)
        return str(ledger.id)

    def limbo(self) -> str:
        ledger = self._some_ledger()
        if ledger.dropped:
            return "-"
        on = not ledger.limbo.now
        token = self._token(Owed(ledger, limbo=ledger.limbo.offer(on), fence=on, key=False))
        if on:
            ledger.fenced = ledger.fence_offered = True
        self.machine.engine.set_limbo(ledger.id, on, token)
        return f"{ledger.id}: {on}"

    def drop(self) -> str:
        chosen = self.random.sample(self.ledgers, k=self.random.choice((1, 1, 2)))
        engine = self.machine.engine
        present = [ledger for ledger in chosen if engine.ledger(ledger.id).exists]
        engine.drop([ledger.id for ledger in chosen], int(self.machine.now * 1000))
        for ledger in present:
            ledger.drop()
        return str([ledger.id for ledger in present])

    def collect(self) -> None:
        """What a round of garbage collection does beside asking the metadata."""
        upkeep = self.machine.engine.upkeep

        def listed(found: Listing | LedgerError) -> None:
            if isinstance(found, Listing):
                self.forgettable.update(found.forgettable)
                self.machine.engine.resume_drop(found.unfinished)

        upkeep.list_ledgers(listed)

    def compact(self) -> str:
        kind = self.random.choice(list(Kind))
        self.machine.engine.upkeep.compact(kind)
        return kind.value

    def scrub(self) -> None:
        self.machine.engine.upkeep.scrub(everything=self.random.random() < 0.5)

    # Reads.

    def read(self) -> str:
        ledger = self._some_ledger()
        entry_id = self.random.choice([*sorted(ledger.offered), 0, 3, LAST_ENTRY])
        self._ask(
            lambda: self.machine.engine.read(ledger.id, entry_id),
            lambda found: (
                ledger.check_last(found)
                if entry_id == LAST_ENTRY
                else ledger.check_entry(entry_id, found)
            ),
        )
        return f"{ledger.id}/{entry_id}"

    def read_run(self) -> str:
        ledger = self._some_ledger()
        ids = sorted(ledger.offered)[-20:]
        if self.random.random() < 0.3:
            self.random.shuffle(ids)
        for entry_id, found in zip(ids, self.machine.engine.read_run(ledger.id, ids), strict=True):
            if not isinstance(found, Cold):
                ledger.check_entry(entry_id, found)
            else:
                self._fetch(found, lambda: None)
        return f"{ledger.id}/{ids}"

    def read_batch(self) -> str:
        ledger = self._some_ledger()
        first = self.random.choice([*sorted(ledger.offered), 0])
        count_max = self.random.choice((0, 1, 7))
        bytes_max = self.random.choice((1, 900, 1 << 20))
        self._ask(
            lambda: self.machine.engine.read_batch(
                ledger.id, first, count_max=count_max, bytes_max=bytes_max
            ),
            lambda found: ledger.check_batch(
                first, entries_of(found) if isinstance(found, Batch) else found
            ),
        )
        return f"{ledger.id}/{first}"

    def read_lac(self) -> str:
        ledger = self._some_ledger()
        self._ask(lambda: self.machine.engine.lac(ledger.id), ledger.check_lac)
        return str(ledger.id)

    def _ask(self, ask: Callable[[], object], check: Callable[..., None], tries: int = 20) -> None:
        """Check the answer, now or when what it needs has been fetched."""
        found = ask()
        if not isinstance(found, Cold):
            check(found)
            return
        assert tries, "still cold after twenty fetches"
        self._fetch(found, lambda: self._ask(ask, check, tries - 1))

    def _fetch(self, cold: Cold, then: Callable[[], None]) -> None:
        self.cold_reads += 1

        def fetched() -> None:
            self.cold_reads -= 1
            then()

        self.machine.engine.fetch(cold, fetched)

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
            ledger.restarted(self.machine.engine.ledger(ledger.id))
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
