"""`python -m bookie`: what an operator types, and what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.__main__ import main
from runtime import logs
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import run, write_conf

URI = "zk://127.0.0.1:1/ledgers"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def no_log_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run inside the test must not change where the test's process logs to."""
    monkeypatch.setattr(logs, "configure", lambda *arguments: None)


def test_help_names_the_options() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "--conf" in done.stdout
    assert "--check" in done.stdout


def test_missing_package_is_named_with_the_remedy() -> None:
    """Who installed the client alone has no RocksDB."""
    code = (
        "import runpy, sys; sys.modules['rocksdict'] = None; "
        "sys.argv = ['bookie', '--help']; runpy.run_module('bookie', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "bookie: rocksdict is not installed: run pip install 'quire[bookie]'\n"


def test_check_says_what_the_bookie_would_be(tmp_path: Path) -> None:
    port = free_port()
    done = run("--conf", write_conf(tmp_path, URI, port), "--check")
    assert done.returncode == 0, done.stderr
    assert f"bookie 127.0.0.1:{port}" in done.stdout
    assert "not used yet" in done.stdout
    assert not (tmp_path / "journal").exists(), "a check changes nothing"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ledgerDirectorys": "/x"}, "did you mean ledgerDirectories?"),
        ({"bookiePort": 70000}, "from 0 to 65535"),
        ({"allowLoopback": "false"}, "allowLoopback=true"),
        ({"autoRecoveryDaemonEnabled": "true"}, "`quire bookie`"),
        ({"httpServerEnabled": "true"}, "`quire bookie`"),
        ({"tlsProviderFactoryClass": "x.Y"}, "org.apache.bookkeeper.tls.TLSContextFactory"),
        ({"metadataServiceUri": "etcd://x/y"}, "unknown scheme"),
        ({"journalDirectories": ""}, "journalDirectories is not set"),
        ({"diskUsageThreshold": 0.5}, "disk thresholds"),
    ],
)
def test_wrong_configuration_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], said: str
) -> None:
    assert main(["--conf", str(write_conf(tmp_path, URI, 3181, **changes)), "--check"]) != 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("bookie: ")
    assert said in line


def test_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--conf", "no-such.conf"]) == 1
    assert "no-such.conf: cannot read the configuration" in capsys.readouterr().err


def test_directory_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledgers").write_text("")
    assert main(["--conf", str(write_conf(tmp_path, URI, 3181)), "--check"]) == 1
    assert "is no directory" in capsys.readouterr().err


def test_unused_key_is_reported_and_ignored(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, URI, 3181, readBufferSizeBytes=4096)
    done = run("--conf", conf, "--check")
    assert done.returncode == 0
    assert "readBufferSizeBytes has no effect" in done.stderr


def test_sample_configuration_is_fine(tmp_path: Path) -> None:
    text = (ROOT / "conf/bk_server.conf").read_text().replace("/var/lib/quire", str(tmp_path))
    conf = tmp_path / "bk_server.conf"
    conf.write_text(text + "advertisedAddress=127.0.0.1\nallowLoopback=true\n")
    assert main(["--conf", str(conf), "--check"]) == 0


def test_unreachable_metadata_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: connecting is refused at once
        taken.bind(("127.0.0.1", 0))
        uri = f"zk://127.0.0.1:{taken.getsockname()[1]}/ledgers"
        done = run("--conf", write_conf(tmp_path, uri, free_port(), zkTimeout=1000,
                                        quire_logLevel="error"))  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("bookie: ")
    assert "Traceback" not in done.stderr
