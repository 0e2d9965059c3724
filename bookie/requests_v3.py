"""v3 requests, by the receive buffer: usual adds and reads scanned, the rest left to protobuf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from bookie.authentication import AUTH_DISABLED, AuthenticationFailedError
from bookie.storage.journal_records import encode_add_head
from wire import codec_v3
from wire.build_v3 import alike_add_answers, read_answers
from wire.codec_v3 import Header, NotV3Error
from wire.errors import LedgerError, Status
from wire.framing import LENGTH_BYTES, payload_length
from wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    BareRequest,
    BareResponse,
    BookieInfoRequest,
    ForceRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
)
from wire.scan_v2 import AddMix
from wire.scan_v3 import scan_reads
from wire.scan_v3_runs import AddMixV3, AddRunV3, scan_add_runs
from wire.types import LedgerId, Operation
from wire.varint import decode_varint, encode_varint

if TYPE_CHECKING:
    from bookie.connection import Connection

#: Where the operation stands in a frame whose header is written in the usual order.
_OPERATION_OFFSET: Final = LENGTH_BYTES + 5
#: No protobuf message begins with a byte below this: field numbers begin at 1.
_FIRST_BYTE_MIN: Final = 8
#: Operations without a message, whose refusal repeats the priority.
_NO_MESSAGE: Final = (
    Operation.RANGE_READ_ENTRY, Operation.RANGE_ADD_ENTRY, Operation.BATCH_READ_ENTRY,
)  # fmt: skip

Tag = tuple[bytes, int]  # transaction id as a varint, entry id


class RequestsV3:
    """The v3 side of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bookie = connection.bookie
        self._engine = connection.bookie.engine
        self._operations = connection.bookie.operations

    async def take(self) -> bool:
        """Handle all whole frames. False: the next one is not v3, nor will be any other."""
        connection = self._connection
        frames, outbox = connection.frames, connection.outbox
        while True:
            data, start, end = frames.data, frames.start, len(frames.data)
            if end - start <= LENGTH_BYTES:
                if end - start == LENGTH_BYTES:
                    payload_length(data, start, frames.limit)
                return True
            after = start + LENGTH_BYTES + payload_length(data, start, frames.limit)
            if after > end:
                return True
            usual = 0 if connection.is_locked else data[min(start + _OPERATION_OFFSET, after - 1)]
            if usual == Operation.ADD_ENTRY:
                adds, position = scan_add_runs(data, start, end, frames.limit)
                if adds:
                    frames.start = position
                    await self._add_all(adds)
                    continue
            elif usual == Operation.READ_ENTRY:
                ledger_id, txns, ids, position = scan_reads(data, start, end, frames.limit)
                if txns:
                    frames.start = position
                    await self._read_all(LedgerId(ledger_id), list(zip(txns, ids, strict=True)))
                    continue
            if data[start + LENGTH_BYTES] < _FIRST_BYTE_MIN:
                if await connection.find_tls():
                    continue
                return False
            try:
                header, request = codec_v3.decode_request(data[start + LENGTH_BYTES : after])
            except NotV3Error:
                return False
            frames.start = after
            if isinstance(request, AddRequest) and not connection.is_locked:
                await self._add_one(header, request)
            elif isinstance(request, StartTlsRequest) and self._bookie.security.certificates:
                await self._start_tls(header)
            else:
                self._take_one(header, request)
            if outbox.is_due:
                await connection.make_room()

    # Adds.

    async def _add_all(self, adds: list[AddRunV3 | AddMixV3]) -> None:
        connection = self._connection
        connection.adds = True
        is_late = self._bookie.gate.is_closed and not await connection.wait_admission()
        for item in adds:
            if isinstance(item, AddRunV3):
                self._add_run(item, Status.TOO_MANY_REQUESTS if is_late else None)
            else:
                self._add_mix(item, Status.TOO_MANY_REQUESTS if is_late else None)

    def _add_run(self, run: AddRunV3, status: Status | None) -> None:
        """Take a run, unless its status is decided already, and answer it."""
        if status is None:
            try:
                status = self._engine.add_entries(
                    run.ledger_id, run.entry_ids, run.lac, run.master_key, run.entries, run.flags
                )
            except (LedgerError, OSError) as error:
                status = self._connection.stumble(error)
        raw_ledger_ids = [encode_varint(run.ledger_id)] * len(run.entry_ids)
        answers = alike_add_answers(
            run.raw_transaction_ids, raw_ledger_ids, run.raw_entry_ids, status
        )
        if status is Status.OK:
            self._connection.accept(answers, len(run.entry_ids), sum(map(len, run.entries)))
        else:
            self._bookie.metrics.refused_adds(len(run.entry_ids), status)
            self._connection.outbox.put(answers)

    def _add_mix(self, mix: AddMixV3, status: Status | None) -> None:
        """Take a mix, unless its status is decided already, and answer each of its adds."""
        refused: dict[int, Status] = {}
        if status is None:
            try:
                refused = self._engine.add_mix(_as_journaled(mix))
            except (LedgerError, OSError) as error:
                # Some were taken, and may be found later; none is promised.
                status = self._connection.stumble(error)
        places = range(len(mix.entry_ids))
        if status is not None:
            refused = dict.fromkeys(places, status)
        by_status: dict[Status, list[int]] = {}
        for place in places:
            by_status.setdefault(refused.get(place, Status.OK), []).append(place)
        for outcome, theirs in by_status.items():
            answers = alike_add_answers(
                [mix.raw_transaction_ids[place] for place in theirs],
                [encode_varint(mix.ledger_ids[place]) for place in theirs],
                [mix.raw_entry_ids[place] for place in theirs],
                outcome,
            )
            if outcome is Status.OK:
                size = sum(len(mix.entries[place]) for place in theirs)
                self._connection.accept(answers, len(theirs), size)
            else:
                self._bookie.metrics.refused_adds(len(theirs), outcome)
                self._connection.outbox.put(answers)

    async def _add_one(self, header: Header, request: AddRequest) -> None:
        """An add that the scanner left to the library."""
        connection = self._connection
        connection.adds = True
        if header.version != codec_v3.VERSION:
            status = Status.BAD_VERSION
        elif self._bookie.gate.is_closed and not await connection.wait_admission():
            status = Status.TOO_MANY_REQUESTS
        else:
            status = self._operations.add(request)
        response = AddResponse(
            status=status, ledger_id=request.ledger_id, entry_id=request.entry_id
        )
        answer = codec_v3.encode_response(response, transaction_id=header.transaction_id)
        if status is Status.OK:
            connection.accept(answer, 1, len(request.body))
        else:
            self._bookie.metrics.refused_adds(1, status)
            connection.outbox.put(answer)

    # Reads.

    async def _read_all(self, ledger_id: LedgerId, tags: list[Tag]) -> None:
        connection = self._connection
        deliver = partial(self._deliver, ledger_id, self._bookie.clock())
        at = 0
        while at < len(tags):
            count = connection.read_count
            part = tags[at : at + count]
            ids = [entry_id for _, entry_id in part]
            self._operations.read_many(connection, ledger_id, ids, part, deliver)
            at += count
            if connection.outbox.is_due:
                await connection.make_room()

    def _deliver(
        self, ledger_id: LedgerId, since: float, tags: Sequence[Tag], answers: list[bytes | Status]
    ) -> None:
        if any(isinstance(answer, bytes) for answer in answers):
            connection = self._connection
            connection.owed += 1  # the LAC of a ledger last used before a restart is on disk

            def with_lac(lac: int | Status) -> None:
                self._put_reads(ledger_id, since, tags, answers, lac)
                connection.settle()

            self._operations.lac(ledger_id, with_lac)
        else:
            self._put_reads(ledger_id, since, tags, answers, Status.NO_ENTRY)

    def _put_reads(
        self,
        ledger_id: LedgerId,
        since: float,
        tags: Sequence[Tag],
        answers: list[bytes | Status],
        lac: int | Status,
    ) -> None:
        max_lac = lac if isinstance(lac, int) else None
        size = count = 0
        for is_found, pairs in groupby(
            zip(tags, answers, strict=True), lambda pair: isinstance(pair[1], bytes)
        ):
            if is_found:
                found_tags, entries = zip(*pairs, strict=True)
                txns, ids = zip(*found_tags, strict=True)
                self._connection.outbox.put(read_answers(txns, ledger_id, ids, entries, max_lac))
                size += sum(map(len, entries))
                count += len(entries)
                continue
            for (txn, entry_id), status in pairs:
                assert isinstance(status, Status)
                refused = ReadResponse(status=status, ledger_id=ledger_id, entry_id=entry_id)
                self._connection.outbox.put(
                    codec_v3.encode_response(refused, transaction_id=decode_varint(txn))
                )
        if count:
            self._connection.entry_bytes = max(1, size // count)
        self._bookie.metrics.reads(answers, size, since)

    # The rest.

    def _take_one(self, header: Header, request: Request) -> None:
        connection, operations = self._connection, self._operations
        timed = self._bookie.metrics.timed
        connection.commit()  # what was added before is accepted before
        connection.owed += 1
        reply = partial(self._reply, header)
        if connection.is_locked and not isinstance(request, AuthRequest | StartTlsRequest):
            operation = header.operation
            reply(BareResponse(operation=operation, status=Status.UNAUTHORIZED))
            return
        if header.version != codec_v3.VERSION:
            reply(codec_v3.refusal(request, Status.BAD_VERSION))
            return
        match request:
            case ReadRequest(fence=True):
                operations.fence_read(request, timed("fence", reply))
            case ReadRequest(previous_lac=None):
                operations.read(request, timed("read", reply), with_lac=True)
            case ReadRequest():
                self._bookie.polls.poll(request, timed("long_poll", reply), connection)
            case WriteLacRequest():
                operations.write_lac(request, timed("write_lac", reply))
            case ReadLacRequest():
                operations.read_lac(request, timed("read_lac", reply))
            case ForceRequest():
                operations.force(request, timed("force", reply))
            case ListEntriesRequest():
                connection.start(partial(operations.list_entries, request, timed("list", reply)))
            case BookieInfoRequest():
                operations.info(request, timed("info", reply))
            case AuthRequest():
                self._authenticate(request, reply)
            case StartTlsRequest() | BareRequest():
                reply(codec_v3.refusal(request, Status.BAD_REQUEST))
            case _:
                raise AssertionError(f"v3 does not bring {type(request).__name__}")

    def _authenticate(self, request: AuthRequest, reply: Callable[[Response], None]) -> None:
        """Whoever is in already, and says so once more, is told what Apache's bookies tell it."""
        authenticator = self._connection.authenticator
        if authenticator is None or authenticator.is_complete:
            reply(AUTH_DISABLED)
            return
        try:
            response: Response = authenticator.respond(request)
        except AuthenticationFailedError:
            reply(BareResponse(operation=Operation.AUTH, status=Status.UNAUTHORIZED))
            raise
        reply(response)

    async def _start_tls(self, header: Header) -> None:
        def answer(response: Response) -> bytes:
            return codec_v3.encode_response(response, transaction_id=header.transaction_id)

        await self._connection.start_tls(
            yes=answer(StartTlsResponse(status=Status.OK)),
            no=answer(BareResponse(operation=Operation.START_TLS, status=Status.IO_ERROR)),
        )

    def _reply(self, header: Header, response: Response) -> None:
        repeats = isinstance(response, BareResponse) and (
            response.operation in _NO_MESSAGE or response.status is Status.UNAUTHORIZED
        )
        is_auth = header.operation is Operation.AUTH
        frame = codec_v3.encode_response(
            response,
            transaction_id=header.transaction_id,
            priority=header.priority if repeats or is_auth else 0,
        )
        self._connection.outbox.put(frame)
        self._connection.settle()


def _as_journaled(mix: AddMixV3) -> AddMix:
    """The same adds in the layout of the journal, which is that of v2."""
    heads: dict[tuple[bytes, int], bytes] = {}
    pieces: list[bytes] = []
    bounds = [0]
    at = 0
    for key, entry in zip(mix.master_keys, mix.entries, strict=True):
        size = len(entry)
        head = heads.get((key, size))
        if head is None:
            head = heads[key, size] = encode_add_head(key, entry_bytes=size)
        pieces += (head, entry)
        at += len(head) + size
        bounds.append(at)
    return AddMix(
        list(mix.master_keys), list(mix.ledger_ids), list(mix.entry_ids), list(mix.lacs),
        b"".join(pieces), bounds,
    )  # fmt: skip
