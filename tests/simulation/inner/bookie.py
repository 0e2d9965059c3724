"""A bookie with one ledger: the real ledger core, and a model of its journal.

What it takes is in memory at once and on disk after a sync; answers wait for that sync. A crash
forgets what was not synced, or keeps the beginning of it, as disks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from bookie.core.ledger import Ledger, Tombstone
from ledger_client.core.commands import OUTCOME_BY_STATUS, Outcome
from wire.errors import Status
from wire.types import NO_ENTRY, BookieId, LedgerId

if TYPE_CHECKING:
    from tests.simulation.inner.world import World

KEY: Final = b"key"
#: A bookie gives up a parked question after this.
PARKED_SECONDS: Final = 1.8


class Entry(NamedTuple):
    payload: str
    lac: int
    length: int  # of the ledger including this entry

    @property
    def is_rotten(self) -> bool:
        return self.payload == "rot"


class Record(NamedTuple):
    """One group of the journal: what it holds, and who waits for it."""

    entries: dict[int, Entry]
    fences: bool
    lac: int
    done: Callable[[], None] | None


class Disk:
    """What survives a crash."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.has_key = False
        self.is_fenced = False
        self.lac = NO_ENTRY
        self.is_limbo = False
        self.is_dropped = False

    def apply(self, record: Record) -> None:
        self.is_dropped = False
        self.has_key = True
        self.entries.update(record.entries)
        self.is_fenced = self.is_fenced or record.fences
        self.lac = max(self.lac, record.lac)


