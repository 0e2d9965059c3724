"""A job on `local-cluster[2,1,1024]`: executors are processes, and one is killed in mid read.

    python -m tests.spark.cluster_job URI LEDGER PASSWORD FOLDER

A program of its own, because a process has one Spark at a time. The executors get our packages as
a zip file and the password from their environment, and nothing else. Prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark.session import ROOT, spark_session

PACKAGES = ("wire", "runtime", "metadata", "ledger_client", "spark")


def packed(folder: Path) -> Path:
    """What `--py-files` takes."""
    path = folder / "quire.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(ROOT / "pyspark_ledger.py", "pyspark_ledger.py")
        for package in PACKAGES:
            for file in sorted((ROOT / package).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT).as_posix())
    return path


def executors() -> list[int]:
    """The executors among the descendants of this process."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended

    def is_ours(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid in found if is_ours(pid)]


def count_while_killing(spark: SparkSession, uri: str, ledger: str) -> tuple[int, int]:
    frame = (
        spark.read.format("ledger")
        .option("metadataServiceUri", uri)
        .option("ledgers", ledger)
        .option("credentials", "env:LEDGER_PASSWORD")
        .option("minPartitions", "6")
        .option("parallelism", "2")
        .option("readBytesPerSecond", "600k")  # slow enough to be hit in mid read
        .option("batchRows", "50")
        .option("readChunkBytes", "16k")
        .option("readWindowBytes", "32k")
        .load()
    )
    results: list[Any] = []
    job = threading.Thread(
        target=lambda: results.append(frame.agg(f.count("*"), f.sum("entry_id")).first())
    )
    job.start()
    tracker, pause = spark.sparkContext.statusTracker(), threading.Event()
    while True:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage is not None and stage.numCompletedTasks >= 1 for stage in stages):
            break
        assert job.is_alive(), "the job ended before anything could be killed"
        pause.wait(0.05)
    os.kill(executors()[0], signal.SIGKILL)
    job.join()
    return int(results[0][0]), int(results[0][1])


def main() -> None:
    uri, ledger, password, folder = sys.argv[1:]
    os.environ["LEDGER_PASSWORD"] = password  # for the planner, which runs beside the driver
    with spark_session(
        Path(folder),
        master="local-cluster[2,1,1024]",
        spark_executorEnv_LEDGER__PASSWORD=password,
        spark_executor_memory="512m",
        spark_executor_memoryOverhead="256m",
    ) as spark:
        application = str(spark.sparkContext.applicationId)
        try:
            spark.sparkContext.addPyFile(str(packed(Path(folder))))
            rows, total = count_while_killing(spark, uri, ledger)
            java = spark._jvm.System.getProperty("java.home")  # type: ignore[union-attr]
            sys.stdout.write(json.dumps({"rows": rows, "sum": total, "java": java}) + "\n")
        finally:
            spark.stop()
            # Workers keep the files of an application inside the installed package.
            work = Path(pyspark.__file__).parent / "work"
            shutil.rmtree(work / application, ignore_errors=True)
            if work.is_dir() and not any(work.iterdir()):
                work.rmdir()


if __name__ == "__main__":
    main()
