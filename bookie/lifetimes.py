"""The parts of a bookie that have a life: storage, connections, registration; and what time brings.

Each is a context manager: the block is the time that the part is there, and leaving it ends the
part properly. Leaving by an error, a cancel included, counts as a crash and skips that.
"""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import trio

from bookie.authentication import BookieSecurity
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.identity import Resolver
from bookie.last_session import LastSession
from bookie.mode import Mode
from bookie.storage.disk_watch import Acceptance
from bookie.storage.engine_values import EngineCallbacks
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.start import Shell, Store, open_store
from bookie.storage.store_files import StoreError
from bookie.storage_config import StorageConfig, UpkeepConfig, store_options
from metadata.registration import Registration
from metadata.store import MetadataStore
from metadata.uri import MetadataUri
from runtime import logs
from runtime.service import background, serving
from runtime.sockets import Listener, Network

TICK_SECONDS: Final = 1.0
SWEEP_TICKS: Final = 5
#: Connections get this long to finish when the bookie stops.
GRACE_SECONDS: Final = 10.0
#: The last checkpoint gets this long; the journal has everything if it does not make it.
CLOSE_SECONDS: Final = 120.0
UNREGISTER_SECONDS: Final = 5.0
#: Dropped entries are freed in steps, this many and then a nap: freeing all at once stalls.
_FREE_STEPS: Final = 8
_FREE_NAP_SECONDS: Final = 0.001
#: Fewer requests than this since the last look is idle enough for the cyclic collector.
_IDLE_REQUESTS: Final = 1000
_IDLE_SECONDS: Final = 5.0
_BUSY_LOOKS_MAX: Final = 60
#: Connections that may have ended since the last time; each leaves some ten KiB.
_ENDED_MAX: Final = 200

