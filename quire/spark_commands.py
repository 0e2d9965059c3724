"""`quire spark ...`: jobs on ledgers that PySpark runs, here on this machine.

On a cluster the same jobs run by spark-submit; `spark/jobs/__init__.py` says how.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from quire.access import Target, run, target_options
from quire.output import say, show_json, show_table

if TYPE_CHECKING:
    from spark.jobs.session import SparkSession

T = TypeVar("T")

_ledgers_option = click.option(
    "--ledgers", default="all", show_default=True, help="5,7,10-20, or all, or custom:key=value."
)
_credentials_option = click.option(
    "--credentials", help="Where passwords are: env:NAME or file:PATH."
)
_master_option = click.option("--master", help="Where to run; by default a Spark of its own here.")


@click.group()
def spark() -> None:
    """Verify, count, export and import ledgers with Spark."""


def _with_spark(name: str, master: str | None, job: Callable[[SparkSession], T]) -> T:
    from spark.jobs.session import job_session

    with job_session(f"quire spark {name}", master=master) as session:
        return job(session)


def _client_conf(target: Target) -> str | None:
    """The file of `--conf` for tasks, which run in folders of their own."""
    return None if target.conf is None else str(Path(target.conf).absolute())


@spark.command(epilog="Example: quire spark verify --ledgers 10-20 --report report")
@_ledgers_option
@click.option("--report", required=True, metavar="FOLDER", help="Gets JSON lines; is replaced.")
@_credentials_option
@_master_option
@target_options
def verify(
    target: Target, ledgers: str, report: str, credentials: str | None, master: str | None
) -> None:
    """Read every copy of every entry and check its digest; fail if one is not good."""
    from spark.jobs.verify import verify as job

    uri, conf = str(target.metadata_uri()), _client_conf(target)
    found = _with_spark(
        "verify",
        master,
        lambda s: job(s, uri, ledgers, report, credentials=credentials, client_conf=conf),
    )
    if not found.is_sound:
        raise click.ClickException(f"{found}; see {report}")
    say(str(found))


@spark.command(epilog="Example: quire spark statistics --top 10")
@_ledgers_option
@click.option("--seconds", type=click.IntRange(1), default=3600, show_default=True)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True)
@_master_option
@target_options
def statistics(target: Target, ledgers: str, seconds: int, top: int, master: str | None) -> None:
    """Show the largest ledgers, and how much came when."""
    from spark.jobs.statistics import statistics as job

    uri, conf = str(target.metadata_uri()), _client_conf(target)

    def collect(session: SparkSession) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        found = job(session, uri, ledgers, seconds=seconds, top=top, client_conf=conf)
        largest, times = found.ledgers.collect(), found.times.collect()
        return [row.asDict() for row in largest], [row.asDict() for row in times]

    largest, times = _with_spark("statistics", master, collect)
    if target.as_json:
        show_json({"ledgers": largest, "times": times})
        return
    for rows in (largest, times):
        if rows:
            show_table(list(rows[0]), [list(row.values()) for row in rows])


@spark.command(epilog="Example: quire spark export --ledgers 10-20 --path archive")
@_ledgers_option
@click.option("--path", required=True, help="Where the Parquet files go.")
@_credentials_option
@_master_option
@target_options
def export(
    target: Target, ledgers: str, path: str, credentials: str | None, master: str | None
) -> None:
    """Write closed ledgers to Parquet, verified; start it again to go on."""
    from spark.jobs.export import export as job

    uri, conf = str(target.metadata_uri()), _client_conf(target)
    found = _with_spark(
        "export",
        master,
        lambda s: job(s, uri, ledgers, path, credentials=credentials, client_conf=conf),
    )
    say(str(found))


@spark.command(name="import", epilog="Example: quire spark import --path archive --write-id june")
@click.option("--path", required=True, help="A folder of Parquet files, say of an export.")
@click.option("--write-id", required=True, help="The name of the commit, to read it back by.")
@click.option("--ensemble", type=click.IntRange(1), default=3, show_default=True)
@click.option("--write-quorum", type=click.IntRange(1), default=2, show_default=True)
@click.option("--ack-quorum", type=click.IntRange(1), default=2, show_default=True)
@_credentials_option
@_master_option
@target_options
def import_(
    target: Target,
    path: str,
    write_id: str,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    credentials: str | None,
    master: str | None,
) -> None:
    """Write the column payload of Parquet files into ledgers, exactly once."""
    from spark.jobs.import_ import import_rows

    uri, conf = str(target.metadata_uri()), _client_conf(target)
    shape = {
        "ensemble": str(ensemble),
        "writeQuorum": str(write_quorum),
        "ackQuorum": str(ack_quorum),
    }

    def job(session: SparkSession) -> object:
        return import_rows(
            session, uri, path, write_id, credentials=credentials, client_conf=conf, **shape
        )

    say(str(_with_spark("import", master, job)))


@spark.command(epilog="Example: quire spark sweep")
@click.option("--older-than", type=click.FloatRange(0), help="Seconds; else what each job said.")
@target_options
def sweep(target: Target, older_than: float | None) -> None:
    """Delete ledgers that sinks left behind and no commit lists."""
    from spark.commits import open_commits

    async def job() -> list[int]:
        async with open_commits(str(target.metadata_uri()), target.conf) as commits:
            return await commits.sweep(
                now_ms=time.time_ns() // 1_000_000,
                ttl_ms=None if older_than is None else int(older_than * 1000),
            )

    gone = run(job)
    if target.as_json:
        show_json(gone)
    else:
        say(f"{len(gone)} ledgers swept" + (f": {', '.join(map(str, gone))}" if gone else ""))
