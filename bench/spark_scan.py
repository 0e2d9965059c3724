"""How fast Spark reads ledgers, as a share of what the plain client reads with as many processes.

    python -m bench.spark_scan [--quick] [--only NAMES] [--json F]

Three of our bookies, an embedded ZooKeeper, `local[2]`. Figures of one run on one machine: rates
are given as ratios, because only those last.

| name | question | goal |
|---|---|---|
| scan | `count` and `sum(length)` of large closed ledgers of 1 KiB entries | >= 0.7 of the client |
| small | the same over very many ledgers of 100 entries | >= 0.3 of the client |
| plan | planning of very many ledgers | <= 60 s for 100,000 |
| memory | what a worker holds above an idle one | <= 64 MiB + readWindowBytes |
| sink | rows written as ledgers | >= 0.5 of the client's appends |
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.peers.cluster import PeerCluster, peer_cluster
from bench.peers.process import OurBookie
from bench.planted_records import plant_records
from ledger_client import LedgerClient
from metadata.cluster import open_cluster
from metadata.connect import open_store
from metadata.ledgers import Ledgers
from metadata.model import new_ledger
from metadata.uri import parse_metadata_uri
from runtime.java import find_java, spark_java_home
from spark.options import parse_source
from spark.planning import plan_batch
from wire.types import BookieId, DigestType, LedgerId

ROOT: Final = Path(__file__).parent.parent
SLOTS: Final = 2
ENTRY: Final = b"x" * 1024
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    ledgers: int  # of 64 MiB
    entries: int
    small_ledgers: int
    planned_ledgers: int
    rounds: int


FULL: Final = Sizes(
    ledgers=8, entries=65_536, small_ledgers=10_000, planned_ledgers=100_000, rounds=3
)
QUICK: Final = Sizes(ledgers=4, entries=32_768, small_ledgers=500, planned_ledgers=5_000, rounds=2)


# ---------------------------------------------------------------------- ledgers


async def fill(uri: str, ledgers: int, entries: int) -> list[int]:
    """Closed ledgers on three bookies each, every one of which holds everything."""
    found: list[int] = []
    async with LedgerClient(uri) as client:

        async def one() -> None:
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            for first in range(0, entries, 1000):
                await writer.append_many([ENTRY] * min(1000, entries - first))
            await writer.close()
            found.append(writer.id)

        for first in range(0, ledgers, 16):
            async with trio.open_nursery() as nursery:
                for _ in range(min(16, ledgers - first)):
                    nursery.start_soon(one)
    return sorted(found)


async def read(uri: str, ledgers: Sequence[int]) -> int:
    """What one process of the plain client reads: as many ledgers at a time as there is window."""
    total = 0
    async with LedgerClient(uri) as client:
        rest = iter(ledgers)

        async def work() -> None:
            nonlocal total
            for ledger_id in rest:
                reader = await client.open_no_recovery(ledger_id)
                entries = reader.read(0, reader.last_confirmed)
                while batch := await entries.next_batch():
                    total += len(batch)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(work)
    return total


def read_in_process(uri: str, ledgers: Sequence[int]) -> int:
    return trio.run(read, uri, ledgers)


def client_rate(uri: str, ledgers: Sequence[int], processes: ProcessPoolExecutor) -> float:
    """Entries per second of as many processes as Spark has slots."""
    begin = time.perf_counter()
    shares = [list(ledgers[i::SLOTS]) for i in range(SLOTS)]
    total = sum(processes.map(partial(read_in_process, uri), shares))
    return total / (time.perf_counter() - begin)


# ---------------------------------------------------------------------- Spark


def session(folder: Path) -> SparkSession:
    os.environ["JAVA_HOME"] = str(spark_java_home(find_java()))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    found: SparkSession = (
        SparkSession.builder.master(f"local[{SLOTS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    return found


def loaded(spark: SparkSession, uri: str, ledgers: Sequence[int], schema: str | None) -> DataFrame:
    reader = spark.read.format("ledger").option("metadataServiceUri", uri)
    if schema is not None:
        reader = reader.schema(schema)
    text = f"{ledgers[0]}-{ledgers[-1]}"
    return reader.option("ledgers", text).option("parallelism", str(SLOTS)).load()


def timed(job: Callable[[], int]) -> float:
    """Rows per second."""
    begin = time.perf_counter()
    rows = job()
    return rows / (time.perf_counter() - begin)


def rates(
    spark: SparkSession, cluster: PeerCluster, ledgers: Sequence[int], rounds: int
) -> Figures:
    """Each beside the other, in turns, the first of each unmeasured; the best of each counts."""
    uri, entries = cluster.uri, 0

    def count() -> int:
        return loaded(spark, uri, ledgers, None).count()

    def count_columns() -> int:
        return loaded(spark, uri, ledgers, "entry_id bigint").count()

    def total(schema: str | None = None) -> int:
        row = loaded(spark, uri, ledgers, schema).agg(f.count("*"), f.sum("length")).first()
        assert row is not None
        return int(row[0])

    def total_column() -> int:
        return total("length int")

    best: Figures = {"client entries/s": 0.0}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(SLOTS, mp_context=context) as processes:
        client_rate(uri, ledgers, processes)
        entries = count()
        for _ in range(rounds):
            best["client entries/s"] = max(
                best["client entries/s"], client_rate(uri, ledgers, processes)
            )
            for name, job in (
                ("count", count), ("count, one column", count_columns),
                ("sum(length)", total), ("sum(length), one column", total_column),
            ):  # fmt: skip
                best[name] = max(best.get(name, 0.0), timed(job))
    found = {
        f"{name}, of the client": rate / best["client entries/s"]
        for name, rate in best.items()
        if not name.startswith("client")
    }
    return {"entries": entries, "client entries/s": best["client entries/s"], **found}


def scan(spark: SparkSession, cluster: PeerCluster, sizes: Sizes) -> Figures:
    return rates(
        spark, cluster, trio.run(fill, cluster.uri, sizes.ledgers, sizes.entries), sizes.rounds
    )


def small(spark: SparkSession, cluster: PeerCluster, sizes: Sizes) -> Figures:
    ledgers = trio.run(fill, cluster.uri, sizes.small_ledgers, 100)
    return rates(spark, cluster, ledgers, sizes.rounds)


def memory(spark: SparkSession, cluster: PeerCluster, sizes: Sizes) -> Figures:
    """The worst of all workers, seen from outside: which of them reads is Spark's affair."""
    large = trio.run(fill, cluster.uri, 2, sizes.entries)
    tiny = trio.run(fill, cluster.uri, 1, 1)

    def peak(ledgers: Sequence[int]) -> float:
        is_over = threading.Event()
        found = [0.0]

        def watch() -> None:
            while not is_over.wait(0.05):
                found.append(max(map(peak_mib, workers_of(os.getpid())), default=0.0))

        watcher = threading.Thread(target=watch)
        watcher.start()
        loaded(spark, cluster.uri, ledgers, None).count()
        is_over.set()
        watcher.join()
        return max(found)

    idle = peak(tiny)
    return {"idle MiB": idle, "above idle MiB": peak(large) - idle}


