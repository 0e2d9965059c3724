"""How fast lost copies come back, what that costs the writers, how much memory it takes.

    python -m bench.recovery [--quick] [--only NAMES] [--apache] [--json F]

Four of our bookies, an embedded ZooKeeper, and an autorecovery process with default settings: ours,
and with `--apache` also Apache's 4.18.0, one after the other on the same cluster. A bookie is
killed once its ledgers are written, and the clock runs from the first mark to the last.

| name | question |
|---|---|
| large | bytes per second of a few large ledgers |
| small | ledgers per second of very many small ones |
| live | p99 of a writer at half load, with and without re-replication |
| scan | reading the records of very many ledgers |
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.daemon import opened_context
from autorecovery.ledger_scan import LedgerScan
from bench.disk_stalls import watched
from bench.peers.cluster import PeerCluster, peer_cluster
from bench.peers.process import OurBookie
from bench.planted_records import plant_records
from bench.recovery_live import (
    BATCH,
    PASSWORD,
    Figures,
    Took,
    Turns,
    append,
    as_text,
    figures_of,
)
from bench.recovery_process import AutorecoveryProcess, autorecovery
from ledger_client import LedgerClient
from ledger_client.core.commands import Outcome
from ledger_client.environment import Access
from ledger_client.requests import Adds, Mailbox
from metadata.connect import open_store
from metadata.model import Fragment, LedgerMetadata, LedgerState
from metadata.paths import ClusterPaths
from metadata.store import NoNodeError
from metadata.uri import parse_metadata_uri
from wire.entry import encode_records
from wire.types import BookieId, DigestType, LedgerId

_POLL_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 3600.0
#: Ledgers are planted so many at a time.
_AT_ONCE: Final = 64
_SMALL_FIRST_ID: Final = 1_000_000


@dataclass(frozen=True)
class Sizes:
    large_ledgers: int
    large_mib: int
    small_ledgers: int
    scanned_ledgers: int
    live_ledgers: int
    live_mib: int
    live_seconds: float


FULL: Final = Sizes(11, 1024, 10_000, 100_000, 192, 1536, 10.0)
QUICK: Final = Sizes(11, 256, 2000, 10_000, 64, 512, 5.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="large,small,live,scan")
    parser.add_argument("--apache", action="store_true", help="also Apache's, in the same run")
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    makes = ["ours", *(["apache"] if given.apache else [])]
    found: dict[str, Figures] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=given.directory, prefix="bench-"))
        )
        questions: dict[str, Callable[[PeerCluster, str], Figures]] = {
            "large": partial(large, folder, sizes),
            "small": partial(small, folder, sizes),
            "live": partial(live, folder, sizes),
        }
        names = given.only.split(",")
        for name in (name for name in names if name in questions):
            cluster = stack.enter_context(peer_cluster(folder / name, [OurBookie] * 4))
            for make in makes:
                found[f"{name}, {make}"] = questions[name](cluster, make)
                show(f"{name}, {make}", found[f"{name}, {make}"])
            for bookie in cluster.bookies:
                if bookie.is_running:
                    bookie.kill()
        if "scan" in names:
            cluster = stack.enter_context(peer_cluster(folder / "scan", [OurBookie]))
            found["scan, ours"] = trio.run(scan, cluster.uri, sizes.scanned_ledgers)
            show("scan, ours", found["scan, ours"])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


def show(name: str, figures: Figures) -> None:
    sys.stdout.write(f"{name}: {as_text(figures)}\n")
    sys.stdout.flush()


# ---------------------------------------------------------------------- the questions


def large(folder: Path, sizes: Sizes, cluster: PeerCluster, make: str) -> Figures:
    victim = _restored(cluster)
    each = sizes.large_mib * 1024 // sizes.large_ledgers
    trio.run(_write, cluster.uri, sizes.large_ledgers, each, 1024)
    return _timed(folder, cluster, make, victim)


def small(folder: Path, sizes: Sizes, cluster: PeerCluster, make: str) -> Figures:
    victim = _restored(cluster)
    names = [BookieId(bookie.bookie_id) for bookie in cluster.bookies]
    first = _SMALL_FIRST_ID if make == "ours" else 2 * _SMALL_FIRST_ID
    trio.run(_plant, cluster.uri, names, first, sizes.small_ledgers, 3)
    return _timed(folder, cluster, make, victim)


def live(folder: Path, sizes: Sizes, cluster: PeerCluster, make: str) -> Figures:
    """In turns, without and with, there and back: the machine has moods that outlast a turn."""
    victim = _restored(cluster)
    entries = sizes.live_mib * 1024 // sizes.live_ledgers
    trio.run(_write, cluster.uri, sizes.live_ledgers, entries, 1024)
    _kill(cluster, victim)
    limit = len(trio.run(append, cluster.uri, sizes.live_seconds, None)) * BATCH
    half = limit / sizes.live_seconds / 2
    without, during = Turns(), Turns()
    moved = 0
    for is_with in (False, True, True, False) * 2:
        turns = during if is_with else without
        with watched(folder) as stalls:
            if is_with:
                with autorecovery(folder, cluster.uri, make) as process:
                    took, size = trio.run(
                        _append_during, cluster.uri, process, sizes.live_seconds, half
                    )
                moved += size
            else:
                took = trio.run(append, cluster.uri, sizes.live_seconds, half)
        turns.add(took, stalls)
    figures: Figures = {"half load, entries/s": half}
    figures |= figures_of(without, during)
    return figures | {"MiB/s": moved / 2**20 / sizes.live_seconds / len(during.turns)}


async def scan(uri: str, count: int) -> Figures:
    async with context_of(uri) as context:
        names = [BookieId(f"bk{number}:3181") for number in range(3)]
        await _records(context, names, 0, count, 1)
        used = resource.getrusage(resource.RUSAGE_SELF)
        before, began = used.ru_utime + used.ru_stime, time.perf_counter()
        walk = LedgerScan(context.client.ledgers, chance=random.Random(1))
        seen = 0
        async for chunk in walk.chunks():
            seen += len(chunk.ledgers)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_SELF)
        assert seen == count, f"{seen} of {count} ledgers were seen"
        return {
            "ledgers": count,
            "seconds": seconds,
            "cpu seconds": used.ru_utime + used.ru_stime - before,
            "memory, MiB": used.ru_maxrss / 1024,
        }


# ---------------------------------------------------------------------- one loss


def _restored(cluster: PeerCluster) -> BookieId:
    """All bookies run; the one to be killed."""
    for bookie in cluster.bookies:
        if not bookie.is_running:
            bookie.start()
    return BookieId(cluster.bookies[0].bookie_id)


def _kill(cluster: PeerCluster, victim: BookieId) -> None:
    """Until nobody takes it for alive any more: what follows is not the session's time-out."""
    cluster.bookie(victim).kill()
    trio.run(_until_gone, cluster.uri, victim)


