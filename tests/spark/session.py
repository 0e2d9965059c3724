"""A Spark of this process: local, small, with our packages on the path of its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from runtime.java import find_java, spark_java_home

ROOT = Path(__file__).parent.parent.parent


def spark_home(folder: Path) -> Path:
    """The installed Spark, without the archive of its Python modules.

    Spark puts that archive first on the path of its workers, and there they are sources: each of
    a dozen processes would compile them anew, for a second of CPU. Without it the modules are
    found where pip has put them, compiled. Not for clusters, where the archive is what there is.
    """
    home = folder / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("python", "work"):
            (home / entry.name).symlink_to(entry)
    return home


@contextmanager
def spark_session(
    folder: Path, *, master: str = "local[2,3]", **confs: str
) -> Iterator[SparkSession]:
    """`local[2,3]` is two slots and three attempts for each task."""
    changes = {
        "JAVA_HOME": str(spark_java_home(find_java())),
        # The interpreter of the tests, and the repository instead of what is installed.
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    if master.startswith("local["):
        changes["SPARK_HOME"] = str(spark_home(folder))
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    builder = SparkSession.builder.master(master).appName("quire-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        # Short jobs on few cores: what a better compiler and more threads would win, they cost.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.pollingDelay": "50ms",
        **{_key(name): value for name, value in confs.items()},
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


def _key(name: str) -> str:
    """`spark_a_B__C` as `spark.a.B_C`: keys with underscores are names of variables."""
    return name.replace("__", "\0").replace("_", ".").replace("\0", "_")
