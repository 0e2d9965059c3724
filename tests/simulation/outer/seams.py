"""Where the outer ring takes hold of the real code: the few places that open the outside world.

Everything else comes in through the parameters that the shells have for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import trio

import autorecovery.daemon
import autorecovery.integrity
import autorecovery.settings
import bookie.lifetimes
import bookie.server
import ledger_client.client
import runtime.service
from autorecovery.daemon import opened_context as really_opened_context
from bookie.storage.engine_values import EngineOptions
from bookie.storage.journal_options import JournalOptions
from bookie.storage.start import Store, StoreOptions
from bookie.storage.start import open_store as really_open_store
from metadata.service_info import BookieServiceInfo, bookie_service_info
from metadata.store import MetadataStore
from metadata.uri import MetadataUri
from runtime.loop_lag import LoopLag
from tests.simulation.outer.clocks import CLIENTS
from wire.types import BookieId

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld


#: Between two attempts to heal a bookie; half a minute in life, and nothing happens in it.
HEALING_SECONDS: Final = 2.0


@contextlib.contextmanager
def attached(world: OuterWorld) -> Iterator[None]:
    """For as long as the block runs, bookies and clients of this process live in that world."""

    @asynccontextmanager
    async def open_metadata(uri: MetadataUri, **_: object) -> AsyncIterator[MetadataStore]:
        async with world.store.open(uri.servers[0].host) as store:
            yield store

    def open_store(*args: Any, **named: Any) -> Store:
        journals, directories, shell, options, callbacks = args
        process = world.bookie_with(shell.files)
        store = really_open_store(
            journals, directories, shell, _small(options, world), callbacks, **named
        )
        process.on_open(store)
        return store

    def clients_ns() -> int:
        return world.clocks.now_ms(CLIENTS) * 1_000_000

    def announce(*, host: str, **named: Any) -> BookieServiceInfo:
        if world.bookie_at(host).is_v2_only:
            named["properties"] = {}
        return bookie_service_info(host=host, **named)

    def opened_context(*args: Any, bookie_id: BookieId, **named: Any) -> Any:
        return really_opened_context(
            *args,
            bookie_id=bookie_id,
            chance=Random(f"{world.plan.seed} {bookie_id} {world.life_of(bookie_id)}"),
            now_ms=world.clocks.of(bookie_id),
            **named,
        )

    with contextlib.ExitStack() as stack:
        for target, name, stand_in in (
            (ledger_client.client, "open_store", open_metadata),
            (ledger_client.client, "time", SimpleNamespace(time_ns=clients_ns)),
            (autorecovery.settings, "open_store", open_metadata),
            (autorecovery.daemon, "opened_context", opened_context),
            (autorecovery.daemon, "_RESTART_SECONDS", HEALING_SECONDS),
            (autorecovery.integrity, "PASS_SECONDS", HEALING_SECONDS),
            (bookie.lifetimes, "open_store", open_store),
            (bookie.server, "bookie_service_info", announce),
            # Of the process, not of the protocol: measuring the loop, freeing its garbage.
            (bookie.server, "LoopLag", partial(LoopLag, interval_seconds=1000.0)),
            (bookie.server, "collect_when_idle", _sleep),
            # A connection that fails takes nobody along, which is right, and must be told here.
            (runtime.service, "_log", _Witness(world)),
        ):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # the story says it better
        stack.callback(logging.disable, level)
        yield


class _Witness:
    def __init__(self, world: OuterWorld) -> None:
        self._world = world

    def exception(self, message: str, error: Exception, **_: object) -> None:
        self._world.on_bug(error)

    def info(self, message: str, **_: object) -> None:
        """Nobody listens."""

    warning = error = debug = info


async def _sleep(_: object) -> None:
    await trio.sleep_forever()


def _small(options: StoreOptions, world: OuterWorld) -> StoreOptions:
    """Sizes so small that a short history turns every cache and fills every file."""
    engine = EngineOptions(
        generation_bytes=4096,
        write_cache_bytes=64 * 1024,
        read_cache_bytes=64 * 1024,
        log_bytes=16 * 1024,
        ledgers_in_memory=2,
        reader_count=1,
        flush_interval_seconds=world.plan.flush_seconds,
        journal_pending_bytes=world.plan.pending_bytes,
    )
    return replace(options, engine=engine, journal=JournalOptions(file_bytes=16 * 1024))
