"""`quire demo`: the main job, end to end, on this machine, with figures.

The stages are a table; to add one is to write a function and add a row.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from ledger_client import LedgerClient
from quire.cluster_folder import ClusterFolder
from quire.demo_copies import restore_copies
from quire.demo_spark import count_with_spark
from quire.demo_stages import (
    append_entries,
    fence_and_recover,
    kill_a_bookie_under_load,
    tail_from_a_second_process,
    verify_everything,
)
from quire.demo_world import DemoError, Stopwatch, World, check, tell
from quire.output import say
from quire.processes import Child, Lifeline, Program, is_alive
from runtime import logs
from runtime.service import signals_into

BOOKIES: Final = 4
_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class Stage:
    title: str
    run: Callable[[World], Awaitable[None]]


STAGES: Final = (
    Stage("append", append_entries),
    Stage("tail from a second process", tail_from_a_second_process),
    Stage("kill a bookie under load", kill_a_bookie_under_load),
    Stage("autorecovery restores the lost copies", restore_copies),
    Stage("fence and recover from another client", fence_and_recover),
    Stage("a Spark job reads the ledgers as a DataFrame", count_with_spark),
    Stage("verify everything", verify_everything),
)


@click.command(epilog="Example: quire demo --entries 10000")
@click.option(
    "--entries",
    type=click.IntRange(1000, 10_000_000),
    default=100_000,
    show_default=True,
    help="How many entries the first stage appends; the others take a part of it.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    help="Keep the data here; without it a temporary folder is used and removed.",
)
def demo(entries: int, folder: Path | None) -> None:
    """Start a cluster, show what it can do, verify everything, stop it."""
    logs.configure("error")
    place = Path(tempfile.mkdtemp(prefix="quire-demo-")) if folder is None else folder
    # After a failure the folder stays: the error names the logs in it.
    trio.run(partial(_demo, place, entries))
    if folder is None:
        shutil.rmtree(place)


async def _demo(folder: Path, entries: int) -> None:
    stop = trio.Event()
    watch = Stopwatch()
    with signals_into(stop):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give_up, stop)
            await _show(folder, entries)
            nursery.cancel_scope.cancel()
    say(f"done in {watch.seconds:.0f} s: everything was verified, nothing is left running")


async def _give_up(stop: trio.Event) -> None:
    with trio.move_on_after(_SECONDS_MAX):
        await stop.wait()
        raise DemoError("stopped before its end")
    raise DemoError(f"not done after {_SECONDS_MAX:g} s: this machine is too slow, or busy")


async def _show(folder: Path, entries: int) -> None:
    data = ClusterFolder(folder / "cluster")
    up = Program(
        name="up",
        folder=folder,
        module="quire",
        arguments=("up", "--dir", str(data.path), "--bookies", str(BOOKIES), "--autorecovery"),
    )
    say(f"0. quire {' '.join(up.arguments)}")
    watch = Stopwatch()
    with Lifeline() as lifeline:
        cluster = Child(up, lifeline)
        try:
            await cluster.wait_ready()
            record = data.read_record()
            tell(
                f"ZooKeeper, {BOOKIES} bookies and autorecovery: ready after {watch.seconds:.1f} s"
            )
            async with LedgerClient(record.uri) as client:
                world = World(record=record, client=client, lifeline=lifeline, entries=entries)
                for number, stage in enumerate(STAGES, start=1):
                    say(f"{number}. {stage.title}")
                    await stage.run(world)
        finally:
            with trio.CancelScope(shield=True):
                await cluster.stop()
                cluster.close()
    check(cluster.process.returncode == 0, cluster.last_words())
    check(not any(is_alive(bookie.pid) for bookie in record.bookies), "a bookie is left running")
