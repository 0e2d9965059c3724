"""One client writes, another of the other kind takes over, reads, and the first is refused.

The whole product of writers, successors, bookies, digests, shapes and formats of the record; the
core set runs a selection in which every pair of them meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from bench.peers.cluster import PeerCluster
from bench.peers.jars import NEWEST
from ledger_client import DigestType, FencedError
from ledger_client.sync import LedgerClient, LedgerWriter
from tests.interop.conftest import IS_CORE, Clusters, Peers, results
from tests.interop.java_client import FENCED, PASSWORD, JavaClient, Shape, entries_of, refused
from tests.interop.selection import DIGESTS, SHAPES, every, pairwise
from tests.interop.table import APACHE, MIXED, OURS
from tests.interop.test_our_client import payloads

WRITERS = ["ours", "Java v2", "Java v3", "Java v2, old record", "Java v3, old record"]
SUCCESSORS = ["ours", "Java v2", "Java v3"]
#: Apache's client on its own bookies is not ours to test; our own client has its own tests.
CROSSINGS = [
    crossing
    for crossing in (pairwise if IS_CORE else every)(
        WRITERS, SUCCESSORS, [OURS, APACHE, MIXED], DIGESTS, list(map(str, SHAPES))
    )
    if "ours" in crossing[:3] or crossing[2] == MIXED
]


class Party(Protocol):
    """Either client, as far as a take-over needs it."""

    def write(self, shape: Shape, digest: str, written: list[bytes]) -> tuple[int, Any]:
        """A ledger with these entries that stays open: its id and its handle."""

    def take_over(self, ledger_id: int, digest: str) -> tuple[list[bytes], int]:
        """Fence, recover, read all: the entries, and the length on record."""

    def is_refused(self, handle: Any) -> None:
        """An add by this handle ends as fenced."""


@dataclass
class OurParty:
    client: LedgerClient

    def write(self, shape: Shape, digest: str, written: list[bytes]) -> tuple[int, LedgerWriter]:
        name = {"MAC": "HMAC"}.get(digest, digest)
        writer = self.client.create(
            ensemble_size=shape.ensemble,
            write_quorum=shape.write,
            ack_quorum=shape.ack,
            password=PASSWORD,
            digest_type=DigestType[name],
        )
        assert list(writer.append_many(written)) == list(range(len(written)))
        return writer.id, writer

    def take_over(self, ledger_id: int, digest: str) -> tuple[list[bytes], int]:
        with self.client.open(ledger_id, password=PASSWORD) as reader:
            entries = reader.read(0, reader.last_confirmed)
            return [entry.payload for entry in entries], reader.length

    def is_refused(self, handle: LedgerWriter) -> None:
        with pytest.raises(FencedError):
            handle.append(b"late")


@dataclass
class JavaParty:
    client: JavaClient

    def write(self, shape: Shape, digest: str, written: list[bytes]) -> tuple[int, Any]:
        handle = self.client.create(shape, digest)
        assert self.client.append_all(handle, written) == list(range(len(written)))
        return int(handle.getId()), handle

    def take_over(self, ledger_id: int, digest: str) -> tuple[list[bytes], int]:
        reader = self.client.open(ledger_id, digest)
        last = reader.getLastAddConfirmed()
        return entries_of(reader.readEntries(0, last)), int(reader.getLength())

    def is_refused(self, handle: Any) -> None:
        with refused(FENCED):
            handle.addEntry(b"late")


Parties = Callable[[str, str, PeerCluster], Party]


@pytest.fixture(scope="module")
def parties(peers: Peers) -> Iterator[Parties]:
    """Clients by name and role, kept per cluster: the two of a crossing share no connection."""
    made: dict[tuple[str, str, str], Party] = {}
    with ExitStack() as stack:

        def make(name: str, uri: str) -> Party:
            if name == "ours":
                return OurParty(stack.enter_context(LedgerClient(uri)))
            settings: dict[str, object] = (
                {"ledgerMetadataVersion": 2} if "old record" in name else {}
            )
            client = JavaClient(peers(NEWEST), uri, v2="v2" in name, settings=settings)
            stack.callback(client.close)
            return JavaParty(client)

        def party(name: str, role: str, cluster: PeerCluster) -> Party:
            key = (name, role, cluster.uri)
            if key not in made:
                made[key] = make(name, cluster.uri)
            return made[key]

        yield party


@pytest.mark.parametrize(("writer", "successor", "bookies", "digest", "shape"), CROSSINGS, ids=str)
def test_ledger_changes_hands(
    parties: Parties,
    clusters: Clusters,
    writer: str,
    successor: str,
    bookies: str,
    digest: str,
    shape: str,
) -> None:
    cluster = clusters(bookies, NEWEST)
    names = {"writer": writer, "other": successor, "bookies": bookies}
    try:
        take_over(
            parties(writer, "writes", cluster), parties(successor, "takes over", cluster),
            digest, next(found for found in SHAPES if str(found) == shape),
        )  # fmt: skip
        complaints = cluster.complaints()
        assert not complaints, "\n".join(complaints)
    except BaseException:
        results.note_crossing(**names, passed=False)
        raise
    results.note_crossing(**names, passed=True)


def take_over(writer: Party, successor: Party, digest: str, shape: Shape) -> None:
    written = [b"", *payloads(50), b"z" * 70_000]
    ledger_id, handle = writer.write(shape, digest, written)
    assert successor.take_over(ledger_id, digest) == (written, sum(map(len, written)))
    writer.is_refused(handle)
    # Closed now: nobody needs to recover it again, and the end is the same for all.
    assert writer.take_over(ledger_id, digest) == (written, sum(map(len, written)))
