"""A real ZooKeeper as a child process, from the jars that the PySpark wheel carries.

For a laptop and for tests: nothing has to be installed beside Python packages and a Java. It is
ZooKeeper's own server, so it may be killed, paused, restarted on its folder and run as a quorum.

    with LocalZookeeper(folder) as server:
        connect(server.address)

The child dies with its parent, even one that is killed with SIGKILL (on Linux). The kernel ties
that to the *thread* which started the child, so a thread per server starts it and stays until
its end; `start` may be called from any thread, short-lived ones included.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trio

from runtime.java import Java, find_java
from wire.errors import LedgerError

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0  # half a second on an idle machine
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_PORT_ATTEMPTS: Final = 20

#: Below the range from which connections get their own ports. A port from that range can be
#: taken by any client while our server is down, even by one that is dialling that very port.
_PORTS: Final = range(16_000, 32_000)
#: By this process, lately.
_given_ports: Final[deque[int]] = deque(maxlen=1000)


class LocalZookeeperError(LedgerError):
    """The local ZooKeeper cannot be started."""


class LocalZookeeper:
    """One server. It keeps its data, configuration and log in `folder`, which may be reused."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        tick_ms: int = 500,
        durable: bool = True,
        java: Java | None = None,
        settings: Mapping[str, object] | None = None,
        jvm: Sequence[str] = (),
        jars: Sequence[str] = (),
    ) -> None:
        """Without `port` a free one is chosen, and kept over restarts of this object.

        Sessions last at least two ticks. `durable=False` leaves out fsync: a killed server still
        loses nothing, a machine without power may. `settings` go into its configuration, `jvm` to
        its virtual machine; `jars` are names of further ones that these need.
        """
        self.folder = folder
        self.port = free_port() if port is None else port
        self._tick_ms = tick_ms
        self._durable = durable
        self._java = java
        self._settings = dict(settings or {})
        self._arguments = tuple(jvm)
        self._jars = tuple(jars)
        self._quorum: tuple[str, ...] = ()
        self._child: _Child | None = None

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the server was not started"
        return self._child.pid

    @property
    def log_path(self) -> Path:
        return self.folder / "zookeeper.log"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def start(self, timeout_seconds: float = _START_SECONDS) -> Self:
        """Return when clients can connect. Whatever goes wrong, nothing is left running."""
        self.launch()
        try:
            self.wait_ready(timeout_seconds)
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start the process without waiting for it: for a quorum, whose members wait for others."""
        assert not self.is_running, "the server runs already"
        if self._java is None:
            self._java = find_java()
        virtual_machine = _jvm(self._java, self.folder, self._jars, durable=self._durable)
        command = [*virtual_machine, *self._arguments, *self._configure()]
        self._refuse_busy_port()
        with ExitStack() as stack:
            lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, lock)
            try:
                # The child inherits the lock, and its end, whatever it is, releases it.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LocalZookeeperError(
                    f"{self.folder} is in use by another ZooKeeper: stop it, or use another folder"
                ) from None
            log = stack.enter_context(open(self.log_path, "ab"))
            self._child = _Child(command, log_descriptor=log.fileno(), inherited=lock)

    def wait_ready(self, timeout_seconds: float = _START_SECONDS) -> None:
        """Until it serves clients; in a quorum that takes a majority."""
        deadline = time.monotonic() + timeout_seconds
        while b"Mode: " not in self.ask("srvr"):
            if not self.is_running:
                raise LocalZookeeperError(
                    f"ZooKeeper on {self.address} ended at once ({self._last_words()}): "
                    f"see {self.log_path}"
                )
            if time.monotonic() > deadline:
                raise LocalZookeeperError(
                    f"ZooKeeper on {self.address} is not ready after {timeout_seconds:g} s: "
                    f"see {self.log_path}"
                )
            time.sleep(_POLL_SECONDS)

    def ask(self, command: str) -> bytes:
        """The answer to one of ZooKeeper's four-letter words, empty if there is none."""
        answer = b""
        try:
            with socket.create_connection((_HOST, self.port), timeout=1.0) as connection:
                connection.sendall(command.encode())
                while chunk := connection.recv(65536):
                    answer += chunk
        except OSError:
            return b""
        return answer

    def stop(self, timeout_seconds: float = _STOP_SECONDS) -> None:
        """Ask it to end, insist if it does not. Idempotent."""
        if self._child is None:
            return
        self._child.send(signal.SIGTERM)
        self._child.send(signal.SIGCONT)  # a paused process cannot end
        if not self._child.wait(timeout_seconds):
            self.kill()

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)
            self._child.wait(None)

    def pause(self) -> None:
        """Make it hang: connections stay open and nobody answers."""
        assert self._child is not None, "the server was not started"
        self._child.send(signal.SIGSTOP)
        # The signal stops one thread after the other, and an answer may still slip out.
        deadline = time.monotonic() + _STOP_SECONDS
        while not _is_stopped(self._child.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def resume(self) -> None:
        assert self._child is not None, "the server was not started"
        self._child.send(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _join_quorum(self, lines: Sequence[str], number: int) -> None:
        self._quorum = tuple(lines)
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "data" / "myid").write_text(f"{number}\n")

    def _configure(self) -> list[str]:
        """Write the configuration and return the arguments that name it."""
        try:
            (self.folder / "data").mkdir(parents=True, exist_ok=True)
            (self.folder / "log4j2.properties").write_text(_LOGGING)
            configuration = self.folder / "zoo.cfg"
            lines = [
                f"dataDir={self.folder.absolute() / 'data'}",
                f"tickTime={self._tick_ms}",
                "maxSessionTimeout=60000",
                "maxClientCnxns=0",
                "initLimit=40",
                "syncLimit=20",
                "admin.enableServer=false",
                "4lw.commands.whitelist=ruok,srvr,mntr",
                "autopurge.snapRetainCount=3",
                "autopurge.purgeInterval=1",
                # A member of a quorum has its client port in its server line instead.
                *(self._quorum or (f"clientPortAddress={_HOST}", f"clientPort={self.port}")),
                *(f"{key}={value}" for key, value in self._settings.items()),
            ]
            configuration.write_text("\n".join(lines) + "\n")
        except OSError as error:
            raise LocalZookeeperError(f"cannot write to {self.folder}: {error.strerror}") from error
        return ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]

    def _refuse_busy_port(self) -> None:
        if not _is_free(self.port):
            raise LocalZookeeperError(
                f"port {self.port} is in use: stop what listens there, or choose another port"
            )

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        telling = [line for line in lines if "Exception" in line or "ERROR" in line]
        return (telling or lines or ["it said nothing"])[-1].strip()


