"""`quire bookie` and `quire zookeeper` in the foreground, and the `quire` command itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.local_zookeeper import free_port
from tests.quire.commands import ENVIRONMENT, ROOT, Cluster, quire, wait_until
from tests.support.zookeeper import fresh_root_path, shared_zookeeper


def test_zookeeper_serves_until_it_is_stopped(tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "zookeeper", "--dir", str(tmp_path), "--port", str(port)],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        assert said["zookeeper"] == f"127.0.0.1:{port}"
        busy = quire("zookeeper", "--dir", tmp_path / "other", "--port", port)
        assert busy.code == 2
        assert f"port {port} is in use" in busy.err
        made = quire("shell", "--uri", f"zk://127.0.0.1:{port}/ledgers", "initnewcluster")
        assert made.code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_configuration_of_a_bookie_is_checked_without_starting_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    checked = quire("bookie", "--conf", cluster.conf(1), "--check")
    assert checked.code == 0
    assert checked.lines[-1] == "the configuration is fine"
    conf = tmp_path / "bk_server.conf"
    conf.write_text(cluster.conf(1).read_text() + "quire_httpTokenFile=nowhere\n")
    refused = quire("bookie", "--conf", conf, "--check")
    assert refused.code == 1
    assert "cannot read the token in nowhere" in refused.err
    assert (len(refused.err.splitlines()), refused.out) == (1, "")


def test_autorecovery_runs_in_the_process_of_a_bookie(tmp_path: Path) -> None:
    """One file for both: each takes its own keys, and knows those of the other."""
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"
    assert quire("shell", "--uri", uri, "initnewcluster").code == 0
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={uri}\njournalDirectories={tmp_path}/journal\n"
        f"ledgerDirectories={tmp_path}/ledgers\nbookiePort={free_port()}\nallowLoopback=true\n"
        "advertisedAddress=127.0.0.1\nautoRecoveryDaemonEnabled=true\nquire_readerThreads=2\n"
        "lostBookieRecoveryDelay=5\nquire_auditorEnabled=true\n"
    )
    checked = quire("autorecovery", "--conf", conf, "--check")
    assert (checked.code, checked.lines[-1]) == (0, "the configuration is fine")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "quire", "bookie", "--conf", str(conf)],
            cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        info = ("shell", "--uri", uri, "clusterinfo", "--json")
        wait_until(lambda: bool(quire(*info).json["auditorElected"]))
        assert quire(*info).json["writableBookiesCount"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert not quire(*info).json["auditorElected"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["--nothing"], "No such option"),
        (["zookeeper"], "Missing option '--dir'"),
        (["zookeeper", "--dir", "x", "--port", 0], "0 is not in the range"),
        (["demo", "--entries", "few"], "'few' is not a valid integer"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[object], said: str) -> None:
    result = quire(*arguments)
    assert result.code == 2
    assert said in result.error


def test_every_command_explains_itself() -> None:
    overview = quire("--help")
    assert overview.code == 0
    assert quire("--version").out.startswith("quire ")
    for command in ("up", "down", "status", "demo", "bookie", "zookeeper", "doctor"):
        assert f"\n  {command}" in overview.out
        assert f"Example: quire {command}" in quire(command, "--help").out


def test_shell_completion_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """`eval "$(_QUIRE_COMPLETE=bash_source quire)"` is all it takes."""
    words = {"_QUIRE_COMPLETE": "bash_complete", "COMP_WORDS": "quire le", "COMP_CWORD": "1"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert "ledgers" in quire().out


def test_internal_error_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("quire.up.ClusterFolder", broken)
    result = quire("status")
    assert result.code == 70
    assert "internal error: ZeroDivisionError: a bug; QUIRE_TRACEBACK=1 shows where" in result.error
