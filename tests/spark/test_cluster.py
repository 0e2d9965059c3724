"""Executors in processes of their own, one of which is killed while it reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ledger_client import DigestType
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.ledgers import payloads, written
from tests.spark.session import ROOT

SECONDS = 280.0


def test_killed_executor_changes_no_result(cluster: LiveCluster, tmp_path: Path) -> None:
    """Packages by file, the password from the environment, both as on a real cluster."""
    ledger = written(cluster, payloads(3000, 1000), password=b"secret", digest_type=DigestType.HMAC)

    done = subprocess.run(
        [
            sys.executable, "-m", "tests.spark.cluster_job", cluster.uri, str(ledger), "secret",
            str(tmp_path),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows": 3000, "sum": 3000 * 2999 // 2}