def workers_of(pid: int) -> list[int]:
    """Spark's Python processes among the descendants of a process."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(stat[1])
            if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended

    def is_below(candidate: int) -> bool:
        while candidate and candidate != pid:
            candidate = parents.get(candidate, 0)
        return candidate == pid

    return [candidate for candidate in found if is_below(candidate)]


def peak_mib(pid: int) -> float:
    """The most that was resident at any time."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    _, _, rest = text.partition("VmHWM:")
    return int(rest.split()[0]) / 1024 if rest else 0.0


def plan(spark: SparkSession, cluster: PeerCluster, sizes: Sizes) -> Figures:
    """Records only: planning never looks at an entry of a closed ledger."""
    count = sizes.planned_ledgers
    first, last = trio.run(record, cluster.uri, count)
    options = parse_source({"metadataServiceUri": cluster.uri, "ledgers": f"{first}-{last}"})
    begin = time.perf_counter()
    partitions = plan_batch(options)
    seconds = time.perf_counter() - begin
    planned = sum(len(partition.value.ranges) for partition in partitions)
    assert planned == count, f"{planned} ledgers of {count} were planned"
    return {"ledgers": count, "seconds": seconds, "seconds per 100,000": seconds / count * 1e5}


async def record(uri: str, count: int) -> tuple[int, int]:
    """Closed ledgers that exist as records alone."""
    place = parse_metadata_uri(uri)
    template = new_ledger(
        ledger_id=LedgerId(0), ensemble=[BookieId(f"bookie-{i}:3181") for i in range(3)],
        write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b"",
    ).closed_at(last_entry_id=99, length=100 * len(ENTRY))  # fmt: skip
    async with open_store(place) as store:
        cluster = await open_cluster(store, place)
        ledgers = Ledgers(store, cluster.root, cluster.layout, chance=random.Random(1))
        numbers = range(10_000_000, 10_000_000 + count)
        records = (replace(template, ledger_id=LedgerId(number)) for number in numbers)
        await plant_records(ledgers, cluster.root, records)
    return 10_000_000, 10_000_000 + count - 1


def sink(spark: SparkSession, cluster: PeerCluster, sizes: Sizes) -> Figures:
    """Rows of 1 KiB, made inside Spark, against appends of as many processes of the client."""
    rows = sizes.entries * SLOTS
    frame = spark.range(0, rows, 1, SLOTS).select(f.lit(ENTRY).alias("payload")).cache()
    frame.count()

    def write() -> int:
        frame.write.format("ledger").option("metadataServiceUri", cluster.uri).mode("append").save()
        return rows

    def append() -> int:
        shares = [partial(fill, cluster.uri, 1, sizes.entries) for _ in range(SLOTS)]
        with ProcessPoolExecutor(SLOTS, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(trio.run, shares))
        return rows

    write()
    spark_rate = max(timed(write) for _ in range(sizes.rounds))
    client = max(timed(append) for _ in range(sizes.rounds))
    return {"client entries/s": client, "sink, of the client": spark_rate / client}


QUESTIONS: Final[dict[str, Callable[[SparkSession, PeerCluster, Sizes], Figures]]] = {
    "scan": scan,
    "small": small,
    "memory": memory,
    "plan": plan,
    "sink": sink,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(QUESTIONS), help="names, joined by commas")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-scan-")))
        cluster = stack.enter_context(peer_cluster(folder / "cluster", [OurBookie] * 3))
        spark = session(folder)
        stack.callback(spark.stop)
        for name in given.only.split(","):
            found[name] = QUESTIONS[name](spark, cluster, sizes)
            for figure, value in found[name].items():
                sys.stdout.write(f"{name:<8} {figure:<36} {value:>14,.3f}\n")
            sys.stdout.flush()
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
