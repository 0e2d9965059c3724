"""`quire doctor`: what it finds in order, and what it says about what is not."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from quire import doctor_checks
from quire.doctor_checks import Verdict, check_sync, file_system_of
from runtime.java import JavaNotFoundError
from tests.quire.commands import Cluster, quire


def findings(*arguments: object, code: int) -> dict[str, dict[str, Any]]:
    result = quire("doctor", *arguments, "--json")
    assert result.code == code, result.out
    assert result.json["healthy"] == (code == 0)
    return {finding["subject"]: finding for finding in result.json["findings"]}


def test_healthy_cluster_passes(cluster: Cluster) -> None:
    conf = cluster.conf(1)
    found = findings("--conf", conf, code=0)
    bookie_id = cluster.bookies[0]["id"]
    assert found[f"cookie of {bookie_id}"]["found"] == "the same on disk and in the cluster"
    assert found[f"port {bookie_id.rpartition(':')[2]}"]["found"] == "the bookie is running"
    assert "per second" in found[f"sync in {conf.parent / 'journal'}"]["found"]
    assert found["bookies"]["verdict"] == "warning"  # one of the four has stopped
    assert cluster.bookies[3]["id"] in found["bookies"]["found"]
    assert {"python", "java", "open files", "zookeeper", "clock", "cluster"} < set(found)
    text = quire("doctor", "--conf", conf)
    assert text.lines[-1] == "nothing is broken"
    assert "-> start them, or decommission" in text.out


def test_every_bookie_of_a_local_cluster_is_looked_at(cluster: Cluster) -> None:
    found = findings("--dir", cluster.folder, code=0)
    assert len([subject for subject in found if subject.startswith("cookie of ")]) == 4


def test_wrong_configuration_is_a_failure(cluster: Cluster, tmp_path: Path) -> None:
    conf = tmp_path / "bk_server.conf"
    conf.write_text(cluster.conf(4).read_text() + "bookiePrt=3181\n")
    found = findings("--conf", conf, code=1)
    assert "did you mean bookiePort?" in found[f"configuration {conf}"]["advice"]
    assert found["zookeeper"]["verdict"] == "ok"


def test_lost_and_foreign_directories_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    """The stopped bookie, on copies of its directories that lack something or are another's."""
    home = cluster.conf(4).parent
    conf = tmp_path / "bk_server.conf"
    conf.write_text(cluster.conf(4).read_text().replace(str(home), str(tmp_path)))
    subject = f"cookie of {cluster.bookies[3]['id']}"
    lost = findings("--conf", conf, code=1)[subject]
    assert lost["found"] == f"in the cluster, and not in {tmp_path / 'journal'}"
    shutil.copytree(home / "journal", tmp_path / "journal")
    assert findings("--conf", conf, code=1)[subject]["found"].endswith(str(tmp_path / "ledgers"))
    shutil.copytree(home / "ledgers", tmp_path / "ledgers")
    assert findings("--conf", conf, code=0)[subject]["verdict"] == "ok"
    version = tmp_path / "ledgers" / "current" / "VERSION"
    version.write_text(version.read_text().replace("instanceId", "indexDirs"))
    assert "different on disk" in findings("--conf", conf, code=1)[subject]["found"]


def test_stranger_on_the_port_is_a_failure(cluster: Cluster, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        conf = tmp_path / "bk_server.conf"
        conf.write_text(
            f"metadataServiceUri={cluster.uri}\nbookiePort={port}\nallowLoopback=true\n"
            f"advertisedAddress=127.0.0.1\njournalDirectories={tmp_path}/j\n"
            f"ledgerDirectories={tmp_path}/l\n"
        )
        found = findings("--conf", conf, code=1)
    assert found[f"port {port}"]["verdict"] == "failure"
    assert found[f"cookie of 127.0.0.1:{port}"]["found"] == "none yet: a new bookie"


def test_absent_zookeeper_and_cluster_are_failures(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BK_zkTimeout", "1000")
    absent = findings("--uri", "zk://127.0.0.1:1/ledgers", code=1)
    assert "no connection to ZooKeeper" in absent["zookeeper"]["advice"]
    empty = findings("--uri", f"{cluster.uri}-none", code=1)
    assert "cluster not initialised" in empty["cluster"]["advice"]


def test_machine_without_java_or_files_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_java() -> None:
        raise JavaNotFoundError("no Java 17 or newer: install one")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_checks, "find_java", no_java)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 100))
    found = findings(code=1)
    assert found["java"]["verdict"] == "warning"
    assert found["open files"] == {
        "subject": "open files",
        "verdict": "failure",
        "found": "only 100 allowed",
        "advice": "raise it: ulimit -n 16384, or LimitNOFILE= of the service",
    }


def test_journal_in_memory_is_no_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_sync("journal", str(tmp_path)).verdict is not Verdict.FAILURE
    assert list(tmp_path.iterdir()) == []  # what was measured with is gone
    assert file_system_of("/proc") == "proc"
    monkeypatch.setattr(doctor_checks, "file_system_of", lambda place: "tmpfs")
    assert check_sync("journal", str(tmp_path)).verdict is Verdict.FAILURE


def test_folder_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    found = check_sync("journal", os.path.join(tmp_path, "missing"))
    assert found.verdict is Verdict.FAILURE
    assert "No such file" in found.found
