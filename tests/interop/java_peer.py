"""Apache BookKeeper's Java client in a JVM of its own, driven from Python through py4j.

The jars come from Maven by the coordinates in `pom.xml`, once per version, into `.cache/`. The
gateway listens on a loopback port that the system picks and asks for a token that only we know.
The JVM reads its standard input and ends when that does, so it cannot outlive the test run.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from runtime.java import find_java

ROOT: Final = Path(__file__).parent.parent.parent
_POM: Final = Path(__file__).with_name("pom.xml")
_RESOLVE_SECONDS: Final = 600
_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 20


class JavaPeerError(Exception):
    """The Java side of a test cannot be had."""


def resolve_jars(version: str) -> Path:
    """The folder with this version of BookKeeper and all that it needs, fetched if need be."""
    # A change of the coordinates must not find the jars of the old ones.
    stamp = hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]
    folder = ROOT / ".cache" / "interop" / f"{version}-{stamp}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaPeerError("the interop tests need Maven: install it so that `mvn` is on the PATH")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        jars = Path(temporary, "jars")
        command = [
            *(maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
            *("-Dstyle.color=never", f"-Dbookkeeper.version={version}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS)
        if done.returncode != 0:
            lines = (line.removeprefix("[ERROR]").strip() for line in done.stdout.splitlines())
            said = [line for line in lines if line]
            raise JavaPeerError(
                f"Maven cannot fetch BookKeeper {version}; is the network there? "
                f"It says: {said[0] if said else done.stderr.strip()[-300:]}"
            )
        # Whoever was faster wins; the content is the same.
        if not folder.exists():
            jars.rename(folder)
    return folder


class JavaPeer:
    """A running JVM. `jvm` reaches its classes: `peer.jvm.java.lang.System.nanoTime()`."""

    def __init__(self, version: str, process: subprocess.Popen[bytes], gateway: Any) -> None:
        self.version = version
        self.pid = process.pid
        self.jvm: Any = gateway.jvm


@contextmanager
def java_peer(version: str, folder: Path) -> Iterator[JavaPeer]:
    """A JVM with this version of BookKeeper; its logs go to `folder`."""
    jars = resolve_jars(version)
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    [bridge] = Path(pyspark.__file__).parent.joinpath("jars").glob("py4j-*.jar")
    command = [
        str(find_java().path),
        *("-Xmx768m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
        # What py4j calls through reflection: collections, and classes that only an interface names.
        *("--add-opens", "java.base/java.util=ALL-UNNAMED"),
        *("--add-opens", "java.base/java.util.concurrent=ALL-UNNAMED"),
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
        f"-Dlog4j2.configurationFile={logging}",
        *("-cp", f"{bridge}:{jars}/*"),
        *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
    ]
    said = folder / "gateway.txt"
    with said.open("wb") as output, (folder / "java.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=log)
    try:
        port, token = _await_gateway(process, said)
        gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                port=int(port), auth_token=token, auto_convert=True, eager_load=False
            )
        )
        try:
            yield JavaPeer(version, process, gateway)
        finally:
            gateway.close(keep_callback_server=True)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # its sign to end
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_gateway(process: subprocess.Popen[bytes], said: Path) -> tuple[str, str]:
    """The port and the token, which the gateway prints first."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = said.read_text()
        if text.count("\n") >= 2:
            port, token = text.splitlines()[:2]
            return port, token
        time.sleep(0.02)
    raise JavaPeerError(f"the Java peer did not start: see {said.with_name('java.log')}")


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
