"""`quire spark ... --conf FILE`: the file goes to the tasks, who connect to bookies themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark.jobs.export
import spark.jobs.import_
import spark.jobs.session
import spark.jobs.statistics
import spark.jobs.verify
from quire.spark_commands import spark as commands
from spark.jobs.session import JobError


@contextmanager
def no_session(name: str, *, master: str | None = None) -> Iterator[None]:
    yield None


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        (spark.jobs.verify, "verify", ["verify", "--report", "report"]),
        (spark.jobs.statistics, "statistics", ["statistics"]),
        (spark.jobs.export, "export", ["export", "--path", "out"]),
        (spark.jobs.import_, "import_rows", ["import", "--path", "out", "--write-id", "june"]),
    ],
)
def test_file_of_the_command_is_that_of_its_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: Any, name: str, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("client.conf").write_text("metadataServiceUri=zk://zk1:2181/ledgers\n")
    given: list[Any] = []

    def job(*values: object, **named: object) -> None:
        given.append((values[1], named["client_conf"]))
        raise JobError("enough seen")

    monkeypatch.setattr(spark.jobs.session, "job_session", no_session)
    monkeypatch.setattr(module, name, job)
    CliRunner().invoke(commands, [*arguments, "--conf", "client.conf"])
    assert given == [("zk://zk1:2181/ledgers", str(tmp_path / "client.conf"))]
