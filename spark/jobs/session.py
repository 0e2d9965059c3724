"""A Spark for a job: the one that spark-submit has set up, else a local one for the occasion."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import SparkSession as SparkSession  # for those above, who may not import pyspark

from runtime.java import find_java, spark_java_home
from wire.errors import LedgerError


class JobError(LedgerError):
    """A job found that what it did, or what it looked at, is not right."""


@contextmanager
def job_session(name: str, *, master: str | None = None) -> Iterator[SparkSession]:
    """Local with a progress bar, unless Spark runs already or its environment says where."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.appName(name)
    if master is not None or "SPARK_ENV_LOADED" not in os.environ:  # not from spark-submit
        _prepare_environment()
        bar = "true" if sys.stderr.isatty() else "false"
        builder = builder.master(master or "local[*]")
        for key, value in {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": bar,
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "8",
        }.items():
            builder = builder.config(key, value)
    session = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _prepare_environment() -> None:
    """The workers of a local Spark use this interpreter and these packages."""
    home = str(Path(__file__).parent.parent.parent)
    os.environ.setdefault("JAVA_HOME", str(spark_java_home(find_java())))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([home, *filter(None, paths)])


def load(spark: SparkSession, uri: str, ledgers: str, **options: str | None) -> DataFrame:
    """These ledgers as a DataFrame; options that are None are left out."""
    reader = spark.read.format("ledger").option("metadataServiceUri", uri)
    reader = reader.option("ledgers", ledgers)
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load()


def parser_of(name: str, about: str, *, ledgers: bool = True) -> argparse.ArgumentParser:
    """Options that every job has."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--uri", required=True, help="the cluster, as zk://host:2181/ledgers")
    if ledgers:
        parser.add_argument(
            "--ledgers", default="all", help="5,7,10-20, or all, or custom:key=value"
        )
    parser.add_argument("--credentials", help="where passwords are: env:NAME or file:PATH")
    parser.add_argument(
        "--client-conf", help="a file with TLS and who we are, on every machine (clientConf)"
    )
    parser.add_argument("--master", help="where to run; a local Spark unless spark-submit says")
    return parser


def run_job(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    job: Callable[[SparkSession, argparse.Namespace], object],
) -> int:
    """Run a job as a command: its result on standard output, an error as one line; exit code."""
    given = parser.parse_args(arguments)
    try:
        with job_session(parser.prog, master=given.master) as spark:
            sys.stdout.write(f"{job(spark, given)}\n")
    except LedgerError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 1
    return 0
