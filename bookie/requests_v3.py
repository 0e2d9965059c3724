"""v3 requests, by the receive buffer: usual adds and reads scanned, the rest left to protobuf."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie.authentication import AUTH_DISABLED
from wire import codec_v3
from wire.build_v3 import add_answers, read_answer
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
    Bytes,
    ForceRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    WriteLacRequest,
)
from wire.scan_v3 import ScannedAdd, scan_adds, scan_read
from wire.types import LedgerId, Operation

if TYPE_CHECKING:
    from bookie.connection import Connection

#: Where the operation stands in a frame whose header is written in the usual order.
_OPERATION_OFFSET: Final = LENGTH_BYTES + 5
#: No protobuf message begins with a byte below this: field numbers begin at 1.
_FIRST_BYTE_MIN: Final = 8
_LAC: Final = struct.Struct(">q")
_LAC_OFFSET: Final = 16
#: Operations without a message, whose refusal repeats the priority.
_NO_MESSAGE: Final = (
    Operation.RANGE_READ_ENTRY, Operation.RANGE_ADD_ENTRY, Operation.BATCH_READ_ENTRY,
)  # fmt: skip

Tag = tuple[int, int]  # transaction id, entry id


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
                adds, position = scan_adds(data, start, end, frames.limit)
                if adds:
                    frames.start = position
                    await self._add_all(data, adds)
                    continue
            elif usual == Operation.READ_ENTRY:
                ledger_id, reads, position = _scan_reads(data, start, end, frames.limit)
                if reads:
                    frames.start = position
                    await self._read_all(ledger_id, reads)
                    continue
            if data[start + LENGTH_BYTES] < _FIRST_BYTE_MIN:
                return False
            try:
                header, request = codec_v3.decode_request(data[start + LENGTH_BYTES : after])
            except NotV3Error:
                return False
            frames.start = after
            if isinstance(request, AddRequest) and not connection.is_locked:
                await self._add_one(header, request)
            else:
                self._take_one(header, request)
            if outbox.is_due:
                await connection.make_room()

    # Adds.

    async def _add_all(self, data: bytes, adds: list[ScannedAdd]) -> None:
        connection = self._connection
        connection.adds = True
        if self._bookie.gate.is_closed and not await connection.wait_admission():
            self._refuse(adds, Status.TOO_MANY_REQUESTS)
            return
        at, count = 0, len(adds)
        while at < count:
            _, ledger_id, previous, flags, key, _, _ = adds[at]
            after = at + 1
            while after < count:
                _, other_id, entry_id, other_flags, other_key, _, _ = adds[after]
                if (
                    other_id != ledger_id
                    or entry_id <= previous
                    or other_flags != flags
                    or other_key != key
                ):
                    break
                previous = entry_id
                after += 1
            self._add_alike(data, adds if after - at == count else adds[at:after])
            at = after

    def _add_alike(self, data: bytes, adds: list[ScannedAdd]) -> None:
        """Adds of one ledger, key and flags, ids ascending."""
        _, ledger_id, _, flags, key, _, _ = adds[0]
        entry_ids = [add[2] for add in adds]
        entries = [data[begin:end] for *_, begin, end in adds]
        lac = max([_LAC.unpack_from(entry, _LAC_OFFSET)[0] for entry in entries])
        try:
            status = self._engine.add_entries(ledger_id, entry_ids, lac, key, entries, flags)
        except (LedgerError, OSError) as error:
            status = self._connection.stumble(error)
        if status is Status.OK:
            size = sum(map(len, entries))
            self._connection.accept(add_answers(adds), len(adds), size)
        else:
            self._refuse(adds, status)

    def _refuse(self, adds: list[ScannedAdd], status: Status) -> None:
        self._bookie.metrics.refused_adds(len(adds), status)
        self._connection.outbox.put(add_answers(adds, status))

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
        pieces: list[Bytes] = []
        size = count = 0
        for (transaction_id, entry_id), answer in zip(tags, answers, strict=True):
            if isinstance(answer, bytes):
                pieces += read_answer(transaction_id, ledger_id, entry_id, answer, max_lac)
                size += len(answer)
                count += 1
            else:
                refused = ReadResponse(status=answer, ledger_id=ledger_id, entry_id=entry_id)
                pieces.append(codec_v3.encode_response(refused, transaction_id=transaction_id))
        self._connection.outbox.put(b"".join(pieces))
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
                authenticator = connection.authenticator
                reply(AUTH_DISABLED if authenticator is None else authenticator.respond(request))
            case StartTlsRequest() | BareRequest():
                reply(codec_v3.refusal(request, Status.BAD_REQUEST))
            case _:
                raise AssertionError(f"v3 does not bring {type(request).__name__}")

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


def _scan_reads(
    data: bytes, offset: int, end: int, frame_bytes_max: int
) -> tuple[LedgerId, list[Tag], int]:
    """The plain reads of one ledger at the head of a buffer, and where something else begins."""
    tags: list[Tag] = []
    ledger = LedgerId(-1)
    unpack_length = _LENGTH.unpack_from
    payload_bytes_max = frame_bytes_max - LENGTH_BYTES
    while (start := offset + LENGTH_BYTES) <= end:
        (length,) = unpack_length(data, offset)
        frame_end = start + length
        if frame_end > end or length > payload_bytes_max:
            break
        read = scan_read(data, start, frame_end)
        if read is None or (tags and read[1] != ledger):
            break
        transaction_id, ledger_id, entry_id, _ = read
        ledger = LedgerId(ledger_id)
        tags.append((transaction_id, entry_id))
        offset = frame_end
    return ledger, tags, offset


_LENGTH: Final = struct.Struct(">I")
