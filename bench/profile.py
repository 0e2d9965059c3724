"""Where a bookie's and a client's time goes while entries are appended and read, by thread.

    python -m bench.profile [--apache] [--size 1024] [--ledgers 1 | --singly] [--seconds 5]
                            [--shown 12]

Three bookies, one of which watches itself, and our client, which does as well. First the kernel's
view, all threads with their CPU time; then, for Python's threads that count, the functions. With
`--apache` the bookies are Apache's, whose threads the kernel knows by name, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import trio

from bench.peers.cluster import MakeBookie, peer_cluster
from bench.peers.jars import NEWEST
from bench.peers.java_bookie import DEFAULT_JVM, JavaBookie
from bench.peers.our_load import Answer, Given, Load
from bench.peers.process import OurBookie, PeerBookie
from bench.profile_bookie import profile_path
from bench.profile_sampler import Sampler, ThreadProfile, threads_of

_PATIENCE_SECONDS: Final = 30.0
_OUTSTANDING: Final = 2000
#: Threads with less than this share of a process's time are not taken apart.
_SHARE_MIN: Final = 0.03


class WatchedBookie(OurBookie):
    def _command(self, conf: Path) -> list[str]:
        return [sys.executable, "-m", "bench.profile_bookie", str(conf)]

    @property
    def profile(self) -> Path:
        return profile_path(self.folder / "bk_server.conf")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.profile", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--apache", action="store_true", help="on Apache's bookies")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an entry")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--ledgers", type=int, default=1, help="which get an entry each in turn")
    ways.add_argument("--singly", action="store_true", help="each append waits for the one before")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of the two phases")
    parser.add_argument("--shown", type=int, default=12, help="functions of a thread")
    given = parser.parse_args()
    make: MakeBookie = WatchedBookie
    if given.apache:
        make = partial(JavaBookie, version=NEWEST, jvm=DEFAULT_JVM, journalMaxGroupWaitMSec=0)
    folder = Path(tempfile.mkdtemp(prefix="quire-profile-"))
    try:
        with peer_cluster(folder, [make] * 3) as cluster:
            trio.run(_profile, cluster.uri, cluster.bookies[0], given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _profile(uri: str, bookie: PeerBookie, options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        load = Load(stack)
        given: Given = {"uri": uri, "size": str(options.size), "outstanding": str(_OUTSTANDING)}
        await load.add(given | {"seconds": "1"})  # connections, caches
        given |= {"seconds": str(options.seconds), "ledgers": str(options.ledgers)}
        if options.singly:
            say(f"\nappending entries of {options.size} bytes, (3,3,2), each after the one before")
            job = partial(_singly, load)
            await _watched(load, job, given, bookie, options.shown, by_function=False)
            return
        say(
            f"\nappending entries of {options.size} bytes, ledgers: {options.ledgers:,}, (3,3,2), "
            f"{_OUTSTANDING} outstanding"
        )
        written = await _watched(load, load.add, given, bookie, options.shown)
        if options.ledgers == 1:
            given |= {"ledger": str(int(written["ledger"]))}
            say(f"\nreading entries of {options.size} bytes, from the first to the last")
            await _watched(load, load.read, given, bookie, options.shown)


async def _singly(load: Load, given: Given) -> Answer:
    """By thread only: between two calls of the kernel a sampler never gets its turn."""
    found = await load.add_singly(given)
    say(f"p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms, slowed down by being watched")
    return {"entries": found["count"], "seconds": float(given["seconds"])}


async def _watched(
    load: Load,
    job: Callable[[Given], Awaitable[Answer]],
    given: Given,
    bookie: PeerBookie,
    shown: int,
    *,
    by_function: bool = True,
) -> Answer:
    """Run a phase, then say what it cost the client and the bookie."""
    pids = {"client": os.getpid(), "bookie": bookie.pid}
    profiles: dict[str, list[ThreadProfile]] = {name: [] for name in pids}
    used: dict[str, dict[str, float]] = {}

    @contextmanager
    def watch() -> Iterator[None]:
        before = {name: threads_of(pid) for name, pid in pids.items()}
        if isinstance(bookie, WatchedBookie):
            bookie.profile.unlink(missing_ok=True)
            os.kill(bookie.pid, signal.SIGUSR1)
        sampler = Sampler()
        sampler.start()
        yield
        profiles["client"] = sampler.stop()
        if isinstance(bookie, WatchedBookie):
            os.kill(bookie.pid, signal.SIGUSR1)
        used.update({name: _since(before[name], threads_of(pid)) for name, pid in pids.items()})

    load.watch = watch
    found = await job(given)
    load.watch = nullcontext
    if isinstance(bookie, WatchedBookie):
        profiles["bookie"] = await _fetch(bookie)
    entries = found["entries"]
    say(f"{entries / found['seconds']:,.0f} entries/s, {entries:,.0f} in all")
    for name in pids:
        _show(name, used[name], profiles[name] if by_function else [], entries, shown)
    return found


async def _fetch(bookie: WatchedBookie) -> list[ThreadProfile]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not bookie.profile.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the bookie did not write its profile: see {bookie.folder}")
        await trio.sleep(0.05)
    return [ThreadProfile(**found) for found in json.loads(bookie.profile.read_text())]


def _since(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """What was used meanwhile; threads that have ended are not known."""
    used = {name: seconds - before.get(name, 0.0) for name, seconds in now.items()}
    return {name: seconds for name, seconds in used.items() if seconds > 0}


def _most(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda pair: -pair[1])


def _show(
    name: str, used: dict[str, float], profiles: list[ThreadProfile], entries: float, shown: int
) -> None:
    micro = 1e6 / max(1.0, entries)
    total = max(sum(used.values()), 1e-9)
    say(f"\n{name}: {total * micro:.2f} us of CPU per entry")
    say("  us/entry  share  thread, as the kernel calls it")
    for thread, seconds in _most(used)[:shown]:
        say(f"  {seconds * micro:8.2f}  {seconds / total:5.0%}  {thread}")
    for profile in profiles:
        if profile.seconds < total * _SHARE_MIN:
            continue
        say(f"\n{name}, thread {profile.name}: {profile.seconds * micro:.2f} us per entry")
        say("      self  with what it calls")
        for function, seconds in _most(profile.own)[:shown]:
            say(f"  {seconds * micro:8.2f}  {profile.whole[function] * micro:8.2f}  {function}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