async def _until_gone(uri: str, victim: BookieId) -> None:
    parsed = parse_metadata_uri(uri)
    async with open_store(parsed) as store:
        path = ClusterPaths(parsed.root).registration(victim)
        with trio.fail_after(_PATIENCE_SECONDS):
            while await store.exists(path) is not None:  # noqa: ASYNC110
                await trio.sleep(_POLL_SECONDS)


def _timed(folder: Path, cluster: PeerCluster, make: str, victim: BookieId) -> Figures:
    _kill(cluster, victim)
    with autorecovery(folder, cluster.uri, make) as process:
        figures = trio.run(_watch, cluster.uri, process, victim)
        figures["memory, MiB"] = process.memory_mib()
        figures["cpu seconds"] = process.cpu_seconds()
        return figures


async def _watch(uri: str, process: AutorecoveryProcess, victim: BookieId) -> Figures:
    async with context_of(uri) as context:
        ledgers = size = 0
        scan = LedgerScan(context.client.ledgers, chance=random.Random(1))
        async for chunk in scan.chunks():
            for ledger in chunk.ledgers:
                if ledger.metadata.mentions(victim):
                    ledgers, size = ledgers + 1, size + ledger.metadata.length
        began = await _until(process, partial(_is_marked, context))
        ended = await _until(process, partial(_is_unmarked, context))
        seconds = ended - began
        async for chunk in LedgerScan(context.client.ledgers, chance=random.Random(1)).chunks():
            left = [found for found in chunk.ledgers if found.metadata.mentions(victim)]
            assert not left, f"{len(left)} ledgers still name the lost bookie"
        return {
            "ledgers": ledgers,
            "MiB": size / 2**20,
            "seconds": seconds,
            "MiB/s": size / 2**20 / seconds,
            "MB/s": size / 1e6 / seconds,
            "ledgers/s": ledgers / seconds,
        }


async def _until(process: AutorecoveryProcess, is_so: Callable[[], Awaitable[bool]]) -> float:
    """Ask again and again; when it was so. An error if the process has ended before."""
    with trio.fail_after(_PATIENCE_SECONDS):
        while not await is_so():
            process.check()
            await trio.sleep(_POLL_SECONDS)
    return time.perf_counter()


