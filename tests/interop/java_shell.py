"""Apache's own shell, verb by verb, in one JVM: its results are what it logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError

from bench.peers.jars import LOGGING, NEWEST
from tests.interop.java_peer import JavaPeer, java_peer

#: The values of a line are in its context, which the usual pattern leaves out.
_LOGGING: Final = LOGGING.replace("%m%n", "%m %X%n").replace("warn", "info")
_LINE: Final = re.compile(r"^\S+ (?:INFO|WARN|ERROR) +(\w+): (.*)$")


@dataclass(frozen=True, slots=True)
class Said:
    """How a verb ended, and the lines of the verb itself, without those of the client below it."""

    code: int
    lines: tuple[str, ...]
    everything: str

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class JavaShell:
    def __init__(self, peer: JavaPeer, folder: Path) -> None:
        self._peer = peer
        self._folder = folder

    def run(self, uri: str, *arguments: object, port: int = 3181) -> Said:
        """`bookkeeper shell VERB ...` with the configuration of the bookie at this port."""
        keeper = self._peer.jvm.org.apache.bookkeeper
        conf = keeper.conf.ServerConfiguration()
        conf.setMetadataServiceUri(uri)
        settings = {"allowLoopback": "true", "advertisedAddress": "127.0.0.1", "bookiePort": port}
        for key, value in settings.items():
            conf.setProperty(key, value)
        shell = keeper.bookie.BookieShell(
            keeper.util.LedgerIdFormatter.LONG_LEDGERID_FORMATTER,
            keeper.util.StringEntryFormatter(),
        )
        shell.setConf(conf)
        # Verbs that print do so beside the log.
        files = [self._folder / "java.log", self._folder / "gateway.txt"]
        sizes = [file.stat().st_size for file in files]
        failure = ""
        try:
            code = int(shell.run(self._peer.strings(*map(str, arguments))))
        except Py4JJavaError as error:
            code, failure = -1, error.java_exception.toString()
        logged, printed = (
            file.read_bytes()[size:].decode() for file, size in zip(files, sizes, strict=True)
        )
        found = []
        for line in logged.splitlines():
            known = _LINE.match(line)
            if known is None:
                found.append(line)  # goes on from the line above
            elif known[1].endswith("Command") or known[1] == "BookieShell":
                found.append(known[2].removesuffix(" {}"))
        lines = (*found, *printed.splitlines())
        return Said(code, lines, f"{logged}\n{printed}\n{failure}")

    def ok(self, uri: str, *arguments: object, port: int = 3181) -> Said:
        said = self.run(uri, *arguments, port=port)
        assert said.code == 0, said.everything
        return said


@contextmanager
def java_shell(folder: Path) -> Iterator[JavaShell]:
    folder.mkdir()
    with java_peer(NEWEST, folder, logging=_LOGGING) as peer:
        yield JavaShell(peer, folder)
