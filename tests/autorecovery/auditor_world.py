"""A cluster in memory for auditors and operators: metadata, and bookies that answer at once.

The metadata store and all services on it are real. Bookies are dictionaries of entries behind a
pool that answers a request within the call; trouble is scripted per bookie.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import cast

import trio

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.parking import Parking
from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.core.placement import DefaultPolicy, Health, PlacementPolicy
from ledger_client.environment import Access, Environment
from ledger_client.health import BookieHealth
from ledger_client.pool import Pool
from ledger_client.requests import (
    Adds,
    Answer,
    FenceReads,
    FoundEntries,
    FoundSingly,
    Question,
    Reads,
    Request,
)
from metadata.cluster import Cluster
from metadata.codec import encode_ledger_metadata
from metadata.cookies import Cookies
from metadata.discovery import BookieWatcher
from metadata.faults import Fault, Script
from metadata.faults import Request as StoreRequest
from metadata.ledgers import Ledgers
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.model import Fragment, LedgerMetadata, LedgerState
from metadata.paths import ClusterPaths, LayoutType, LedgerPaths
from metadata.records import UnderreplicationMark, decode_mark
from metadata.service_info import bookie_service_info, encode_service_info
from metadata.underreplication import UnderReplication
from runtime.metrics import Registry
from tests.metadata.places import planted
from wire.availability import encode_availability
from wire.batch import RECORD_HEAD_BYTES, split_records
from wire.entry import encode_entry
from wire.errors import Status
from wire.messages import ListEntriesRequest, ListEntriesResponse
from wire.types import LAST_ENTRY, BookieId, DigestType, LedgerId

ROOT = "/ledgers"
PATHS = ClusterPaths(ROOT)
NOW_MS = 1_750_000_000_000
PASSWORD = b"secret"


def bookie(number: int) -> BookieId:
    return BookieId(f"bk{number}:3181")


class FakeBookies:
    """The pool and everything behind it."""

    def __init__(self) -> None:
        self.known = BookieHealth()
        self.entries: dict[BookieId, dict[tuple[int, int], bytes]] = {}
        self.trouble: dict[BookieId, Callable[[Request], Outcome | None]] = {}
        self.requests: list[tuple[BookieId, Request]] = []

    @property
    def health(self) -> Health:
        return Health()

    def ask(self, bookie_id: BookieId, request: Request) -> None:
        self.requests.append((bookie_id, request))
        trouble = self.trouble.get(bookie_id)
        outcome = None if trouble is None else trouble(request)
        if outcome is not None:
            request.sink([Answer(request.request_id, outcome)])
            return
        stored = self.entries.get(bookie_id)
        if stored is None:
            request.sink([Answer(request.request_id, Outcome.NOT_CONNECTED)])
        elif isinstance(request, Reads):
            request.sink([self._read(stored, request)])
        elif isinstance(request, FenceReads):
            request.sink([self._fence(stored, request)])
        elif isinstance(request, Adds):
            bounds = split_records(request.records, 0, len(request.records))
            for i, entry_id in enumerate(request.entry_ids):
                body = request.records[bounds[i] + RECORD_HEAD_BYTES : bounds[i + 1]]
                stored[request.ledger_id, entry_id] = body
            request.sink([Answer(request.request_id, Outcome.OK)])
        else:
            assert isinstance(request, Question)
            assert isinstance(request.message, ListEntriesRequest)
            request.sink([self._list(stored, request.request_id, request.message)])

    def _read(self, stored: dict[tuple[int, int], bytes], request: Reads) -> Answer:
        ids = request.entry_ids
        bodies = []
        for entry_id in ids:
            body = stored.get((request.ledger_id, entry_id))
            if body is None:
                break
            bodies.append(body)
        bounds = list(itertools.accumulate(map(len, bodies), initial=0))
        outcome = Outcome.OK if len(bodies) == len(ids) else Outcome.NO_SUCH_ENTRY
        found = FoundEntries(b"".join(bodies), bounds, 0)
        return Answer(request.request_id, outcome, found)

    def _fence(self, stored: dict[tuple[int, int], bytes], request: FenceReads) -> Answer:
        found: FoundSingly = {}
        for entry_id in request.entry_ids:
            held = [entry for ledger, entry in stored if ledger == request.ledger_id]
            last = max(held, default=entry_id)
            body = stored.get((request.ledger_id, last if entry_id == LAST_ENTRY else entry_id))
            outcome = Outcome.NO_SUCH_ENTRY if body is None else Outcome.OK
            found[entry_id] = (outcome, body or b"")
        return Answer(request.request_id, Outcome.OK, found)

    def _list(
        self, stored: dict[tuple[int, int], bytes], request_id: int, message: ListEntriesRequest
    ) -> Answer:
        held = sorted(entry for ledger, entry in stored if ledger == message.ledger_id)
        response = ListEntriesResponse(
            status=Status.OK,
            ledger_id=message.ledger_id,
            availability=encode_availability((entry, entry) for entry in held),
        )
        return Answer(request_id, Outcome.OK, response)


class AuditWorld:
    def __init__(
        self,
        bookies: int = 4,
        *,
        policy: PlacementPolicy | None = None,
        auditor: AuditorConfig | None = None,
    ) -> None:
        self.now_ms = NOW_MS
        self.metadata = MemoryMetadata(now_ms=lambda: self.now_ms)
        planted(self.metadata, [PATHS.available, PATHS.readonly, PATHS.cookies, PATHS.marks])
        self.pool = FakeBookies()
        self.policy = policy or DefaultPolicy()
        self.settings = RecoverySettings(
            auditor=auditor or AuditorConfig(ledger_check_seconds=0), worker=WorkerConfig()
        )
        self.registry = Registry()
        self.script = Script()
        self.names = [bookie(number) for number in range(bookies)]
        for name in self.names:
            self.join(name)

    # ------------------------------------------------------------------ bookies

    def join(self, name: BookieId, *, read_only: bool = False) -> None:
        host, _, port = name.partition(":")
        info = bookie_service_info(host=host, port=int(port), properties={})
        planted(self.metadata, [PATHS.cookie(name)])
        path = PATHS.registration(name, readonly=read_only)
        planted(self.metadata, [path], encode_service_info(info))
        self.pool.entries.setdefault(name, {})

    def leave(self, *names: BookieId) -> None:
        """Lose bookies; what they have is still there, should they come back."""
        for name in names:
            for readonly in (False, True):
                path = PATHS.registration(name, readonly=readonly)
                if self.metadata.tree.find(path) is not None:
                    self.metadata.tree.delete(path, -1)
        self.metadata.publish()

    # ------------------------------------------------------------------ ledgers

    def ledger(
        self,
        ledger_id: int,
        *fragments: tuple[int, Iterable[int]],
        entries: int = 10,
        write_quorum: int | None = None,
        ack_quorum: int = 2,
        state: LedgerState = LedgerState.CLOSED,
        filled: bool = True,
    ) -> LedgerMetadata:
        """A ledger on bookies with these numbers, `entries` of it stored where they belong."""
        pairs = fragments or ((0, (0, 1, 2)),)
        parts = tuple(Fragment(first, tuple(map(bookie, slots))) for first, slots in pairs)
        size = len(parts[0].ensemble)
        quorum = size if write_quorum is None else write_quorum
        is_closed = state is LedgerState.CLOSED
        metadata = LedgerMetadata(
            ledger_id=LedgerId(ledger_id),
            ensemble_size=size,
            write_quorum=quorum,
            ack_quorum=min(ack_quorum, quorum),
            fragments=parts,
            state=state,
            last_entry_id=entries - 1 if is_closed else None,
            length=100 * entries if is_closed else 0,
            digest_type=DigestType.CRC32C,
            password=PASSWORD,
            ctime_ms=NOW_MS,
        )
        path = LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(metadata.ledger_id)
        planted(self.metadata, [path], encode_ledger_metadata(metadata))
        if filled:
            self._fill(metadata, entries)
        return metadata

    def _fill(self, metadata: LedgerMetadata, entries: int) -> None:
        shape = Distribution.of(metadata)
        access = Access.of(metadata.ledger_id, DigestType.CRC32C, PASSWORD)
        for entry_id in range(entries):
            body = encode_entry(
                b"x" * 100,
                ledger_id=metadata.ledger_id,
                entry_id=entry_id,
                lac=entry_id - 1,
                length=100 * (entry_id + 1),
                digest=access.digest,
            )
            ensemble = metadata.fragment_of(entry_id).ensemble
            for slot in shape.write_set(entry_id):
                self.pool.entries.setdefault(ensemble[slot], {})[metadata.ledger_id, entry_id] = (
                    body
                )

    def delete_ledger(self, ledger_id: int) -> None:
        path = LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(ledger_id))
        self.metadata.tree.delete(path, -1)
        self.metadata.publish()

    def plant_record(self, ledger_id: int, data: bytes) -> None:
        path = LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(ledger_id))
        planted(self.metadata, [path], data)

    def mark_of(self, ledger_id: int) -> UnderreplicationMark | None:
        znode = self.metadata.tree.find(PATHS.mark(LedgerId(ledger_id)))
        return None if znode is None else decode_mark(znode.data)

    def marked(self) -> dict[int, set[BookieId]]:
        """Every mark with the names in it."""
        found = {}
        paths = [PATHS.marks]
        while paths:
            path = paths.pop()
            node = self.metadata.tree.get(path)
            for name in node.children:
                child = f"{path}/{name}"
                if name.startswith("urL"):
                    mark = decode_mark(self.metadata.tree.get(child).data)
                    found[int(name[3:])] = set(mark.replicas)
                else:
                    paths.append(child)
        return found

    # ------------------------------------------------------------------ processes

    def _faults(self, request: StoreRequest) -> Fault | None:
        return self.script(request)

    @asynccontextmanager
    async def context(self, number: int = 9) -> AsyncIterator[RecoveryContext]:
        """A process with a session of its own."""
        async with self.context_and_store(number) as (context, _):
            yield context

    @asynccontextmanager
    async def context_and_store(
        self, number: int = 9
    ) -> AsyncIterator[tuple[RecoveryContext, MemoryStore]]:
        chance = random.Random(number)
        store = self.metadata.connect(self._faults)

        def now_ms() -> int:
            return self.now_ms

        async with trio.open_nursery() as nursery:
            watcher = BookieWatcher(store, ROOT)
            await nursery.start(watcher.run)
            client = Environment(
                ledgers=Ledgers(store, ROOT, LayoutType.HIERARCHICAL, chance=chance),
                pool=cast(Pool, self.pool),
                bookies=lambda: watcher.bookies,
                policy=self.policy,
                chance=chance,
                nursery=nursery,
                request_ids=itertools.count(1),
            )
            marks = UnderReplication(store, ROOT, owner="here", chance=chance, now_ms=now_ms)
            await marks.open()
            yield (
                RecoveryContext(
                    store=store,
                    cluster=Cluster(ROOT, LayoutType.HIERARCHICAL, None),
                    bookie_id=bookie(number),
                    client=client,
                    watcher=watcher,
                    cookies=Cookies(store, ROOT),
                    marks=marks,
                    parking=Parking(store, ROOT, chance=chance, now_ms=now_ms),
                    settings=self.settings,
                    registry=Registry(),
                    now_ms=now_ms,
                ),
                store,
            )
            nursery.cancel_scope.cancel()


def spoilt(body: bytes) -> bytes:
    """The same entry with a flipped bit."""
    return body[:-1] + bytes([body[-1] ^ 1])
