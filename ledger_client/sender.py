"""What a writer sends to bookies: entries, its LAC, forces. Connections frame it."""

from __future__ import annotations

from collections.abc import Sequence

from ledger_client.core.adds import Batch as CoreBatch
from ledger_client.core.commands import Package, SendAdd, SendForce, SendLac
from ledger_client.core.distribution import Distribution
from ledger_client.data_connection import DataConnection
from ledger_client.environment import Access, Environment
from ledger_client.intake import Batch, CopyOwner
from ledger_client.requests import BATCH_ENTRIES_MIN, Adds, Answer, Question, Sink
from wire.batch import BATCH_HEAD_BYTES, RECORD_HEAD_BYTES, split_records
from wire.build_v2 import add_prefix
from wire.entry import ENTRY_HEADER_BYTES, encode_lac, encode_records
from wire.messages import ForceRequest, WriteLacRequest
from wire.scan_v2 import ADD_ENTRY_OFFSET
from wire.types import FRAME_BYTES_MAX, BookieId, Flag


class Sender:
    def __init__(
        self,
        environment: Environment,
        access: Access,
        distribution: Distribution,
        *,
        deferred_sync: bool,
    ) -> None:
        self._environment = environment
        self._access = access
        self._distribution = distribution
        self._is_deferred = deferred_sync
        self._flags = int(Flag.DEFERRED_SYNC if deferred_sync else Flag.NONE)
        overhead = ENTRY_HEADER_BYTES + access.digest.size + RECORD_HEAD_BYTES + BATCH_HEAD_BYTES
        self.payload_bytes_max = FRAME_BYTES_MAX - overhead
        self._prefix = add_prefix(access.master_key)
        self._ensemble: Sequence[BookieId] = ()
        self._lines: list[DataConnection] = []
        self._lac_message: WriteLacRequest | None = None

    def has_room(self, ensemble: Sequence[BookieId]) -> bool:
        """Whether the connections to all of these take more entries now."""
        if self._is_deferred:
            return self._environment.pool.has_room(ensemble, deferred=True)
        for line in self._lines_to(ensemble):  # noqa: SIM110 - asked for every single entry
            if not line.has_room:
                return False
        return True

    def _lines_to(self, ensemble: Sequence[BookieId]) -> list[DataConnection]:
        """The connections to these, looked up once as long as they stay the same."""
        if ensemble is not self._ensemble:
            self._ensemble = ensemble
            self._lines = list(map(self._environment.pool.line_to, ensemble))
        return self._lines

    async def wait_room(self, ensemble: Sequence[BookieId]) -> None:
        await self._environment.pool.wait_room(ensemble, deferred=self._is_deferred)

    def package(self, batch: Batch, package: Package, ensemble: Sequence[BookieId]) -> None:
        """Turn payloads into entries. Every bookie and every later attempt gets these bytes.

        Frames at once where they are few, or a bookie takes no batches, since that is the form in
        which they are sent.
        """
        as_records = self._is_deferred or (
            len(batch.payloads) >= BATCH_ENTRIES_MIN
            and self._environment.pool.takes_batches(ensemble)
        )
        run = encode_records(
            batch.payloads,
            ledger_id=self._access.ledger_id,
            first_entry_id=package.first,
            lac=package.lac,
            length=package.length,
            digest=self._access.digest,
            prefix=b"" if as_records else self._prefix,
        )
        if as_records:
            batch.records = run
        else:
            batch.frames = run
        batch.packaged(first=package.first, last=package.last)

    def send_copies(
        self, batch: Batch, payload: bytes, entry: CoreBatch, owner: CopyOwner, *, lac: int,
        length: int,
    ) -> None:  # fmt: skip
        """Build an entry that is a batch by itself, and send it to its write set."""
        access, lines, entry_id = self._access, self._lines_to(entry.ensemble), entry.first
        frame = encode_records(
            (payload,),
            ledger_id=access.ledger_id,
            first_entry_id=entry_id,
            lac=lac,
            length=length - entry.size,
            digest=access.digest,
            prefix=self._prefix,
        )
        batch.copied(entry, frame, owner)
        key = frame[ADD_ENTRY_OFFSET : ADD_ENTRY_OFFSET + 16]
        for slot in self._distribution.slots_of(first=entry_id, last=entry_id):
            lines[slot].add_copy(key, batch)

    def send_adds(self, send: SendAdd, batch: Batch, sink: Sink) -> None:
        distribution = self._distribution
        records, frames = batch.records, batch.frames
        entry_ids = distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        if distribution.is_striped:
            records = records_of(records, send.first, entry_ids) if records else b""
            frames = records_of(frames, send.first, entry_ids) if frames else b""
        request = Adds(
            request_id=send.request_id,
            sink=sink,
            ledger_id=self._access.ledger_id,
            entry_ids=entry_ids,
            records=records,
            frames=frames,
            master_key=self._access.master_key,
            flags=self._flags,
        )
        self._environment.pool.ask(send.bookie_id, request)

    def send_lac(self, send: SendLac) -> None:
        if self._lac_message is None or self._lac_message.lac != send.lac:
            self._lac_message = self._tell(send.lac)  # the same for every bookie
        question = Question(
            request_id=next(self._environment.request_ids),
            sink=_ignore,
            message=self._lac_message,
            can_wait=True,  # writers that go idle mostly do so in crowds
        )
        self._environment.pool.ask(send.bookie_id, question)

    def _tell(self, lac: int) -> WriteLacRequest:
        access = self._access
        body = encode_lac(ledger_id=access.ledger_id, lac=lac, digest=access.digest)
        return WriteLacRequest(
            ledger_id=access.ledger_id, lac=lac, master_key=access.master_key, body=body
        )

    def send_force(self, send: SendForce, sink: Sink) -> None:
        message = ForceRequest(ledger_id=self._access.ledger_id)
        question = Question(request_id=send.request_id, sink=sink, message=message)
        self._environment.pool.ask(send.bookie_id, question)


def records_of(records: bytes, first: int, entry_ids: Sequence[int]) -> bytes:
    """Those records of a run of consecutive entries from `first` on that hold `entry_ids`.

    Or frames: both begin with the length of the rest.
    """
    bounds = split_records(records, 0, len(records))
    return b"".join([records[bounds[e - first] : bounds[e - first + 1]] for e in entry_ids])


def _ignore(answers: list[Answer]) -> None:
    """An explicit LAC that was lost costs a reader time and nothing else."""