_log = logs.get("bookie.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings:
    """Everything that an operator decides."""

    bookie: BookieConfig
    storage: StorageConfig
    upkeep: UpkeepConfig
    metadata_uri: MetadataUri
    latency_window_seconds: float = 60.0
    security: BookieSecurity = field(default_factory=BookieSecurity)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieShell:
    """The world around a bookie; the simulator has another one."""

    storage: Shell
    network: Network
    open_metadata: Callable[[], AbstractAsyncContextManager[MetadataStore]]
    chance: random.Random
    resolver: Resolver
    #: Replay in a thread, so that signals and logs go on meanwhile.
    in_thread: bool = True


class Fatal:
    """The first error that ends the bookie at once, without courtesies."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            _log.error("the bookie cannot go on", error=error)
        self.scope.cancel()


# ---------------------------------------------------------------------- parts with a life


@asynccontextmanager
async def opened_storage(
    settings: BookieSettings,
    shell: BookieShell,
    bookie: Bookie,
    mode: Mode,
    fatal: Fatal,
    *,
    has_lost: bool = False,
) -> AsyncIterator[Store]:
    """Replay, then run the storage threads; at the end a checkpoint of everything."""
    freeing = trio.Event()

    def on_checkpoint(number: int) -> None:
        nonlocal freeing
        bookie.on_checkpoint(number)
        freeing.set()

    def on_trouble(directory: LedgerDirectory, error: Exception | None) -> None:
        if directory.failed:
            fatal.fail(StoreError(f"{directory.path} cannot be written: {error}; check the disk"))

    def on_acceptance(acceptance: Acceptance) -> None:
        mode.on_acceptance(acceptance)
        if acceptance.read_only and not settings.bookie.read_only_allowed:
            fatal.fail(StoreError(f"{acceptance.reason}, and readOnlyModeEnabled is false"))

    def on_damage(directory: int, run: IndexedRun, error: Exception) -> None:
        bookie.on_damage(directory, run, error)
        mode.on_damage(len(bookie.damaged))

    async def free_forever() -> None:
        nonlocal freeing
        while True:
            await freeing.wait()
            freeing = trio.Event()
            more = True
            while more:
                more = _free_some(store)
                await trio.sleep(_FREE_NAP_SECONDS)

    open_it = partial(
        open_store,
        settings.storage.journals,
        settings.storage.ledger_directories,
        shell.storage,
        replace(store_options(settings.storage, settings.upkeep), has_lost=has_lost),
        EngineCallbacks(
            on_durable=bookie.on_durable,
            on_news=bookie.on_news,
            on_trouble=on_trouble,
            on_damage=on_damage,
            on_acceptance=on_acceptance,
            on_journal_write=bookie.metrics.journal_wrote,
            on_checkpoint=on_checkpoint,
        ),
        on_journal_failure=fatal.fail,
    )
    store = await trio.to_thread.run_sync(open_it) if shell.in_thread else open_it()
    replayed = store.replayed
    _log.info("storage is open", entries_replayed=replayed.entries, seconds=replayed.seconds)
    bookie.open(store.engine)
    mode.on_change = bookie.on_mode
    mode.open(store.engine)
    workers = shell.storage.workers
    try:
        async with trio.open_nursery() as nursery:
            for task in (workers.run, free_forever, partial(_tick_forever, bookie)):
                nursery.start_soon(task)
            yield store
            await _close_engine(store)
            nursery.cancel_scope.cancel()
    except BaseException:
        workers.stop()
        store.abandon()
        raise
    workers.stop()
    store.finish_close()
    _log.info("storage is closed")


def _free_some(store: Store) -> bool:
    """Free what was dropped, a few steps of it; whether there is more."""
    return all(store.engine.free_some() for _ in range(_FREE_STEPS))


async def _close_engine(store: Store) -> None:
    closed = trio.Event()
    store.engine.close(closed.set)
    with trio.move_on_after(CLOSE_SECONDS):
        await closed.wait()
        return
    raise StoreError(
        f"the last checkpoint did not end within {CLOSE_SECONDS:g} s; nothing is lost, the next "
        "start replays the journal"
    )


@asynccontextmanager
async def served(bookie: Bookie, listener: Listener) -> AsyncIterator[None]:
    async with serving(
        bookie.serve,
        listener,
        grace_seconds=GRACE_SECONDS,
        address_max=bookie.options.address_connections_max,
    ):
        yield
        bookie.stop_serving()


@asynccontextmanager
async def registered(
    registration: Registration, mode: Mode, metadata: MetadataStore, last_session: LastSession
) -> AsyncIterator[None]:
    """In the list of the mode for as long as the block runs, session expiry or not."""
    await last_session.end(metadata)
    async with background(partial(last_session.remember, metadata)):
        await registration.register(mode.registered)
        async with background(registration.keep), background(partial(mode.follow, registration)):
            yield
            with trio.move_on_after(UNREGISTER_SECONDS) as scope:
                await registration.unregister()
            if scope.cancelled_caught:
                _log.warning("could not unregister in time; the session ends with the process")


# ---------------------------------------------------------------------- what time brings


async def _tick_forever(bookie: Bookie) -> None:
    ticks = 0
    while True:
        await trio.sleep(TICK_SECONDS)
        bookie.engine.tick()
        ticks += 1
        if ticks % SWEEP_TICKS == 0:
            bookie.sweep()


async def collect_when_idle(bookie: Bookie) -> None:
    """Run the cyclic collector while nobody would notice; after a long busy time, run it anyway.

    It does nothing by itself in a bookie: its pauses grow with the number of ledgers in memory.
    What connections leave behind is cyclic, so many of them that came and went are no time to wait.
    """
    looks = last = ended = 0
    while True:
        await trio.sleep(_IDLE_SECONDS)
        found = bookie.engine.statistics()
        requests = found.entries_added + found.entries_read
        looks += 1
        is_idle = requests - last < _IDLE_REQUESTS
        if is_idle or looks >= _BUSY_LOOKS_MAX or bookie.connections_ended - ended >= _ENDED_MAX:
            gc.collect(2 if is_idle else 1)
            looks, ended = 0, bookie.connections_ended
        last = requests
