"""The metadata store of the outer ring: the tree of memory, its faults, and who changed the record.

Every process has a connection of its own, with a session that outlives it by a while if it dies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from metadata.codec import decode_ledger_metadata
from metadata.faults import Fault, Outcome, Request
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.memory_tree import Znode
from metadata.model import LedgerMetadata
from metadata.paths import ClusterPaths
from metadata.records import decode_mark
from metadata.store import ANY_VERSION, SessionId
from tests.simulation.outer.clocks import STORE
from tests.simulation.outer.registrations import Registrations
from wire.types import BookieId

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld

SESSION_SECONDS: Final = 4.0


class WatchedMetadata:
    def __init__(self, world: OuterWorld, root: str) -> None:
        self._world = world
        self.memory = MemoryMetadata(now_ms=world.clocks.of(STORE))
        self.registrations = Registrations(root)
        self.metadata: LedgerMetadata  # of the ledger that all is about
        self.connections: dict[str, MemoryStore] = {}
        self._path: str | None = None
        self._data = b""
        self._paths = ClusterPaths(root)
        self._mark_path = ""
        self._mark: _SeenMark | None = None
        self._lock_owner: SessionId | None = None
        self._requester = "nobody"
        self._publish = self.memory.publish
        self.memory.publish = self._look_and_publish  # type: ignore[method-assign]

    def follow(self, path: str) -> None:
        """From now on this is the record that the history is about."""
        self._path = path
        self._mark_path = self._paths.mark(self._world.ledger_id)
        self._data = self.memory.tree.get(path).data
        self.metadata = decode_ledger_metadata(self._data, ledger_id=self._world.ledger_id)

    @property
    def is_marked(self) -> bool:
        return self._mark is not None

    def _look_and_publish(self) -> None:
        self.registrations.look(self.memory.tree)
        self._look_at_record()
        if self._path is not None:
            self._look_at_mark(self.memory.tree.find(self._mark_path))
            lock = self.memory.tree.find(self._paths.lock(self._world.ledger_id))
            if lock is not None and lock.owner != self._lock_owner:
                self._world.faults.on_locked(self._requester)
            self._lock_owner = None if lock is None else lock.owner
        self._publish()

    def holds_lock(self, name: str) -> bool:
        """Whether the ledger's lock was that process's before what is just being done."""
        session = self.connections[name].session
        return session is not None and session == self._lock_owner

    def _look_at_mark(self, znode: Znode | None) -> None:
        seen = self._mark
        if znode is None:
            self._mark = None
            if seen is not None:
                self._world.tell(f"{self._requester} deletes the mark of {' '.join(seen.replicas)}")
                self._world.history.emit(
                    "mark_deleted", self._requester, seen.replicas, seen.written
                )
        elif seen is None or seen.znode is not znode or seen.version != znode.version:
            replicas = decode_mark(znode.data, path=self._mark_path).replicas
            self._mark = _SeenMark(znode, znode.version, replicas, trio.current_time())
            self._world.tell(f"{self._requester} marks the ledger for {' '.join(replicas)}")

    def _look_at_record(self) -> None:
        znode = None if self._path is None else self.memory.tree.find(self._path)
        if znode is not None and znode.data != self._data:
            before = self.metadata
            self._data = znode.data
            after = self.metadata = decode_ledger_metadata(
                znode.data, ledger_id=self._world.ledger_id
            )
            ensembles = [
                f"{fragment.first_entry_id}: {' '.join(fragment.ensemble)}"
                for fragment in after.fragments
            ]
            self._world.tell(
                f"{self._requester} records {after.state.name}, end {after.last_entry_id}, "
                f"{'; '.join(ensembles)}"
            )
            self._world.history.emit("recorded", self._requester, before, after)

    # ------------------------------------------------------------------ connections

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[MemoryStore]:
        """A process's connection; if the process dies, its session ends only some time later."""
        store = self.memory.connect(partial(self._fault, name, self._world.life_of(name)))
        self.connections[name] = store
        try:
            yield store
        finally:
            if self._world.is_dead(name):
                self._world.later(SESSION_SECONDS, partial(self._expire, store))
            else:
                with trio.CancelScope(shield=True):
                    await store.close()

    def _expire(self, store: MemoryStore) -> None:
        if store.session is not None:
            self.memory.expire(store.session)

    def expire_one(self, name: str) -> None:
        store = self.connections.get(name)
        if store is not None and store.session is not None:
            self.memory.expire(store.session, silently=self._world.chance.random() < 0.5)

    def _fault(self, name: str, life: int, request: Request) -> Fault:
        world, plan, chance = self._world, self._world.plan, self._world.chance
        if world.is_dead(name) or world.life_of(name) != life:
            return Fault(outcome=Outcome.UNAVAILABLE)
        meanwhile = partial(self._note, name)
        if world.has_faults and request.writes and chance.random() < plan.conflicts:
            meanwhile = partial(self._write_before, name, request.path)
        if not world.has_faults:
            return Fault(meanwhile=meanwhile)
        seconds = 0.002 * chance.random()
        answer_seconds = 0.002 * chance.random()
        if chance.random() < plan.store_delays:
            seconds += chance.random()
        outcome = Outcome.ANSWERED
        if chance.random() < plan.store_faults:
            outcome = chance.choice(
                (Outcome.ANSWER_LOST, Outcome.REQUEST_LOST, Outcome.UNAVAILABLE)
            )
        if not request.writes and chance.random() < plan.stale_reads:
            self.connections[name].lag()
            world.later(chance.random(), self.connections[name].catch_up)
        watch_seconds = 2 * chance.random() if chance.random() < plan.late_watches else 0.0
        return Fault(
            outcome=outcome,
            meanwhile=meanwhile,
            request_seconds=seconds,
            answer_seconds=answer_seconds,
            watch_seconds=watch_seconds,
        )

    def _note(self, name: str) -> None:
        self._requester = name

    def _write_before(self, name: str, path: str) -> None:
        """Somebody else's write comes first: whoever goes by the version has to look again."""
        znode = self.memory.tree.find(path)
        if znode is not None and znode.owner is None:
            self._note("somebody")
            self._world.tell(f"{path} is written before {name} writes it")
            self.memory.tree.set(path, znode.data, ANY_VERSION)
            self.memory.publish()
        self._note(name)


class _SeenMark(NamedTuple):
    znode: Znode
    version: int
    replicas: tuple[BookieId, ...]
    written: float
