"""Ledgers that lose a bookie, whoever restores their copies, and proof that the copies are there.

Each copy is read from the bookie that should have it, and from no other: a client that reads around
a missing copy would prove nothing.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.daemon import opened_context
from autorecovery.worker_repair import access_of
from bench.peers.cluster import PeerCluster
from bench.peers.jars import NEWEST
from bench.peers.process import PeerBookie
from bench.recovery_process import AutorecoveryProcess, autorecovery
from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.requests import Answer, FoundEntries, Mailbox, Reads
from ledger_client.sync import LedgerClient, LedgerWriter
from metadata.connect import open_store
from metadata.election import current_auditor
from metadata.model import LedgerMetadata
from metadata.uri import parse_metadata_uri
from tests.interop.java_client import PASSWORD, THREE, JavaClient, Shape
from tests.interop.java_peer import java_peer
from wire.entry import decode_entries
from wire.types import BookieId, LedgerId

#: For a machine with much else to do. Apache's auditor alone takes seconds to look.
PATIENCE_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1
STRIPED: Final = Shape(3, 2, 2)
#: What makes either autorecovery quick enough for a test, by the names that both know.
QUICK: Final[dict[str, object]] = {
    "zkTimeout": 4000,
    "openLedgerRereplicationGracePeriod": 1000,
    "rwRereplicateBackoffMs": 500,
    "lockReleaseOfFailedLedgerGracePeriod": 2000,
    "auditorPeriodicCheckInterval": 0,
    "lostBookieRecoveryDelay": 0,
}


# ---------------------------------------------------------------------- who heals


@contextmanager
def healer(folder: Path, uri: str, make: str, **settings: object) -> Iterator[AutorecoveryProcess]:
    """An autorecovery process, "ours" or "apache", both halves of it."""
    with autorecovery(folder, uri, make, **(QUICK | settings)) as process:
        yield process


@contextmanager
def java_half(folder: Path, uri: str, half: str) -> Iterator[None]:
    """Apache's auditor or its worker alone, which its own daemon cannot be told to run."""
    folder.mkdir(parents=True)
    with java_peer(NEWEST, folder) as peer:
        conf = peer.jvm.org.apache.bookkeeper.conf.ServerConfiguration()
        conf.setMetadataServiceUri(uri)
        for key, value in QUICK.items():
            conf.setProperty(key, value)
        replication = peer.jvm.org.apache.bookkeeper.replication
        if half == "auditor":
            part: Any = replication.AuditorElector("java-auditor:1", conf)
        else:
            part = replication.ReplicationWorker(conf)
        part.start()
        try:
            yield
        finally:
            part.shutdown()


# ---------------------------------------------------------------------- what is lost


@dataclass(slots=True)
class Written:
    """What every ledger must hold, and the one that is still being written."""

    entries: dict[int, list[bytes]] = field(default_factory=dict)
    growing: set[int] = field(default_factory=set)


def payloads(count: int, tag: str) -> list[bytes]:
    return [b"%s-%d-" % (tag.encode(), number) * (1 + number % 7) for number in range(count)]


@contextmanager
def ledgers_on(
    cluster: PeerCluster, java: JavaClient, victim: PeerBookie
) -> Iterator[tuple[Written, LedgerWriter]]:
    """Ledgers of both clients with copies on this bookie: closed, empty, left open, being written.

    The writer of the last one is handed out; it goes on.
    """
    written = Written()
    with ExitStack() as stack:
        client = stack.enter_context(LedgerClient(cluster.uri))
        for number, shape in enumerate([THREE, STRIPED, THREE, STRIPED]):
            data = payloads(40, f"ours-{number}")
            with _ours_on(client, shape, victim) as ledger:
                ledger.append_many(data)
            written.entries[ledger.id] = data
        for shape in (THREE, STRIPED):
            handle = _java_on(java, shape, victim)
            data = payloads(40, f"java-{shape}")
            java.append_all(handle, data)
            handle.close()
            written.entries[int(handle.getId())] = data
        with _ours_on(client, THREE, victim) as empty:
            written.entries[empty.id] = []
        with LedgerClient(cluster.uri) as careless:  # gone without a close: nobody writes on
            left = _ours_on(careless, THREE, victim)
            left.append_many(payloads(20, "left"))
            written.entries[left.id] = payloads(20, "left")
        growing = _ours_on(client, THREE, victim)
        growing.append_many(payloads(20, "growing"))
        written.entries[growing.id] = payloads(20, "growing")
        written.growing.add(growing.id)
        yield written, growing


