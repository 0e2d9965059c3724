"""The ZooKeeper in a child process: how it starts, ends, and refuses to start."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import runtime.local_zookeeper
from runtime.java import Java, JavaNotFoundError, JavaSource
from runtime.local_zookeeper import (
    LocalZookeeper,
    LocalZookeeperError,
    free_port,
    quorum,
    running_zookeeper,
)

PATIENCE_SECONDS = 30.0


def is_alive(pid: int) -> bool:
    """A process that ended but was not collected does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZookeeper]:
    server = LocalZookeeper(tmp_path_factory.mktemp("zookeeper"), durable=False).start()
    yield server
    server.stop()


def test_a_started_server_answers_on_the_loopback_only(server: LocalZookeeper) -> None:
    assert server.is_running
    assert server.address == f"127.0.0.1:{server.port}"
    assert server.ask("ruok") == b"imok"
    assert b"Mode: standalone" in server.ask("srvr")
    listening = subprocess.run(
        ["cat", f"/proc/{server.pid}/net/tcp", f"/proc/{server.pid}/net/tcp6"],
        capture_output=True,
        check=True,
    ).stdout.decode()
    port = f":{server.port:04X} "
    listeners = [line.split()[1] for line in listening.splitlines() if f"{port}0" in line]
    assert listeners
    assert all(address.split(":")[0].endswith("0100007F") for address in listeners)


def test_a_killed_server_starts_again_on_its_folder_and_port(server: LocalZookeeper) -> None:
    port, pid = server.port, server.pid
    server.kill()
    assert not server.is_running
    assert server.ask("ruok") == b""
    server.start()
    assert (server.port, server.ask("ruok")) == (port, b"imok")
    assert server.pid != pid


def test_a_paused_server_goes_on_where_it_was(server: LocalZookeeper) -> None:
    server.pause()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.2) as connection:
            connection.sendall(b"ruok")
            with pytest.raises(TimeoutError):
                connection.recv(4)
    finally:
        server.resume()
    assert server.ask("ruok") == b"imok"


def test_a_busy_folder_is_refused(server: LocalZookeeper) -> None:
    with pytest.raises(LocalZookeeperError, match="in use by another ZooKeeper"):
        LocalZookeeper(server.folder).start()


def test_a_busy_port_is_refused(server: LocalZookeeper, tmp_path: Path) -> None:
    with pytest.raises(LocalZookeeperError, match=f"port {server.port} is in use"):
        LocalZookeeper(tmp_path, port=server.port).start()


async def test_stopping_is_repeatable_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with running_zookeeper(LocalZookeeper(tmp_path / "a", durable=False)) as server:
        pid = server.pid
        assert server.is_running
        server.pause()  # a paused one can be stopped, too
    assert not is_alive(pid)
    server.stop()
    server.kill()
    assert not {thread for thread in threading.enumerate() if "zoo" in thread.name} - before
    assert "standalone" in server.log_path.read_text()


def test_a_server_that_ignores_the_request_to_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runtime.local_zookeeper,
        "_jvm",
        lambda *_, **__: [
            sys.executable,
            "-c",
            (
                "import signal, time\n"
                "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                "print('deaf', flush=True)\n"
                "time.sleep(600)"
            ),
        ],
    )
    server = LocalZookeeper(tmp_path, java=Java(Path(sys.executable), 17, JavaSource.PATH))
    server.launch()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "deaf" not in server.log_path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = server.pid
    server.stop(timeout_seconds=0.1)
    assert not is_alive(pid)


def test_a_server_that_does_not_come_up_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        runtime.local_zookeeper,
        "_jvm",
        lambda *_, **__: [sys.executable, "-c", "import time; time.sleep(600)"],
    )
    server = LocalZookeeper(tmp_path, java=Java(Path(sys.executable), 17, JavaSource.PATH))
    with pytest.raises(LocalZookeeperError, match=r"not ready after 0\.2 s: see .*zookeeper\.log"):
        server.start(timeout_seconds=0.2)
    assert not server.is_running


def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "data" / "version-2").mkdir(parents=True)
    (tmp_path / "data" / "version-2" / "snapshot.0").write_bytes(b"")
    (tmp_path / "data" / "version-2" / "log.1").write_bytes(b"no log")
    with pytest.raises(LocalZookeeperError, match=r"ended at once \(.*(Exception|ERROR).*\): see"):
        LocalZookeeper(tmp_path).start()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalZookeeperError, match=f"cannot write to {tmp_path}/file"):
        LocalZookeeper(tmp_path / "file").start()


def test_without_pyspark_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    java = Java(Path("/nowhere/java"), 17, JavaSource.PATH)
    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(LocalZookeeperError, match=r"pip install quire\[local\]"):
        LocalZookeeper(tmp_path, java=java).start()


def test_a_jar_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("pyspark", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    java = Java(Path("/nowhere/java"), 17, JavaSource.PATH)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(LocalZookeeperError, match="holds no zookeeper jar"):
        LocalZookeeper(tmp_path, java=java).start()


def test_without_java_the_error_is_that_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_java() -> Java:
        raise JavaNotFoundError("no Java 17 or newer")

    monkeypatch.setattr(runtime.local_zookeeper, "find_java", find_java)
    with pytest.raises(JavaNotFoundError, match="no Java"):
        LocalZookeeper(tmp_path).start()


def test_pyspark_is_found_and_not_imported(server: LocalZookeeper) -> None:
    command = (
        "import sys; from runtime.local_zookeeper import _jars; "
        "assert len(_jars()) == 9; assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", command], check=True)


def test_the_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even if that is killed, and even if the thread that asked for the start is long gone."""
    command = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from runtime.local_zookeeper import LocalZookeeper\n"
        "server = LocalZookeeper(Path(sys.argv[1]), durable=False)\n"
        "thread = threading.Thread(target=server.start)\n"
        "thread.start(); thread.join()\n"
        "time.sleep(0.2)\n"
        "assert server.ask('ruok') == b'imok'\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.communicate()
    wait_until_gone(pid)


def test_three_servers_form_a_quorum_that_outlives_its_leader(tmp_path: Path) -> None:
    servers = quorum(tmp_path, durable=False)
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
        leaders = [server for server in servers if b"Mode: leader" in server.ask("srvr")]
        assert len(leaders) == 1
        leaders[0].kill()
        for server in servers:
            if server is not leaders[0]:
                server.wait_ready()
    finally:
        for server in servers:
            server.stop()


def test_free_ports_lie_below_those_that_connections_get() -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    ports = {free_port() for _ in range(10)}
    assert max(ports) < int(text.split()[0])


def test_port_is_not_given_twice_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for several, one per bookie, begins to listen later."""
    drawn = iter([5, 5, 5, 7])
    monkeypatch.setattr("secrets.randbelow", lambda _: next(drawn))
    monkeypatch.setattr(runtime.local_zookeeper, "_is_free", lambda port: True)
    assert free_port() != free_port()
