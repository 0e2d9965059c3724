"""A bookie's process in the outer ring: its lives, its disk, and what is done to both.

`run_bookie` is the real one. What it finds around itself is of memory: the disk outlives it, the
network and the metadata store are everybody's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from bookie.config import BookieConfig
from bookie.identity import Resolver
from bookie.lifetimes import BookieSettings, BookieShell
from bookie.server import run_bookie
from bookie.storage.engine import Engine
from bookie.storage.memory_index import MemoryIndexes
from bookie.storage.reads import Cold
from bookie.storage.start import Shell, Store
from bookie.storage_config import StorageConfig, UpkeepConfig
from metadata.uri import parse_metadata_uri
from runtime.memory_files import Fault, MemoryFileSystem, Operation
from runtime.memory_inodes import Keep
from tests.simulation.history import ViolationError
from tests.simulation.outer.tap import WatchedHost, records
from tests.simulation.outer.workers import TimedWorkers
from wire.errors import LedgerError, Status
from wire.scan_v2 import AddBatch, AddMix, AddRun
from wire.types import BookieId, Flag

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld

JOURNAL: Final = "/disk/journal"
LEDGERS: Final = "/disk/ledgers"
#: After it ended by itself, as a supervisor would start it again.
RESTART_SECONDS: Final = 1.0
CAPACITY_BYTES: Final = 1 << 30


class _FixedResolver(Resolver):
    def __init__(self, address: str) -> None:
        self._address = address

    def host_name(self) -> str:
        return self._address

    def address(self, host: str) -> str:
        return self._address


class BookieProcess:
    def __init__(self, world: OuterWorld, number: int, *, is_v2_only: bool) -> None:
        self.world = world
        self.name = BookieId(f"b{number}")
        self.host = f"10.0.0.{number + 1}"
        self.is_v2_only = is_v2_only
        self.files = MemoryFileSystem(capacity_bytes=CAPACITY_BYTES)
        self.indexes = MemoryIndexes()
        self.is_up = False
        self.life = 0
        self.has_lost = False
        self.has_answered_fence = False
        self.acknowledged: set[int] = set()
        self._unsynced: set[int] = set()  # acknowledged from memory, as was asked
        self.slowness = 1.0  # of its disk
        self.stalled_until = 0.0
        self._engine: Engine | None = None
        self._workers: TimedWorkers | None = None
        self._scope = trio.CancelScope()
        self._wanted = trio.Event()
        self._boot = 1
        self._faults: list[Fault] = []

    # ------------------------------------------------------------------ life

    async def live(self) -> None:
        """One life after the other, for as long as the world stands."""
        while True:
            await self._wanted.wait()
            self.life += 1
            self.is_up = True
            self._scope = trio.CancelScope()
            try:
                with self._scope:
                    await run_bookie(self._settings(), self._shell(), trio.Event())
            except Exception as error:
                self._on_end(error)
            self._engine = None

    def _on_end(self, error: Exception) -> None:
        """It ended by itself, as for want of a disk; or while it was being killed, all the same."""
        for leaf in leaves_of(error):
            if not isinstance(leaf, LedgerError | OSError | trio.ClosedResourceError):
                raise error
        if self.is_up:
            self.world.tell(f"{self.name} ends: {error}")
            self._go_down(Keep.ALL, silent=False)
            self.world.later(RESTART_SECONDS, self.restart)

    def restart(self) -> None:
        if not self._wanted.is_set():
            self.world.tell(f"{self.name} starts")
            self._wanted.set()

    def crash(self, keep: Keep, *, silent: bool) -> None:
        if not self.is_up:
            return
        how = "is killed" if keep is Keep.ALL else f"loses its power, {keep.value} stays"
        self.world.tell(f"{self.name} {how}{', and nobody is told' if silent else ''}")
        self._scope.cancel()
        self._go_down(keep, silent=silent)

    def _go_down(self, keep: Keep, *, silent: bool) -> None:
        chance = self.world.chance
        self.is_up = False
        self._wanted = trio.Event()
        if self._workers is not None:
            self._workers.die()
        self.files.crash(chance, keep=keep)
        self.indexes.crash(lambda pieces: chance.randint(0, pieces))
        self.world.network.crash(self.host, silent=silent)
        self._engine = None
        self._unsynced.clear()
        if keep is not Keep.ALL:
            self._boot += 1

    def _settings(self) -> BookieSettings:
        return BookieSettings(
            bookie=BookieConfig(bookie_id=self.name, advertised_address=self.host),
            storage=StorageConfig(journal_directories=(JOURNAL,), ledger_directories=(LEDGERS,)),
            upkeep=UpkeepConfig(
                reserve_mib=0, disk_check_ms=500, priority_bytes=0, gc_interval_ms=2000,
                over_replicated_ms=1000, scrub_seconds=0,
            ),
            metadata_uri=parse_metadata_uri(f"zk://{self.name}/ledgers"),
        )  # fmt: skip

    def _shell(self) -> BookieShell:
        world = self.world
        self._workers = TimedWorkers(self._step_seconds, lambda: 0.0003 * world.chance.random())
        return BookieShell(
            storage=Shell(
                files=self.files,
                open_index=self.indexes.open,
                workers=self._workers,
                clock=trio.current_time,
                now_ms=lambda: int(trio.current_time() * 1000),
                sleep=lambda seconds: None,
                new_store_id=lambda: world.chance.randbytes(16),
            ),
            network=WatchedHost(world.network.host(self.host), self),
            open_metadata=partial(world.store.open, self.name),
            chance=world.chance,
            resolver=_FixedResolver(self.host),
            in_thread=False,
            boot_id=f"boot {self._boot}",
        )

    def _step_seconds(self, name: str) -> float:
        seconds = 0.002 * self.world.chance.random() * self.slowness
        return max(seconds, self.stalled_until - trio.current_time())

    # ------------------------------------------------------------------ what it does, told

    def on_open(self, store: Store) -> None:
        """The journal is replayed; nobody has been served yet. Is all there that it promised?"""
        engine = self._engine = store.engine
        self._listen_to(engine)
        if self.has_lost:
            return
        for entry_id in sorted(self.acknowledged):
            found = engine.read(self.world.ledger_id, entry_id)
            if found in (Status.NO_ENTRY, Status.NO_LEDGER):
                self.world.history.emit("denied", self.name, entry_id)
            fetched = engine.reads.fetch(found) if isinstance(found, Cold) else found
            if isinstance(fetched, Status | Exception):
                raise ViolationError(
                    "I1", f"{self.name} acknowledged entry {entry_id}, starts again, and: {fetched}"
                )

    def _listen_to(self, engine: Engine) -> None:
        admission: Any = engine._admission

        def listen(name: str, ids_of: Callable[..., tuple[int, list[int], int]]) -> None:
            take = getattr(admission, name)

            def taken(*args: Any) -> Any:
                status = take(*args)
                ledger_id, entry_ids, flags = ids_of(*args)
                if status is Status.OK and ledger_id == self.world.ledger_id:
                    for entry_id in entry_ids:
                        recovery = flags & Flag.RECOVERY_ADD != 0
                        self.world.history.emit("admitted", self.name, entry_id, recovery)
                return status

            setattr(admission, name, taken)

        listen("add_run", _ids_of_run)
        listen("add_batch", _ids_of_batch)
        listen("add_entries", lambda ledger, ids, lac, key, entries, flags: (ledger, ids, flags))
        take_mix, drop = admission.add_mix, engine.drop

        def mix_taken(mix: AddMix) -> dict[int, Status]:
            refused: dict[int, Status] = take_mix(mix)
            for place, ledger_id in enumerate(mix.ledger_ids):
                if place not in refused and ledger_id == self.world.ledger_id:
                    self.world.history.emit("admitted", self.name, mix.entry_ids[place], False)
            return refused

        def dropped(ledger_ids: Any, now_ms: int) -> None:
            if self.world.ledger_id in ledger_ids:
                self.world.tell(f"{self.name} drops the ledger")
                self.acknowledged.clear()
                self.world.history.emit("dropped", self.name)
            drop(ledger_ids, now_ms)

        admission.add_mix = mix_taken
        engine.drop = dropped  # type: ignore[method-assign]

    def on_acknowledged(self, entry_ids: tuple[int, ...], *, deferred: bool) -> None:
        if deferred:
            self._unsynced.update(entry_ids)
            return
        self.acknowledged.update(entry_ids)
        self.world.history.emit("acknowledged", self.name, entry_ids)

    def on_forced(self) -> None:
        """It says that everything it has taken is durable: from now on it has promised that."""
        forced = tuple(sorted(self._unsynced))
        self._unsynced.clear()
        self.on_acknowledged(forced, deferred=False)

    def on_fence_answered(self) -> None:
        self.has_answered_fence = True
        self.world.history.emit("fence_answered", self.name)
        self.world.on_fence_answered(self)

    # ------------------------------------------------------------------ for the checkers

    @property
    def disk(self) -> BookieProcess:
        return self

    @property
    def is_fenced(self) -> bool:
        if self._engine is not None and self._engine.ledger(self.world.ledger_id).fenced:
            return True
        return self.has_answered_fence

    @property
    def is_limbo(self) -> bool:
        return self._engine is not None and self._engine.ledger(self.world.ledger_id).limbo

    def holds(self, entry_id: int) -> bool:
        if self._engine is None:
            return entry_id in self.acknowledged
        found = self._engine.read(self.world.ledger_id, entry_id)
        return isinstance(found, bytes | Cold)

    # ------------------------------------------------------------------ faults of its disk

    def fill_disk(self) -> None:
        space = self.files.space("/")
        self.files.set_capacity("/", space.total_bytes - space.free_bytes + 700)

    def fail_disk(self, journal: bool) -> None:
        path = f"{JOURNAL}/*" if journal else f"{LEDGERS}/*"
        operation: Operation = self.world.chance.choice(("write", "sync"))
        self._faults.append(self.files.fail(operation, path=path, error=errno.EIO))

    def rot(self) -> bool:
        """A byte of an entry log flips; False if there is none yet."""
        logs = [
            path
            for path in _files_below(self.files, LEDGERS)
            if path.endswith(".log") and _size(self.files, path) > 600
        ]
        if not logs:
            return False
        path = self.world.chance.choice(logs)
        offset = self.world.chance.randrange(512, _size(self.files, path))
        self.files.flip(path, offset, mask=1 << self.world.chance.randrange(8))
        self.has_lost = True
        self.world.history.emit("lost", self.name)
        return True

    def heal(self) -> None:
        self.files.set_capacity("/", CAPACITY_BYTES)
        for fault in self._faults:
            fault.clear()
        self.slowness, self.stalled_until = 1.0, 0.0
        self.restart()


def leaves_of(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]
    return [error]


def _ids_of_run(run: AddRun) -> tuple[int, list[int], int]:
    return run.ledger_id, run.entry_ids, run.flags


def _ids_of_batch(batch: AddBatch) -> tuple[int, list[int], int]:
    request = batch.request
    ids = [int.from_bytes(entry[8:16], "big") for entry in records(request.body)]
    return request.ledger_id, ids, Flag.RECOVERY_ADD if request.recovery else 0


def _files_below(files: MemoryFileSystem, path: str) -> list[str]:
    found = []
    for name in files.list_directory(path):
        below = f"{path}/{name}"
        try:
            found += _files_below(files, below)
        except NotADirectoryError:
            found.append(below)
    return found


def _size(files: MemoryFileSystem, path: str) -> int:
    file = files.open(path, read_only=True)
    try:
        return file.size()
    finally:
        file.close()
