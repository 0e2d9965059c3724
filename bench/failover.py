"""A bookie is killed while a ledger is written: what its writer notices, and what is left.

    python -m bench.failover [--entries 1000000] [--size 1024] [--kill-at 0.4] [--apache]

Four bookies, a ledger on three of them (3,3,2), 2,000 entries outstanding. When so much of it is
confirmed, one of the three is killed with kill -9 and stays dead; the fourth takes its place. Then
everything is checked without it: ids are dense, every entry reads back as it was appended, the
record's fragments are what they must be. The rate is shown in steps of 100 ms around the kill.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import trio

from bench.peers.cluster import MakeBookie, PeerCluster, peer_cluster
from bench.peers.jars import NEWEST
from bench.peers.java_bookie import DEFAULT_JVM, JavaBookie
from bench.peers.process import OurBookie
from ledger_client import LedgerClient
from metadata.model import LedgerMetadata, LedgerState
from wire.types import BookieId

PASSWORD: Final = b"secret"
#: Tasks that append in turn, and how many entries each has on its way.
_TASKS: Final = 8
_SHARE: Final = 250
_BEFORE_KILL: Final = 0.9
_STEP_SECONDS: Final = 0.1
#: Steps that are shown before the kill and after it.
_SHOWN_BEFORE: Final = 10
_SHOWN_AFTER: Final = 40
#: The rate is back when it has reached this share of what it was.
_BACK_SHARE: Final = 0.8
_BARS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = 2**64 - 1

Kill = Callable[[BookieId], Awaitable[None]]


@dataclass
class Story:
    """What was appended and when it was confirmed, from the first append on."""

    entries: int
    size: int
    #: By entry id, which of the payloads it is.
    written: array[int] = field(init=False)
    confirmed: list[tuple[float, int]] = field(default_factory=list)
    ledger_id: int = 0
    killed: str = ""
    killed_at: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.written = array("Q", [_NOTHING]) * self.entries

    def payload(self, number: int) -> bytes:
        return number.to_bytes(8).ljust(self.size, b"\0")

    # ------------------------------------------------------------------ rates

    def steps(self) -> list[int]:
        """Entries confirmed in each step of 100 ms, the kill at the beginning of one."""
        begin = self.killed_at % _STEP_SECONDS - _STEP_SECONDS
        counts = [0] * (int((self.seconds - begin) / _STEP_SECONDS) + 1)
        for moment, count in self.confirmed:
            counts[int((moment - begin) / _STEP_SECONDS)] += count
        return counts

    @property
    def kill_step(self) -> int:
        """The step that begins with the kill."""
        begin = self.killed_at % _STEP_SECONDS - _STEP_SECONDS
        return round((self.killed_at - begin) / _STEP_SECONDS)

    @property
    def usual(self) -> float:
        """The median of the full steps before the kill, without the first ones."""
        return median(self.steps()[: self.kill_step][-20:] or [0])

    @property
    def back_after_seconds(self) -> float | None:
        """From the kill to the first step after the lowest one that is as good as before."""
        after = self.steps()[self.kill_step : -1]
        if not after:
            return None
        lowest = after[:_SHOWN_AFTER].index(min(after[:_SHOWN_AFTER]))
        for number, count in enumerate(after[lowest:], lowest):
            if count >= self.usual * _BACK_SHARE:
                return number * _STEP_SECONDS
        return None

    @property
    def silence_seconds(self) -> float:
        """The longest time without a confirmation, once the bookie was dead."""
        moments = [self.killed_at, *(at for at, _ in self.confirmed if at > self.killed_at)]
        return max((right - left for left, right in pairwise(moments)), default=0.0)


async def append_all(client: LedgerClient, kill: Kill, story: Story, *, kill_at: float) -> None:
    """Fill a ledger; kill the second of its bookies when this share of it is confirmed.

    The last tenth waits for the kill: a short ledger would be full before the bookie is dead.
    """
    ledger = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    story.ledger_id = ledger.id
    story.killed = ledger.metadata.last_fragment.ensemble[1]
    numbers = iter(range(0, story.entries, _SHARE))
    is_due, is_dead = trio.Event(), trio.Event()
    begin = time.perf_counter()

    async def append() -> None:
        for first in numbers:
            if first >= _BEFORE_KILL * story.entries:
                await is_dead.wait()
            chosen = range(first, min(first + _SHARE, story.entries))
            entry_ids = await ledger.append_many(map(story.payload, chosen))
            story.confirmed.append((time.perf_counter() - begin, len(chosen)))
            for entry_id, number in zip(entry_ids, chosen, strict=True):
                story.written[entry_id] = number
            if first >= kill_at * story.entries:
                is_due.set()

    async with trio.open_nursery() as nursery:
        for _ in range(_TASKS):
            nursery.start_soon(append)
        await is_due.wait()
        story.killed_at = time.perf_counter() - begin
        await kill(story.killed)
        is_dead.set()
    story.seconds = time.perf_counter() - begin
    await ledger.close()


# ---------------------------------------------------------------------- what must hold


async def faults(client: LedgerClient, story: Story) -> AsyncIterator[str]:
    """What is wrong with the ledger; nothing, if all is well."""
    missing = story.written.count(_NOTHING)
    if missing:
        yield f"{missing} of the ids 0..{story.entries - 1} belong to no append"
    if len(set(story.written)) != story.entries:
        yield "two payloads were confirmed with one id"
    metadata = await client.metadata(story.ledger_id)
    for fault in record_faults(metadata, story):
        yield fault
    async with await client.open(story.ledger_id, password=PASSWORD) as reader:
        expected = 0
        found = reader.read(0, reader.last_confirmed)
        while batch := await found.next_batch():
            for entry_id, payload in batch:
                if entry_id != expected or payload != story.payload(story.written[expected]):
                    yield f"entry {expected} reads as something else, with id {entry_id}"
                    return
                expected += 1
        if expected != story.entries:
            yield f"{expected} entries can be read, {story.entries} were confirmed"


def record_faults(metadata: LedgerMetadata, story: Story) -> Iterator[str]:
    if metadata.state is not LedgerState.CLOSED:
        yield f"the ledger is {metadata.state.name}"
    if metadata.last_entry_id != story.entries - 1:
        yield f"its last entry is {metadata.last_entry_id}, not {story.entries - 1}"
    if metadata.length != story.entries * story.size:
        yield f"its length is {metadata.length}, not {story.entries * story.size}"
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    if firsts[0] != 0 or firsts != sorted(set(firsts)) or firsts[-1] >= story.entries:
        yield f"its fragments begin at {firsts}"
    for fragment in metadata.fragments:
        if len(set(fragment.ensemble)) != metadata.ensemble_size:
            yield f"the fragment from {fragment.first_entry_id} is on {fragment.ensemble}"
    if len(firsts) < 2 or story.killed in metadata.last_fragment.ensemble:
        yield f"{story.killed} was killed and not replaced"


# ---------------------------------------------------------------------- in words


def told(story: Story, metadata: LedgerMetadata) -> Iterator[str]:
    steps, kill_step, usual = story.steps(), story.kill_step, story.usual
    shown = steps[max(0, kill_step - _SHOWN_BEFORE) : kill_step + _SHOWN_AFTER]
    after = steps[kill_step : kill_step + _SHOWN_AFTER]
    back = story.back_after_seconds
    rows = {
        "entries, bytes of each": f"{story.entries:,}, {story.size:,}",
        "rate over all": f"{story.entries / story.seconds:,.0f}/s",
        "rate in the 2 s before the kill": f"{usual / _STEP_SECONDS:,.0f}/s",
        "slowest 100 ms after it": f"{min(after, default=0) / _STEP_SECONDS:,.0f}/s",
        "longest time without a confirmation": f"{story.silence_seconds * 1000:,.0f} ms",
        f"back at {_BACK_SHARE:.0%} of the rate": "never" if back is None else f"{back:.1f} s",
    }
    yield from (f"  {name:36} {value}" for name, value in rows.items())
    before = min(kill_step, _SHOWN_BEFORE)
    yield f"\n  confirmed per 100 ms, at most {max(shown):,}; | is the kill of {story.killed}"
    yield f"  {bars(shown[:before], max(shown))}|{bars(shown[before:], max(shown))}"
    yield "\n  fragments"
    for fragment in metadata.fragments:
        yield f"  from {fragment.first_entry_id:>9,}  {'  '.join(fragment.ensemble)}"


def bars(counts: list[int], most: int) -> str:
    """A bar per count; a dot for none at all."""
    scale = len(_BARS) / max(1, most + 1)
    return "".join(_BARS[int(count * scale)] if count else "." for count in counts)


async def run(cluster: PeerCluster, options: argparse.Namespace) -> int:
    async def kill(bookie_id: BookieId) -> None:
        await trio.to_thread.run_sync(cluster.bookie(bookie_id).kill)

    story = Story(options.entries, options.size)
    async with LedgerClient(cluster.uri) as client:
        await append_all(client, kill, story, kill_at=options.kill_at)
    async with LedgerClient(cluster.uri) as client:
        metadata = await client.metadata(story.ledger_id)
        say("\n".join(told(story, metadata)))
        found = [fault async for fault in faults(client, story)]
    good = f"all {story.entries:,} entries were read back, ids dense, fragments valid"
    say("\n" + "\n".join([f"  WRONG: {fault}" for fault in found] or [f"  {good}"]))
    return 1 if found else 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of an entry, at least 8")
    parser.add_argument("--kill-at", type=float, default=0.4, help="share confirmed before")
    parser.add_argument("--apache", action="store_true", help="on Apache's bookies")
    options = parser.parse_args()
    make: MakeBookie = OurBookie
    if options.apache:
        make = partial(JavaBookie, version=NEWEST, jvm=DEFAULT_JVM, journalMaxGroupWaitMSec=0)
    folder = Path(tempfile.mkdtemp(prefix="quire-failover-"))
    try:
        with peer_cluster(folder, [make] * 4) as cluster:
            return trio.run(run, cluster, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
