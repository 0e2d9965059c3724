"""What a history asks of a bookie's storage, and how it checks the answers against the model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bookie.core.compaction import Kind
from bookie.storage.garbage_values import Listing
from bookie.storage.reads import Batch, Cold
from tests.bookie.machine import Machine, add_frames, entries_of, requests
from tests.bookie.model import LedgerModel, Owed, content_of, lac_of
from wire.batch import encode_batch, join_records
from wire.errors import LedgerError, Status
from wire.scan_v2 import AddBatch, AddMix, AddRun
from wire.types import LAST_ENTRY, Flag


class Requests:
    """Every public method is one request; what it returns is for the story."""

    def __init__(self, rng: random.Random, machine: Machine) -> None:
        self.random = rng
        self.machine = machine
        machine.on_durable = self._answered
        self.ledgers = [self._ledger(number) for number in range(rng.choice((2, 4, 9)))]
        self.waiting: set[object] = set()  # tokens that have not come back yet
        self.cold_reads = 0
        self.forgettable: set[int] = set()  # ledgers that a listing called so

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

    def _add_v3(self, ledger: LedgerModel, token: list[Owed], flags: int | None = None) -> str:
        flags = self._flags() if flags is None else flags
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
        """Make deferred entries durable, as often as not ones that nothing else would sync."""
        ledger = self._some_ledger()
        if self.random.random() < 0.5:
            owed: list[Owed] = []
            self._add_v3(ledger, owed, flags=int(Flag.DEFERRED_SYNC))
            if owed:
                self.machine.engine.commit(self._token(*owed))
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
