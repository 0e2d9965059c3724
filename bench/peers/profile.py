"""Where our client's time goes while it appends: sampled, so that nothing is slowed down.

    python -m bench.peers.profile [--apache] [--size 1024] [--seconds 5]

The kernel's clock of used CPU interrupts the client a thousand times a second, and the line that
runs is counted. System time (sockets, mostly) shows in the line that made the call.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import trio

from bench.peers.cluster import MakeBookie, peer_cluster
from bench.peers.jars import NEWEST
from bench.peers.java_bookie import DEFAULT_JVM, JavaBookie
from bench.peers.our_load import Load
from bench.peers.process import OurBookie

_INTERVAL: Final = 0.001
_SHOWN: Final = 25


@contextmanager
def sampling() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Counts by function, and by function with everything that it calls."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        seen: set[str] = set()
        while frame is not None:
            code = frame.f_code
            name = f"{Path(code.co_filename).name}:{code.co_qualname}"
            if not seen:
                own[name] += 1
            if name not in seen:
                whole[name] += 1
                seen.add(name)
            frame = frame.f_back

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)
    try:
        yield own, whole
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


async def measure(uri: str, size: int, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        load = Load(stack)
        given = {"uri": uri, "size": str(size), "outstanding": "2000", "seconds": "1"}
        await load.add(given)  # connections, caches
        used = resource.getrusage(resource.RUSAGE_SELF)
        with sampling() as (own, whole):
            found = await load.add(given | {"seconds": str(seconds)})
        now = resource.getrusage(resource.RUSAGE_SELF)
    entries = found["entries"]
    user, system = now.ru_utime - used.ru_utime, now.ru_stime - used.ru_stime
    _say(f"{entries / found['seconds']:,.0f} entries/s of {size} bytes, {entries:,.0f} in all")
    _say(f"CPU per entry: {user / entries * 1e6:.2f} us user, {system / entries * 1e6:.2f} system")
    # By their share of the time that was counted: signals come late when the machine is busy.
    per = (user + system) / entries * 1e6 / max(1, own.total())
    for title, counts in (("itself", own), ("with what it calls", whole)):
        _say(f"\nus per entry, {title}")
        for name, count in counts.most_common(_SHOWN):
            _say(f"  {count * per:6.2f}  {name}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--apache", action="store_true", help="on Apache's bookies")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    make: MakeBookie = OurBookie
    if options.apache:
        make = partial(
            JavaBookie, version=NEWEST, jvm=DEFAULT_JVM, journalMaxGroupWaitMSec=0
        )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="quire-bench-"))
    try:
        with peer_cluster(folder, [make] * 3) as cluster:
            trio.run(partial(measure, cluster.uri, options.size, options.seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
