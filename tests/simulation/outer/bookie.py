"""A bookie's process in the outer ring: its lives, its disk, and what is done to both.

`run_bookie` is the real one. What it finds around itself is of memory: the disk outlives it, the
network and the metadata store are everybody's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from autorecovery.daemon import healing_bookie
from bookie.config import BookieConfig
from bookie.identity import Resolver
from bookie.lifetimes import BookieSettings, BookieShell
from bookie.server import RunningBookie, run_bookie
from bookie.storage.engine import Engine
from bookie.storage.reads import Cold
from bookie.storage.start import Shell, Store
from bookie.storage_config import StorageConfig, UpkeepConfig
from metadata.uri import parse_metadata_uri
from quire import limbo
from runtime.memory_inodes import Keep
from tests.simulation.history import ViolationError
from tests.simulation.outer.drive import JOURNAL, LEDGERS, Drive, Part
from tests.simulation.outer.recovery import recovery_settings
from tests.simulation.outer.tap import WatchedHost, records
from tests.simulation.outer.workers import TimedWorkers
from wire.errors import LedgerError, Status
from wire.scan_v2 import AddBatch, AddMix, AddRun
from wire.types import BookieId, Flag

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld

#: After it ended by itself, as a supervisor would start it again.
RESTART_SECONDS: Final = 1.0


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
        self.drive = Drive(world.chance)
        self.is_up = False
        self.life = 0
        #: Some of its disk, or all of it, and perhaps for good.
        self.has_lost = False
        self.is_gone = False
        self.was_wiped = False  # of everything, in the end
        self.is_half_wiped = False
        self.has_answered_fence = False
        self.acknowledged: set[int] = set()
        self._unsynced: set[int] = set()  # acknowledged from memory, as was asked
        self._engine: Engine | None = None
        self._workers: TimedWorkers | None = None
        self._scope = trio.CancelScope()
        self._wanted = trio.Event()
        self._boot = 1

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
                    await self._run()
            except Exception as error:
                self._on_end(error)
            self._engine = None

    async def _run(self) -> None:
        """As `quire bookie` composes it, with `dataIntegrityChecking` where disks get lost."""
        if self.world.plan.wipes:
            await run_bookie(
                self._settings(),
                self._shell(),
                trio.Event(),
                extensions=[self._healing],
                prepare=limbo.remember_ledgers,
            )
        else:
            await run_bookie(self._settings(), self._shell(), trio.Event())

    @asynccontextmanager
    async def _healing(self, running: RunningBookie) -> AsyncIterator[None]:
        async with healing_bookie(
            recovery_settings(self.world, f"{self.name}.heal"),
            await limbo.RunningLimbo.of(running),
            registry=running.registry,
            network=self.world.network.host(self.host),
        ):
            yield

    def _on_end(self, error: Exception) -> None:
        """It ended by itself, as for want of a disk; or while it was being killed, all the same."""
        for leaf in leaves_of(error):
            if not isinstance(leaf, LedgerError | OSError | trio.ClosedResourceError):
                raise error
        if self.is_up:
            why = "; ".join(str(leaf) for leaf in leaves_of(error))
            self.world.tell(f"{self.name} ends: {why}")
            self._go_down(Keep.ALL, silent=False)
            self.world.later(RESTART_SECONDS, self.restart)

    def restart(self) -> None:
        if not self._wanted.is_set() and not self.is_gone:
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
        self.is_up = False
        self._wanted = trio.Event()
        if self._workers is not None:
            self._workers.die()
        self.drive.crash(keep)
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
                files=self.drive.files,
                open_index=self.drive.indexes.open,
                workers=self._workers,
                clock=trio.current_time,
                now_ms=world.clocks.of(self.name),
                sleep=lambda seconds: None,
                new_store_id=lambda: world.chance.randbytes(16),
                boot_id=f"boot {self._boot}",
            ),
            network=WatchedHost(world.network.host(self.host), self),
            open_metadata=partial(world.store.open, self.name),
            chance=world.chance,
            resolver=_FixedResolver(self.host),
            in_thread=False,
        )

    def _step_seconds(self, name: str) -> float:
        return self.drive.step_seconds(trio.current_time())

    # ------------------------------------------------------------------ what it does, told

    def on_open(self, store: Store) -> None:
        """The journal is replayed; nobody has been served yet. Is all there that it promised?"""
        engine = self._engine = store.engine
        if self.is_half_wiped:
            raise ViolationError("I23", f"{self.name} starts with half of its directories lost")
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
        take_mix, drop, set_limbo = admission.add_mix, engine.drop, engine.set_limbo

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

        def limbo_set(ledger_id: int, on: bool, token: object) -> None:
            set_limbo(ledger_id, on, token)
            if ledger_id == self.world.ledger_id:
                self.world.tell(f"{self.name} {'is in' if on else 'ends its'} limbo")
                if not on:
                    self.world.history.emit("healed", self.name)

        admission.add_mix = mix_taken
        engine.drop = dropped  # type: ignore[method-assign]
        engine.set_limbo = limbo_set  # type: ignore[method-assign]

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
        self.world.faults.on_fence_answered(self)

    # ------------------------------------------------------------------ for the checkers

    @property
    def disk(self) -> BookieProcess:
        return self

    @property
    def is_fenced(self) -> bool:
        """Or will be, as soon as it is back: what it has forgotten comes back in limbo."""
        if self._engine is not None and self._engine.ledger(self.world.ledger_id).fenced:
            return True
        return self.has_answered_fence or self.is_gone or (self.has_lost and self._engine is None)

    @property
    def is_limbo(self) -> bool:
        return self._engine is not None and self._engine.ledger(self.world.ledger_id).limbo

    def holds(self, entry_id: int) -> bool:
        if self._engine is None:
            return entry_id in self.acknowledged
        found = self._engine.read(self.world.ledger_id, entry_id)
        return isinstance(found, bytes | Cold)

    def is_readable(self, entry_id: int) -> bool:
        """Whether what it holds can be read from its disk."""
        if self._engine is None:
            return False
        found = self._engine.read(self.world.ledger_id, entry_id)
        fetched = self._engine.reads.fetch(found) if isinstance(found, Cold) else found
        return isinstance(fetched, bytes)

    # ------------------------------------------------------------------ losses

    def lose(self) -> None:
        self.has_lost = True
        self.world.history.emit("lost", self.name)

    def destroy(self) -> None:
        """Its machine burns down; nobody will ever start it again."""
        self.crash(Keep.NONE, silent=self.world.plan.silent)
        self.world.tell(f"{self.name} is gone for good")
        self.is_gone = True
        self._forget()

    def wipe(self, part: Part) -> None:
        """Its disk is replaced by an empty one, or a part of it is."""
        self.crash(Keep.NONE, silent=self.world.plan.silent)
        self.world.tell(f"{self.name} has lost {part}")
        self.drive.wipe(part)
        self.was_wiped = True
        self.is_half_wiped = part != "everything"
        self._forget()

    def wipe_rest(self) -> None:
        """Somebody has read why it does not start."""
        if self.is_up:  # to be refused once more
            self.crash(Keep.NONE, silent=False)
        self.world.tell(f"all directories of {self.name} are emptied")
        self.drive.wipe("everything")
        self.is_half_wiped = False
        self.restart()

    def _forget(self) -> None:
        self.acknowledged.clear()
        self.has_answered_fence = False
        self.lose()

    def heal(self) -> None:
        self.drive.heal()
        if self._workers is not None:
            self._workers.heal()
        if self.is_half_wiped:
            self.wipe_rest()
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
