"""A cluster on this machine: an embedded ZooKeeper, and bookies of either make, or of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import trio

from bench.peers.process import PeerBookie
from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import LocalZookeeper

#: Makes a bookie that keeps its files in this folder and its cluster at this URI.
MakeBookie = Callable[[Path, str], PeerBookie]


class PeerCluster:
    def __init__(self, uri: str, bookies: list[PeerBookie]) -> None:
        self.uri = uri
        self.bookies = bookies

    def bookie(self, bookie_id: str) -> PeerBookie:
        [found] = [bookie for bookie in self.bookies if bookie.bookie_id == bookie_id]
        return found

    def complaints(self) -> list[str]:
        """What is wrong with the bookies since the last call. Then all run as they should."""
        found = [line for bookie in self.bookies for line in bookie.new_alarms()]
        for bookie in self.bookies:
            if bookie.is_running and bookie.is_changed:
                bookie.stop()
                bookie.start()
            if not bookie.is_running:
                found.append(f"bookie {bookie.bookie_id} has ended: see {bookie.folder}")
                bookie.start()
        return found


@contextmanager
def peer_cluster(
    folder: Path, makers: Sequence[MakeBookie], *, root: str = "/ledgers", durable: bool = False
) -> Iterator[PeerCluster]:
    """Everything started and ready; stopped properly at the end."""
    place = folder / "zookeeper"
    place.mkdir(parents=True)
    with LocalZookeeper(place, durable=durable) as server:
        uri = f"zk+hierarchical://{server.address}{root}"
        with bookies_on(folder, uri, makers) as cluster:
            yield cluster


@contextmanager
def bookies_on(folder: Path, uri: str, makers: Sequence[MakeBookie]) -> Iterator[PeerCluster]:
    """A new cluster at this address of a ZooKeeper that runs."""
    trio.run(_initialise, uri)
    bookies = [make(folder / f"bookie-{number}", uri) for number, make in enumerate(makers)]
    cluster = PeerCluster(uri, bookies)
    try:
        with ThreadPoolExecutor(len(bookies)) as pool:
            list(pool.map(PeerBookie.start, bookies))
        yield cluster
        with ThreadPoolExecutor(len(bookies)) as pool:
            list(pool.map(PeerBookie.stop, [bookie for bookie in bookies if bookie.is_running]))
    finally:
        for bookie in bookies:
            if bookie.is_running:
                bookie.kill()


async def _initialise(uri: str) -> None:
    parsed = parse_metadata_uri(uri)
    async with open_store(parsed) as store:
        await init_new_cluster(store, parsed, chance=random.Random(1))
