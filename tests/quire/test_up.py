"""A cluster in one command: start, restart, stop, and what stands in the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ledger_client import LedgerClient
from quire.cluster_folder import ClusterFolder
from quire.processes import is_alive
from tests.quire.commands import Cluster, quire, quire_process, running_cluster, wait_until
from tests.support.zookeeper import fresh_root_path, shared_zookeeper


def zookeeper_address() -> str:
    return f"{shared_zookeeper().address}{fresh_root_path()}"


def zookeeper_pid(cluster: Cluster) -> int:
    """The child of `quire up` that is no bookie."""
    children = Path(f"/proc/{cluster.process.pid}/task")
    pids = {
        int(pid) for task in children.iterdir() for pid in (task / "children").read_text().split()
    }
    (found,) = pids - {bookie["pid"] for bookie in cluster.bookies}
    return found


async def append(uri: str, payloads: list[bytes]) -> int:
    async with LedgerClient(uri) as client:
        ledger = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append_many(payloads)
        await ledger.close()
        return ledger.id


async def read(uri: str, ledger_id: int) -> list[bytes]:
    async with LedgerClient(uri) as client:
        reader = await client.open(ledger_id)
        return [entry.payload async for entry in reader.read(0, reader.last_confirmed)]


def test_cluster_lives_dies_and_comes_back_with_its_data(tmp_path: Path) -> None:
    """SIGKILL leaves no chance to clean up: children notice by themselves, and the next start.

    Also: what is said when ready, what is in the folder, who may use that meanwhile.
    """
    folder = tmp_path / "data"
    with running_cluster(folder, "--bookies", 1) as first:
        assert set(first.record) == {"metadataServiceUri", "zookeeper", "bookies", "console"}
        assert [set(bookie) for bookie in first.bookies] == [{"id", "pid", "dir", "http"}]
        assert json.loads((folder / "cluster.json").read_text()) == first.record
        assert first.uri == f"zk://{first.record['zookeeper']}/ledgers"
        ledger_id = trio.run(append, first.uri, [b"one", b"two"])
        pids = [first.bookies[0]["pid"], zookeeper_pid(first)]
        assert all(map(is_alive, pids))
        first.process.kill()
        first.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)))
    assert (folder / "cluster.json").exists()
    for command in ("status", "down"):
        stale = quire(command, "--dir", folder)
        assert stale.code == 1
        assert "its cluster.json is stale" in stale.error

    with running_cluster(folder, "--bookies", 2) as second:
        assert second.uri == first.uri
        ids = [bookie["id"] for bookie in second.bookies]
        assert ids[:1] == [bookie["id"] for bookie in first.bookies]
        assert len(ids) == 2
        assert trio.run(read, second.uri, ledger_id) == [b"one", b"two"]
        used = quire("up", "--dir", folder)
        assert used.code == 1
        assert f"is in use by the cluster of process {second.process.pid}" in used.error
        status = quire("status", "--dir", folder, "--json")
        assert [bookie["state"] for bookie in status.json["bookies"]] == ["writable"] * 2
        assert str(ids[0]) in quire("status", "--dir", folder).out

        assert second.stop(signal.SIGINT) == 0
        assert not any(is_alive(bookie["pid"]) for bookie in second.bookies)
    assert not (folder / "cluster.json").exists()
    assert "no cluster runs in" in quire("status", "--dir", folder).error


def test_detached_cluster_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    address = zookeeper_address()
    started = quire_process(
        "up", "--dir", folder, "--bookies", 1, "--zk", address, "--detach", "--console"
    )
    try:
        assert started.code == 0
        # The token is for whoever started it, and in no file that others read.
        link = started.err.strip().removeprefix("quire: console: ")
        url, _, token = link.partition("#token=")
        assert url == started.json["console"]
        assert token not in (folder / "up.log").read_text() + started.out
        assert f"console: {link}" in quire("status", "--dir", folder).out
        assert started.json == json.loads((folder / "cluster.json").read_text())
        assert started.json["zookeeper"] == shared_zookeeper().address
        assert quire("up", "--dir", folder, "--detach").code == 1
        bookie = started.json["bookies"][0]
        os.kill(bookie["pid"], signal.SIGKILL)
        wait_until(lambda: not is_alive(bookie["pid"]))
        (row,) = quire("status", "--dir", folder, "--json").json["bookies"]
        assert not row["running"]
        assert row["state"].startswith("ended")
        news = "bookie-1 was killed by signal 9"
        wait_until(lambda: news in (folder / "up.log").read_text())
    finally:
        stopped = quire("down", "--dir", folder)
    assert stopped.code == 0
    assert "has stopped" in stopped.out


def test_detached_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    failed = quire("up", "--dir", tmp_path, "--zk", "127.0.0.1:99999", "--detach")
    assert failed.code == 1
    assert "'99999' is not a port" in failed.error


def test_busy_port_is_named_before_anything_runs(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        plan = {"format": 1, "zookeeper": zookeeper_address(), "embedded": False}
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps({**plan, "bookie_ports": [port]}))
        failed = quire("up", "--dir", folder)
        assert failed.code == 1
        assert f"cannot listen on 127.0.0.1:{port}" in failed.error


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--bookies", "none"], 2, "'none' is not a valid integer"),
        (["--bookies", 0], 2, "0 is not in the range"),
        (["--zk", "127.0.0.1:99999"], 1, "'99999' is not a port"),
        (["--console-port", 0], 2, "0 is not in the range"),
        (["extra"], 2, "unexpected extra argument (extra)"),
    ],
)
def test_wrong_argument_is_one_line(
    tmp_path: Path, arguments: list[object], code: int, said: str
) -> None:
    result = quire("up", "--dir", tmp_path / "data", *arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.error


def plan_of(**changes: object) -> str:
    plan: dict[str, object] = {
        "format": 1, "zookeeper": "127.0.0.1:1", "embedded": True, "bookie_ports": [1, 2],
    }  # fmt: skip
    return json.dumps(plan | changes)


@pytest.mark.parametrize(
    ("name", "text", "arguments", "said"),
    [
        ("letter.txt", "dear", [], "is not empty and no folder of a cluster"),
        ("plan.json", "no json", [], "plan.json cannot be understood"),
        ("plan.json", "[]", [], "plan.json cannot be understood"),
        ("plan.json", plan_of(format=9), [], "made by another version"),
        ("plan.json", plan_of(), ["--bookies", 1], "has 2 bookies"),
        ("plan.json", plan_of(), ["--zk", "127.0.0.1:2"], "was made with its own ZooKeeper"),
    ],
)
def test_folder_that_cannot_be_used_is_left_alone(
    tmp_path: Path, name: str, text: str, arguments: list[object], said: str
) -> None:
    (tmp_path / name).write_text(text)
    result = quire("up", "--dir", tmp_path, *arguments)
    assert result.code == 1
    assert said in result.error
    assert (tmp_path / name).read_text() == text


def test_processes_of_an_earlier_run_are_not_joined_by_others(tmp_path: Path) -> None:
    """A record that names a living bookie: it may still write to the folder."""
    place = str(tmp_path / "bookie-1")
    (tmp_path / "plan.json").write_text(plan_of())
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then it may have no command line to be known by
        record = {"bookies": [{"pid": process.pid, "dir": place}]}
        (tmp_path / "cluster.json").write_text(json.dumps(record))
        result = quire("up", "--dir", tmp_path)
        assert result.code == 1
        assert f"may still be there ({process.pid})" in result.error


def test_number_of_a_dead_bookie_may_belong_to_anybody(tmp_path: Path) -> None:
    record = {"bookies": [{"pid": os.getpid(), "dir": str(tmp_path / "bookie-1")}]}
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    assert ClusterFolder(tmp_path).leftover_pids() == []


def test_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert quire("up", "--dir", tmp_path / "file").code == 2
    below = quire("up", "--dir", tmp_path / "file" / "data")
    assert below.code == 1
    assert "cannot be used: Not a directory" in below.error
    for command in ("down", "status"):
        missing = quire(command, "--dir", tmp_path / "missing")
        assert missing.code == 1
        assert "name the cluster's folder with --dir" in missing.error