def _ours_on(client: LedgerClient, shape: Shape, bookie: PeerBookie) -> LedgerWriter:
    """Where ledgers go is the client's choice; those that went elsewhere are deleted."""
    for _ in range(50):
        ledger = client.create(
            ensemble_size=shape.ensemble,
            write_quorum=shape.write,
            ack_quorum=shape.ack,
            password=PASSWORD,
        )
        if bookie.bookie_id in ledger.metadata.fragments[0].ensemble:
            return ledger
        ledger.close()
        client.delete(ledger.id)
    raise AssertionError(f"fifty ledgers avoid {bookie.bookie_id}")


def _java_on(client: JavaClient, shape: Shape, bookie: PeerBookie) -> Any:
    for _ in range(50):
        handle = client.create(shape)
        if bookie.bookie_id in client.ensembles(handle)[0]:
            return handle
        handle.close()
        client.keeper.deleteLedger(handle.getId())
    raise AssertionError(f"fifty ledgers avoid {bookie.bookie_id}")


# ---------------------------------------------------------------------- what must come back


@asynccontextmanager
async def looking(uri: str) -> AsyncIterator[RecoveryContext]:
    """The cluster as operators see it."""
    parsed = parse_metadata_uri(uri)
    settings = RecoverySettings(auditor=AuditorConfig(), worker=WorkerConfig())
    async with opened_context(
        lambda: open_store(parsed),
        parsed,
        bookie_id=BookieId("test:1"),
        settings=settings,
        chance=random.Random(1),
    ) as context:
        yield context


async def until_gone(context: RecoveryContext, bookie_id: str) -> None:
    """Nobody takes the bookie for alive any more."""
    with trio.fail_after(PATIENCE_SECONDS):
        while BookieId(bookie_id) in context.client.bookies().all:
            await context.watcher.wait_changed(context.client.bookies())


async def until_auditor(context: RecoveryContext, is_it: str | None, *, other: str = "") -> str:
    """Until this one audits; None: anybody but the other one."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            found = await current_auditor(context.store, context.cluster.root)
            if found is not None and (found == is_it or (is_it is None and found != other)):
                return found
            await trio.sleep(_POLL_SECONDS)


async def until_healed(context: RecoveryContext, written: Written, lost: str) -> None:
    """No ledger names the lost bookie, and no mark is left."""
    with trio.move_on_after(PATIENCE_SECONDS):
        while True:
            naming = [
                ledger_id
                for ledger_id in written.entries
                if (await _record(context, ledger_id)).mentions(BookieId(lost))
            ]
            marks = await context.marks.marked()
            if not naming and not marks:
                return
            await trio.sleep(_POLL_SECONDS)
    raise AssertionError(f"{lost} is still named by ledgers {naming}; marked are {marks}")


async def _record(context: RecoveryContext, ledger_id: int) -> LedgerMetadata:
    return (await context.client.ledgers.read(LedgerId(ledger_id))).metadata


async def check_copies(context: RecoveryContext, written: Written) -> int:
    """Read every copy of every entry from its own bookie; how many there were."""
    count = 0
    for ledger_id, entries in written.entries.items():
        metadata = await _record(context, ledger_id)
        if ledger_id not in written.growing:
            assert metadata.is_closed, f"ledger {ledger_id} is {metadata.state.name}"
            assert metadata.last_entry_id == len(entries) - 1
            assert metadata.length == sum(map(len, entries))
        else:
            assert not metadata.is_closed, "a writer that lives was fenced off"
        shape = Distribution.of(metadata)
        for entry_id, payload in enumerate(entries):
            ensemble = metadata.fragment_of(entry_id).ensemble
            for slot in shape.write_set(entry_id):
                found = await _copy(context, metadata, ensemble[slot], entry_id)
                assert found == payload, f"ledger {ledger_id}, {entry_id} on {ensemble[slot]}"
                count += 1
    return count


async def _copy(
    context: RecoveryContext, metadata: LedgerMetadata, bookie_id: BookieId, entry_id: int
) -> bytes:
    client, mail = context.client, Mailbox()
    request = Reads(
        request_id=next(client.request_ids),
        sink=mail.take,
        ledger_id=metadata.ledger_id,
        entry_ids=range(entry_id, entry_id + 1),
        bytes_max=1 << 20,
    )
    client.pool.ask(bookie_id, request)
    answers: list[Answer] = []
    while not answers:
        answers = await mail.wait()
    where = f"ledger {metadata.ledger_id}, entry {entry_id} on {bookie_id}"
    assert answers[0].outcome is Outcome.OK, f"{where}: {answers[0].outcome}"
    found = answers[0].content
    assert isinstance(found, FoundEntries), where
    digest = access_of(metadata).digest
    decoded = decode_entries(
        found.data, found.bounds, found.skip,
        ledger_id=metadata.ledger_id, entry_ids=[entry_id], digest=digest,
    )  # fmt: skip
    assert decoded.error is None, f"{where}: {decoded.error}"
    return decoded.payloads[0]