class ModelBookie:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = BookieId(name)
        self.disk = Disk()
        self.is_up = True
        self.is_read_only = False
        self.answers_batches = world.chance.random() < world.plan.batch_share
        self.has_lost = False
        self._held: list[Callable[[], None]] | None = None  # while paused
        self._is_stalled = False
        self._start()

    def _start(self) -> None:
        disk = self.disk
        self.entries = dict(disk.entries)
        self.ledger = Ledger(LedgerId(1), home=0, journal=0, is_new=True)
        self.ledger.master_key = KEY if disk.has_key else None
        self.ledger.fenced = disk.is_fenced
        self.ledger.limbo = disk.is_limbo
        self.ledger.tombstone = Tombstone(0, 0) if disk.is_dropped else None
        for entry in disk.entries.values():
            self.ledger.raise_lac(entry.lac)
        self.ledger.raise_lac(disk.lac)
        self._journal: list[Record] = []
        self._syncing: list[Record] = []
        self.life = getattr(self, "life", 0) + 1
        self._polls: list[tuple[int, Callable[..., None]]] = []

    # ------------------------------------------------------------------ requests

    def take(self, act: Callable[[], None]) -> None:
        if self._held is None:
            act()
        else:
            self._held.append(act)

    def add(
        self,
        entries: dict[int, Entry],
        reply: Callable[..., None],
        *,
        recovery: bool = False,
        deferred: bool = False,
        key: bytes = KEY,
    ) -> None:
        status = Status.OK
        if self.ledger.is_special or self.ledger.master_key != key:
            status = self.ledger.admit_add(key, recovery=recovery)
        if status is Status.OK and self.is_read_only and not recovery:
            status = Status.READ_ONLY
        if status is not Status.OK:
            reply(OUTCOME_BY_STATUS[status], None)
            return
        emit = self.world.history.emit
        self.ledger.master_key = KEY
        self.ledger.tombstone = None
        for entry_id, entry in entries.items():
            self.entries[entry_id] = entry
            self.ledger.raise_lac(entry.lac)
            emit("admitted", self.name, entry_id, recovery)
            emit("lac_stored", self.name, entry.lac)

        def acknowledge() -> None:
            emit("acknowledged", self.name, tuple(entries))
            for ids in self._answers(tuple(entries)):
                reply(Outcome.OK, ids)

        self._log(entries=entries, done=None if deferred else acknowledge)
        if deferred:
            for ids in self._answers(tuple(entries)):
                reply(Outcome.OK, ids)
        self._wake()

    def _answers(self, entry_ids: tuple[int, ...]) -> list[Sequence[int] | None]:
        """One answer for a batch, or one for each entry, as ordinary frames get."""
        return [None] if self.answers_batches else [(entry_id,) for entry_id in entry_ids]

    def force(self, reply: Callable[..., None]) -> None:
        self._log(done=lambda: reply(Outcome.OK))

    def read_lac(self, reply: Callable[..., None], *, fence: bool, key: bytes = KEY) -> None:
        status = self.ledger.admit_fence(key) if fence else Status.OK
        if status is not Status.OK:
            reply(OUTCOME_BY_STATUS[status])
        elif fence:
            self._fence(lambda: self._answer_lac(reply))
        else:
            self._answer_lac(reply)

    def _answer_lac(self, reply: Callable[..., None]) -> None:
        if self.ledger.limbo:
            reply(Outcome.UNKNOWN_STATE, NO_ENTRY)
        elif not self.entries:
            reply(OUTCOME_BY_STATUS[self._deny(None)], NO_ENTRY)
        else:
            reply(Outcome.OK, self.ledger.lac)

    def read(
        self, entry_id: int, reply: Callable[..., None], *, fence: bool = False, key: bytes = KEY
    ) -> None:
        status = self.ledger.admit_fence(key) if fence else Status.OK
        if status is not Status.OK:
            reply(OUTCOME_BY_STATUS[status])
        elif fence:
            self._fence(lambda: self._answer_read(entry_id, reply))
        else:
            self._answer_read(entry_id, reply)

    def _answer_read(self, entry_id: int, reply: Callable[..., None]) -> None:
        entry = self.entries.get(entry_id)
        if entry is None:
            reply(OUTCOME_BY_STATUS[self._deny(entry_id)], None, self.ledger.lac)
        elif entry.is_rotten:
            reply(Outcome.CORRUPT, None, self.ledger.lac)
        else:
            reply(Outcome.OK, entry, self.ledger.lac)

    def read_many(self, entry_ids: range, reply: Callable[..., None]) -> None:
        """The entries from the first on, up to one that cannot be served."""
        good: list[tuple[int, Entry]] = []
        if self.world.plan.generous:
            entry_ids = range(entry_ids.start, entry_ids.stop + 3 * entry_ids.step, entry_ids.step)
        for entry_id in entry_ids:
            entry = self.entries.get(entry_id)
            if entry is None:
                break
            if entry.is_rotten:
                reply(Outcome.CORRUPT, good, self.ledger.lac)
                return
            good.append((entry_id, entry))
        if good:
            reply(Outcome.OK, good, self.ledger.lac)
        else:
            reply(OUTCOME_BY_STATUS[self._deny(entry_ids[0])], good, self.ledger.lac)

    def poll(self, previous: int, reply: Callable[..., None]) -> None:
        """Park the question until there is news, or for a while."""
        if self.ledger.limbo:
            reply(Outcome.UNKNOWN_STATE)
            return
        question = (previous, reply)
        self._polls.append(question)
        self._wake()
        self.world.agenda.after(PARKED_SECONDS, lambda: self._unpark(question))

    def _unpark(self, question: tuple[int, Callable[..., None]]) -> None:
        if question in self._polls:
            self._polls.remove(question)
            question[1](Outcome.OK, self.ledger.lac)

    def write_lac(self, lac: int) -> None:
        if self.ledger.admit_explicit_lac(KEY) is Status.OK:
            self.ledger.master_key = KEY
            self.ledger.raise_lac(lac)
            self.world.history.emit("lac_stored", self.name, lac)
            self._log(lac=lac)
            self._wake()

    def _fence(self, then: Callable[[], None]) -> None:
        """No answer, not even a bad one, before the fence is on disk."""

        def answer() -> None:
            self.world.history.emit("fence_answered", self.name)
            then()

        self.ledger.master_key = self.ledger.master_key or KEY
        self.ledger.fenced = True
        self._log(fences=True, done=answer)

    def _deny(self, entry_id: int | None) -> Status:
        status = self.ledger.absent() if self.entries or self.ledger.limbo else Status.NO_LEDGER
        if status is not Status.UNKNOWN_LEDGER_STATE:
            self.world.history.emit("denied", self.name, entry_id)
        return status

    def _wake(self) -> None:
        polls, self._polls = self._polls, []
        for previous, reply in polls:
            if self.ledger.lac > previous:
                reply(Outcome.OK, self.ledger.lac)
            else:
                self._polls.append((previous, reply))

    # ------------------------------------------------------------------ journal

    def _log(
        self,
        *,
        entries: dict[int, Entry] | None = None,
        fences: bool = False,
        lac: int = NO_ENTRY,
        done: Callable[[], None] | None = None,
    ) -> None:
        self._journal.append(Record(entries or {}, fences, lac, done))
        if not self._syncing:
            self._sync()

    def stall(self) -> None:
        """The disk takes its time: nothing is synced, and nothing acknowledged that waits."""
        self._is_stalled = True

    def go_on(self) -> None:
        self._is_stalled = False
        if self._journal and not self._syncing:
            self._sync()

    def _sync(self) -> None:
        if self._is_stalled:
            return
        self._syncing, self._journal = self._journal, []
        life = self.life
        seconds = 0.001 + 0.004 * self.world.chance.random()
        self.world.agenda.after(seconds, lambda: self._synced(life))

    def _synced(self, life: int) -> None:
        if life != self.life:
            return  # the machine went down before
        records, self._syncing = self._syncing, []
        for record in records:
            self.disk.apply(record)
        for record in records:
            if record.done is not None:
                record.done()
        if self._journal:
            self._sync()

    # ------------------------------------------------------------------ faults

    def crash(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self._held = None
        pending = self._syncing + self._journal
        if self.world.plan.torn:
            for record in pending[: self.world.chance.randrange(len(pending) + 1)]:
                self.disk.apply(record)
        self._start()
        self.world.connection_lost(self.name)

    def restart(self) -> None:
        self.is_up = True

    def pause(self) -> None:
        if self.is_up and self._held is None:
            self._held = []

    def resume(self) -> None:
        held, self._held = self._held or [], None
        for act in held:
            act()

    def wipe(self) -> None:
        """Lose everything, and come back knowing that much."""
        self.crash()
        self.has_lost = True
        self.world.history.emit("lost", self.name)
        self.disk = Disk()
        self.disk.is_limbo = self.disk.is_fenced = True
        self._start()

    def drop(self) -> None:
        """A ledger that needs this bookie no more is deleted, for good as far as it knows.

        The fence stays with the tombstone: a repair may bring the ledger back, and a writer that
        was fenced must not come back with it.
        """
        self.world.history.emit("dropped", self.name)
        fenced, self.disk = self.disk.is_fenced, Disk()
        self.disk.is_dropped, self.disk.is_fenced = True, fenced
        self._start()

    def rot(self) -> None:
        """One entry on disk turns bad."""
        if self.disk.entries:
            entry_id = self.world.chance.choice(sorted(self.disk.entries))
            bad = self.disk.entries[entry_id]._replace(payload="rot")
            self.disk.entries[entry_id] = self.entries[entry_id] = bad
            self.has_lost = True
            self.world.history.emit("lost", self.name)

    def holds(self, entry_id: int, *, durable: bool = True) -> bool:
        entry = (self.disk.entries if durable else self.entries).get(entry_id)
        return entry is not None and not entry.is_rotten