def quorum(
    folder: Path, size: int = 3, *, tick_ms: int = 500, durable: bool = True
) -> list[LocalZookeeper]:
    """Servers that form one ensemble, not started. Launch all of them, then wait for each."""
    servers = [
        LocalZookeeper(folder / str(number), tick_ms=tick_ms, durable=durable)
        for number in range(1, size + 1)
    ]
    lines = [
        f"server.{number}={_HOST}:{free_port()}:{free_port()};{server.address}"
        for number, server in enumerate(servers, start=1)
    ]
    for number, server in enumerate(servers, start=1):
        server._join_quorum(lines, number)
    return servers


@asynccontextmanager
async def running_zookeeper(server: LocalZookeeper) -> AsyncIterator[LocalZookeeper]:
    """The same for trio: start and stop wait in a thread."""
    await trio.to_thread.run_sync(server.start)
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.stop)


def _is_stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped, by the kernel's word."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(stat.read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue  # a thread that ended meanwhile
    return all(state == "T" for state in states)


def free_port() -> int:
    """A port on the loopback interface that nobody uses and no connection will be given.

    Nor will the next who ask here: they often ask for several before any of them is used.
    """
    for _ in range(_PORT_ATTEMPTS):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if port not in _given_ports and _is_free(port):
            _given_ports.append(port)
            return port
    raise LocalZookeeperError(f"found no free port between {_PORTS.start} and {_PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does it: closed connections that still linger do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise LocalZookeeperError(f"cannot use port {port}: {error.strerror}") from error
    return True


class _Child:
    """The process, and the thread that is its parent in the eyes of the kernel."""

    def __init__(self, command: Sequence[str], *, log_descriptor: int, inherited: int) -> None:
        self._started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        self._thread = threading.Thread(
            target=self._run,
            args=(launcher, log_descriptor, inherited),
            name="local-zookeeper",
            daemon=True,
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise LocalZookeeperError(f"cannot start {command[0]}: {self._error}") from self._error

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Until the process has ended and was collected; False if it did not in time."""
        self._thread.join(timeout_seconds)
        return not self.is_running

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)  # does nothing to a process that has ended

    def _run(self, command: Sequence[str], log_descriptor: int, inherited: int) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_descriptor,
                stderr=log_descriptor,
                pass_fds=(inherited,),
                start_new_session=True,  # a Ctrl-C is for us; we stop the server in our turn
            )
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        self._process.wait()


def _jvm(java: Java, folder: Path, also: Sequence[str], *, durable: bool) -> list[str]:
    return [
        str(java.path),
        # It serves a laptop: start fast, stay small, leave no files elsewhere.
        # It grows only when it must. With 128 MiB at most, 100,000 ledgers left no room to breathe:
        # the server collected garbage most of the time, and sessions ended.
        *("-Xms64m", "-Xmx512m"),
        *("-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
        f"-Dlog4j2.configurationFile={folder.absolute() / 'log4j2.properties'}",
        f"-Dzookeeper.forceSync={'yes' if durable else 'no'}",
        "-Dzookeeper.preAllocSize=1024",  # KiB; the default of 64 MiB is for servers
        *("-cp", os.pathsep.join(str(jar) for jar in _jars(*also))),
    ]


def _jars(*also: str) -> list[Path]:
    """The nine jars of the wheel that a ZooKeeper server needs, and others by their names."""
    spec = importlib.util.find_spec("pyspark")  # found, not imported
    if spec is None or not spec.submodule_search_locations:
        raise LocalZookeeperError(
            "the local ZooKeeper comes with PySpark, which is not installed: "
            "run pip install quire[local], or use a ZooKeeper of your own"
        )
    folder = Path(spec.submodule_search_locations[0], "jars")
    jars = []
    for name in (*_JAR_NAMES, *also):
        # A digit follows: log4j-core-2.25.4.jar, and not log4j-core-test-2.25.4.jar.
        found = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not found:
            raise LocalZookeeperError(
                f"{folder} holds no {name} jar, which the local ZooKeeper needs: "
                "reinstall pyspark, or use a ZooKeeper of your own"
            )
        jars.append(found[-1])
    return jars


_JAR_NAMES: Final = (
    *("zookeeper", "zookeeper-jute", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"),
    *("metrics-core", "commons-io", "snappy-java"),
)

#: Run in the child before Java replaces it. If the parent died in between, nobody would send the
#: signal any more, hence the second look.
_LAUNCHER: Final = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_LOGGING: Final = """\
appenders = console
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRefs = stderr
rootLogger.appenderRef.stderr.ref = stderr
"""
