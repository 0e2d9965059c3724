"""The Java client as tests like to have it: Python values in and out, BookKeeper's error codes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from tests.interop.java_peer import JavaPeer

PASSWORD: Final = b"secret"
_WAIT_SECONDS: Final = 30
#: A long poll that nobody wakes outlasts the test.
POLL_MS: Final = 50_000

# Codes of org.apache.bookkeeper.client.BKException.
NO_SUCH_ENTRY: Final = -13
NO_SUCH_LEDGER: Final = -25  # no metadata
LEDGER_CLOSED: Final = -11
FENCED: Final = -101
UNAUTHORIZED: Final = -102


@dataclass(frozen=True, slots=True)
class Shape:
    """Ensemble size, write quorum, ack quorum."""

    ensemble: int
    write: int
    ack: int

    def __str__(self) -> str:
        return f"{self.ensemble}-{self.write}-{self.ack}"


THREE: Final = Shape(3, 3, 2)


@contextmanager
def refused(*codes: int) -> Iterator[None]:
    """The block must end with one of these errors of BookKeeper's."""
    try:
        yield
    except Py4JJavaError as error:
        found = error.java_exception
        if hasattr(found, "getCause") and "ExecutionException" in found.getClass().getName():
            found = found.getCause()
        assert found.getCode() in codes, f"refused with {found.toString()}, not with {codes}"
    else:
        raise AssertionError(f"it was not refused with {codes}")


def eventually(look: Callable[[], bool], what: str) -> None:
    """Look until it is so. Being slow is no failure, never is."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not look():
        assert time.monotonic() < deadline, f"not within {_WAIT_SECONDS} s: {what}"
        time.sleep(0.05)


def entries_of(enumeration: Any) -> list[bytes]:
    """The payloads of what a read returned."""
    found = []
    while enumeration.hasMoreElements():
        found.append(bytes(enumeration.nextElement().getEntry()))
    return found


class JavaClient:
    """One client of one version and wire protocol; `keeper` is the BookKeeper object itself."""

    def __init__(self, peer: JavaPeer, uri: str, *, v2: bool, settings: dict[str, object]) -> None:
        self._jvm = peer.jvm
        client = peer.jvm.org.apache.bookkeeper
        self._digests = client.client.BookKeeper.DigestType
        self._seconds = peer.jvm.java.util.concurrent.TimeUnit.SECONDS
        conf = client.conf.ClientConfiguration()
        conf.setMetadataServiceUri(uri)
        conf.setUseV2WireProtocol(v2)
        conf.setThrottleValue(0)  # a limit of its own of 5,000 requests a second
        conf.setNumIOThreads(1)
        conf.setNumWorkerThreads(2)
        for key, value in settings.items():
            conf.setProperty(key, value)
        self.keeper: Any = client.client.BookKeeper(conf)
        no_stats = client.stats.NullStatsLogger.INSTANCE
        self.admin: Any = client.client.BookKeeperAdmin(self.keeper, no_stats, conf)

    def close(self) -> None:
        self.keeper.close()

    def digest(self, name: str) -> Any:
        return self._digests.valueOf(name)

    def create(self, shape: Shape = THREE, digest: str = "CRC32C") -> Any:
        return self.keeper.createLedger(
            shape.ensemble, shape.write, shape.ack, self.digest(digest), PASSWORD
        )

    def create_adv(
        self, ledger_id: int, shape: Shape = THREE, *, password: bytes = PASSWORD
    ) -> Any:
        """A ledger whose id, and whose entries' ids, the caller chooses."""
        long_id = self._jvm.java.lang.Long.valueOf(str(ledger_id))
        return self.keeper.createLedgerAdv(
            long_id, shape.ensemble, shape.write, shape.ack,
            self.digest("CRC32C"), password, self._jvm.java.util.HashMap(),
        )  # fmt: skip

    def create_deferred(self, shape: Shape = THREE) -> Any:
        """A ledger with the write flag DEFERRED_SYNC."""
        flag = self._jvm.org.apache.bookkeeper.client.api.WriteFlag.DEFERRED_SYNC
        builder = (
            self.keeper.newCreateLedgerOp()
            .withEnsembleSize(shape.ensemble)
            .withWriteQuorumSize(shape.write)
            .withAckQuorumSize(shape.ack)
            .withPassword(PASSWORD)
            .withWriteFlags(self._jvm.java.util.EnumSet.of(flag))
        )
        return self.wait(builder.execute())

    def open(self, ledger_id: int, digest: str = "CRC32C", password: bytes = PASSWORD) -> Any:
        """Open with recovery: whoever writes is fenced off."""
        return self.keeper.openLedger(ledger_id, self.digest(digest), password)

    def follow(self, ledger_id: int, digest: str = "CRC32C") -> Any:
        """Open without recovery, as a tailing reader does."""
        return self.keeper.openLedgerNoRecovery(ledger_id, self.digest(digest), PASSWORD)

    def wait(self, future: Any) -> Any:
        return future.get(_WAIT_SECONDS, self._seconds)

    def append_all(self, handle: Any, payloads: list[bytes]) -> list[int]:
        """All of them at once, then wait; the ids they got."""
        futures = [handle.appendAsync(payload) for payload in payloads]
        return [self.wait(future) for future in futures]

    def ensembles(self, handle: Any) -> dict[int, list[str]]:
        """First entry id of every fragment, and the bookies that hold it."""
        # By its pairs: py4j would look an id up as an Integer, and the keys are Longs.
        pairs = handle.getLedgerMetadata().getAllEnsembles().entrySet()
        return {
            int(pair.getKey()): [bookie.toString() for bookie in pair.getValue()] for pair in pairs
        }

    def stored(self, bookie_id: str, ledger_id: int) -> list[int]:
        """Ids of the entries that a bookie says it holds (over v3 only)."""
        parsed = self._jvm.org.apache.bookkeeper.net.BookieId.parse(bookie_id)
        available = self.wait(self.admin.asyncGetListOfEntriesOfLedger(parsed, ledger_id))
        total = available.getTotalNumOfAvailableEntries()
        found = [n for n in range(4 * total + 4) if available.isEntryAvailable(n)]
        assert len(found) == total, f"{total} entries are announced, found {found}"
        return found

    def ledgers(self) -> set[int]:
        found, iterator = set(), self.admin.listLedgers().iterator()
        while iterator.hasNext():
            found.add(int(iterator.next()))
        return found

    def available(self) -> set[str]:
        return {bookie.toString() for bookie in self.admin.getAvailableBookies()}

    def read_only(self) -> set[str]:
        return {bookie.toString() for bookie in self.admin.getReadOnlyBookies()}
