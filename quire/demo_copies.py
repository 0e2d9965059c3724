"""The stage of the demo in which autorecovery restores what a dead bookie took with it."""

from __future__ import annotations

from typing import Final

import trio

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoverySettings
from autorecovery.core.forecast import Forecast, Progress
from autorecovery.daemon import opened_context
from autorecovery.forecast import look
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from quire.demo_world import DemoError, Stopwatch, World, check, tell
from quire.output import byte_count
from wire.types import BookieId

_LOOK_SECONDS: Final = 0.25
_PATIENCE_SECONDS: Final = 60.0


async def restore_copies(world: World) -> None:
    """Watch the shortage come and go. The work is done by the cluster's own process."""
    if not world.killed:
        raise DemoError("no bookie was killed, so no copy is missing")
    dead = world.killed[0]
    watch = Stopwatch()
    worst = await _watch_forecasts(world, dead)
    lost = byte_count(worst.bytes_left)
    tell(f"bookie {dead} is dead: {worst.ledgers} ledgers lacked copies ({lost});")
    tell(f"all of them were restored within {watch.seconds:.1f} s")
    for written in world.written:
        metadata = await world.client.metadata(written.ledger_id)
        check(not metadata.mentions(dead), f"ledger {metadata.ledger_id} still names {dead}")
    tell(f"no ledger names {dead} any more: three copies of every entry again")


async def _watch_forecasts(world: World, dead: BookieId) -> Forecast:
    """Until nothing is marked and nobody names the dead bookie; the worst that was seen."""
    uri = parse_metadata_uri(world.record.uri)
    worst = Forecast()
    has_told = False
    progress = Progress()
    settings = RecoverySettings(auditor=AuditorConfig(), worker=WorkerConfig())
    async with opened_context(
        lambda: open_store(uri), uri, bookie_id=BookieId("demo"), settings=settings
    ) as context:
        with trio.move_on_after(_PATIENCE_SECONDS):
            while True:
                forecast = (await look(context, progress)).forecast
                if forecast.bytes_left > worst.bytes_left:
                    worst = forecast
                if forecast.seconds_left and not has_told:
                    has_told = True
                    left = byte_count(forecast.bytes_left)
                    tell(f"forecast: {left} to copy, done in {forecast.seconds_left:.1f} s")
                if not forecast.ledgers and not await _named(world, dead):
                    return worst
                await trio.sleep(_LOOK_SECONDS)
    raise DemoError(f"copies are still missing after {_PATIENCE_SECONDS:g} s")


async def _named(world: World, dead: BookieId) -> bool:
    for written in world.written:
        if (await world.client.metadata(written.ledger_id)).mentions(dead):
            return True
    return False