async def _is_marked(context: RecoveryContext) -> bool:
    return await _marks(context) > 0


async def _is_unmarked(context: RecoveryContext) -> bool:
    return await _marks(context) == 0


async def _marks(context: RecoveryContext) -> int:
    """How many marks there are, by the lists of their directories alone: ids here are short."""
    top = f"{ClusterPaths(context.cluster.root).marks}/0000/0000"
    count = 0
    with contextlib.suppress(NoNodeError):
        for name in (await context.store.children(top))[0]:
            with contextlib.suppress(NoNodeError):
                count += (await context.store.children(f"{top}/{name}"))[1].children_count
    return count


# ---------------------------------------------------------------------- data and load


@asynccontextmanager
async def context_of(uri: str) -> AsyncIterator[RecoveryContext]:
    parsed = parse_metadata_uri(uri)
    settings = RecoverySettings(auditor=AuditorConfig(), worker=WorkerConfig())
    async with opened_context(
        lambda: open_store(parsed), parsed, bookie_id=BookieId("bench:1"), settings=settings
    ) as context:
        yield context


async def _write(uri: str, ledgers: int, entries: int, size: int) -> None:
    payloads = [bytes(size)] * 2000
    async with LedgerClient(uri) as client:
        for _ in range(ledgers):
            async with await client.create(
                ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD
            ) as ledger:
                for first in range(0, entries, len(payloads)):
                    await ledger.append_many(payloads[: entries - first])


async def _plant(uri: str, names: list[BookieId], first: int, count: int, entries: int) -> None:
    """Small closed ledgers, without the round trips of a client: records and entries alone."""
    async with context_of(uri) as context:
        await _records(context, names, first, count, entries)
        for start in range(first, first + count, _AT_ONCE):
            mail, expected = Mailbox(), 0
            for number in range(start, min(start + _AT_ONCE, first + count)):
                metadata = _record(names, number, entries)
                access = Access.of(metadata.ledger_id, DigestType.CRC32C, PASSWORD)
                records = encode_records(
                    [bytes(100)] * entries,
                    ledger_id=number, first_entry_id=0, lac=-1, length=0, digest=access.digest,
                )  # fmt: skip
                for name in metadata.fragments[0].ensemble:
                    expected += 1
                    request = Adds(
                        request_id=next(context.client.request_ids),
                        sink=mail.take,
                        ledger_id=metadata.ledger_id,
                        entry_ids=range(entries),
                        records=records,
                        master_key=access.master_key,
                    )
                    context.client.pool.ask(name, request)
            while expected > 0:
                answers = await mail.wait()
                assert all(answer.outcome is Outcome.OK for answer in answers), answers[:3]
                expected -= len(answers)


async def _records(
    context: RecoveryContext, names: list[BookieId], first: int, count: int, entries: int
) -> None:
    records = (_record(names, number, entries) for number in range(first, first + count))
    await plant_records(context.client.ledgers, context.cluster.root, records)


def _record(names: list[BookieId], number: int, entries: int) -> LedgerMetadata:
    ensemble = tuple(names[(number + slot) % len(names)] for slot in range(3))
    return LedgerMetadata(
        ledger_id=LedgerId(number),
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, ensemble),),
        state=LedgerState.CLOSED,
        last_entry_id=entries - 1,
        length=100 * entries,
        digest_type=DigestType.CRC32C,
        password=PASSWORD,
    )


async def _append_during(
    uri: str, process: AutorecoveryProcess, seconds: float, per_second: float
) -> tuple[list[Took], int]:
    """The same writers while copies are made, and how many bytes these were.

    From when a worker has a ledger in hand: the marks may be of the turn before, and a process that
    is only just starting copies nothing.
    """
    async with context_of(uri) as context:
        await _until(process, partial(_is_anything_locked, context))
        before = await _left(context)
        took = await append(uri, seconds, per_second)
        return took, before - await _left(context)


async def _is_anything_locked(context: RecoveryContext) -> bool:
    with contextlib.suppress(NoNodeError):
        return bool((await context.store.children(ClusterPaths(context.cluster.root).locks))[0])
    return False


async def _left(context: RecoveryContext) -> int:
    """Bytes of ledgers that name a bookie which is not there."""
    present, size = context.client.bookies().all, 0
    async for chunk in LedgerScan(context.client.ledgers, chance=random.Random(1)).chunks():
        size += sum(
            found.metadata.length
            for found in chunk.ledgers
            if not found.metadata.bookies() <= present
        )
    return size


if __name__ == "__main__":
    sys.exit(main())
