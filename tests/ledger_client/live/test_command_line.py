"""`python -m ledger_client`, as somebody types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.ledger_client.live.cluster import LiveCluster

ROOT = Path(__file__).parent.parent.parent.parent


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ledger_client", *arguments],
        cwd=ROOT, input=stdin, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


def test_lines_become_a_ledger_and_come_back(cluster: LiveCluster) -> None:
    lines = b"".join(b"line %d\n" % i for i in range(500))
    uri = f"--uri={cluster.uri}"
    written = run(uri, "append", stdin=lines)
    assert written.returncode == 0, written.stderr
    ledger_id = written.stdout.decode().strip()
    assert run(uri, "read", ledger_id).stdout == lines
    assert run(uri, "read", ledger_id, "--first=498").stdout == b"line 498\nline 499\n"
    shown = json.loads(run(uri, "--json", "show", ledger_id).stdout)
    assert (shown["state"], shown["last_entry"]) == ("CLOSED", 499)
    assert ledger_id in run(uri, "list").stdout.decode().split()
    assert run(uri, "delete", ledger_id).returncode == 0
    gone = run(uri, "read", ledger_id)
    assert gone.returncode == 1
    assert b"deleted, or never made" in gone.stderr
    assert b"Traceback" not in gone.stderr
