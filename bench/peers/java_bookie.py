"""Apache's own bookie as a process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.jars import resolve_jars, write_logging
from bench.peers.process import PeerBookie
from runtime.java import find_java

#: What Apache's start script adds for newer Javas, and its settings for Netty.
_OPEN: Final = (
    *("--add-opens", "java.base/java.io=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.util.zip=ALL-UNNAMED"),
    *("-Dio.netty.leakDetectionLevel=disabled", "-Dio.netty.tryReflectionSetAccessible=true"),
)
#: For tests, many at once on a laptop.
SMALL_JVM: Final = (
    *("-Xmx192m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
)
#: As Apache's own start script has it when nothing is set (`conf/bkenv.sh`).
DEFAULT_JVM: Final = (
    *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC"),
    *("-XX:MaxGCPauseMillis=10", "-XX:+ParallelRefProcEnabled", "-XX:+DisableExplicitGC"),
)


class JavaBookie(PeerBookie):
    """Its storage is the one that Apache's configuration names by default (sorted)."""

    # Its own words about a client that closed a connection are warnings.
    alarms = (" ERROR ", "OutOfMemoryError")
    forgiven = (
        "this is okay if it is the first time",
        # What it says of requests that it rightly refuses.
        "does not match the cached master key",
        "Unauthorized access to ledger",
        "Ledger fenced/deleted while writing",
        # A client that ended while answers were on their way.
        "Connection reset by peer",
        # Of a machine that is too busy; the bookie registers again.
        "connection to the ZooKeeper server has expired",
    )
    is_ours = False
    # A JVM that a signal ends says 128 and its number, also after a proper shutdown.
    good_codes = (0, 143)

    def __init__(
        self,
        folder: Path,
        uri: str,
        *,
        version: str,
        jvm: tuple[str, ...] = SMALL_JVM,
        **settings: object,
    ) -> None:
        theirs = {
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            "autoRecoveryDaemonEnabled": "false",
            "minUsableSizeForIndexFileCreation": 0,
            "minUsableSizeForEntryLogCreation": 0,
        }
        super().__init__(folder, uri, **(theirs | settings))
        self.version = version
        self._jvm = jvm

    def _command(self, conf: Path) -> list[str]:
        return [
            str(find_java().path),
            *self._jvm,
            *_OPEN,
            *("-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
            write_logging(self.folder),
            *("-cp", f"{resolve_jars(self.version)}/*"),
            *("org.apache.bookkeeper.server.Main", "--conf", str(conf)),
        ]
