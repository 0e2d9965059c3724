"""`quire console` and `quire up --console`: arguments, and the page of a cluster of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console.requests import request
from tests.quire.commands import ENVIRONMENT, PATIENCE_SECONDS, ROOT, quire
from tests.support.zookeeper import fresh_root_path, shared_zookeeper

URI = "zk://127.0.0.1:2181/ledgers"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--metadata-uri", "nonsense"], 1, "nonsense"),
        (["--metadata-uri", URI, "--port", "70000"], 2, "70000 is not in the range"),
        (["--metadata-uri", URI, "--host", "0.0.0.0"], 2, "give --token-file"),
        (["--metadata-uri", URI, "--host", "here"], 1, "want an address of this machine"),
        (["--metadata-uri", URI, "--tls-key", "x"], 2, "belong together"),
        (["--metadata-uri", URI, "--token-file", "absent"], 1, "cannot read the token in absent"),
        (["--dir", "absent"], 1, "there is no absent"),
        (["extra"], 2, "unexpected extra argument"),
    ],
)
def test_wrong_argument_is_one_line(arguments: list[str], code: int, said: str) -> None:
    result = quire("console", *arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.error


def test_cluster_that_is_none_is_one_line() -> None:
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"
    result = quire("console", "--metadata-uri", uri, "--port", "0")
    assert result.code == 1
    assert "Traceback" not in result.err


def test_console_of_any_cluster_has_no_faults(tmp_path: Path) -> None:
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"
    assert quire("shell", "initnewcluster", "--uri", uri).code == 0
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o600)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "quire", "console", "--metadata-uri", uri, "--port", "0"),
            *("--host", "127.0.0.2", "--token-file", str(token)),
        ],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        assert said["metadataServiceUri"] == uri
        url = said["console"]
        about = request("GET", f"{url}console/about").json
        assert (about["cluster"], about["hasFaults"], about["isPrivate"]) == (uri, False, False)
        assert request("GET", f"{url}console/ledgers").json["total"] == 0
        refused = request("POST", f"{url}console/ledgers/1/entries", {})
        assert refused.status == 401
        gone = request(
            "POST", f"{url}console/ledgers/1/entries", {}, token=token.read_text().strip()
        )
        assert gone.status == 404
    finally:
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
        process.stdout.close()
