"""Apache BookKeeper's Java client in a JVM of its own, driven from Python through py4j.

The gateway listens on a loopback port that the system picks and asks for a token that only we know.
The JVM reads its standard input and ends when that does, so it cannot outlive the test run.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from bench.peers.jars import LOGGING, JavaPeerError, resolve_jars
from runtime.java import find_java

_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 20


class JavaPeer:
    """A running JVM. `jvm` reaches its classes: `peer.jvm.java.lang.System.nanoTime()`."""

    def __init__(self, version: str, process: subprocess.Popen[bytes], gateway: Any) -> None:
        self.version = version
        self.pid = process.pid
        self.jvm: Any = gateway.jvm
        self._gateway = gateway

    def strings(self, *values: str) -> Any:
        """As a Java array, for methods that take as many as there are."""
        array = self._gateway.new_array(self.jvm.java.lang.String, len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array


@contextmanager
def java_peer(version: str, folder: Path, *, logging: str = LOGGING) -> Iterator[JavaPeer]:
    """A JVM with this version of BookKeeper; its logs go to `java.log` in `folder`."""
    settings = folder / "log4j2.properties"
    settings.write_text(logging)
    jars = resolve_jars(version)
    [bridge] = Path(pyspark.__file__).parent.joinpath("jars").glob("py4j-*.jar")
    command = [
        str(find_java().path),
        *("-Xmx768m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
        # What py4j calls through reflection: collections, and classes that only an interface names.
        *("--add-opens", "java.base/java.util=ALL-UNNAMED"),
        *("--add-opens", "java.base/java.util.concurrent=ALL-UNNAMED"),
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
        f"-Dlog4j2.configurationFile={settings}",
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
