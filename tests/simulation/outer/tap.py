"""What passes over a bookie's connections, told to the history frame by frame.

The omniscient watcher sits between the network and the real server: what a bookie has said is what
it has handed to its socket, whatever its code believes to have said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from runtime.memory_sockets import MemoryHost, MemoryListener, MemoryStream
from wire import codec_v2, codec_v3
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import (
    AddBatchRequest,
    AddBatchResponse,
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceResponse,
    ReadRequest,
    ReadResponse,
    WriteLacRequest,
)
from wire.types import LAST_ENTRY

if TYPE_CHECKING:
    from tests.simulation.outer.bookie import BookieProcess

_V3 = 0x0A
_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)
_LAC_BYTES = slice(16, 24)


class WatchedHost:
    """A host on whose connections somebody listens in."""

    def __init__(self, host: MemoryHost, bookie: BookieProcess) -> None:
        self._host = host
        self._bookie = bookie

    async def listen(self, host: str, port: int) -> WatchedListener:
        return WatchedListener(await self._host.listen(host, port), self._bookie)

    async def connect(self, host: str, port: int) -> MemoryStream:
        return await self._host.connect(host, port)


class WatchedListener:
    def __init__(self, listener: MemoryListener, bookie: BookieProcess) -> None:
        self._listener = listener
        self._bookie = bookie
        self.host, self.port = listener.host, listener.port

    async def accept(self) -> WatchedStream:
        return WatchedStream(await self._listener.accept(), Ear(self._bookie))

    def close(self) -> None:
        self._listener.close()


class WatchedStream:
    def __init__(self, stream: MemoryStream, ear: Ear) -> None:
        self._stream = stream
        self._ear = ear
        self.peer = stream.peer

    def receive_now(self, size: int) -> bytes | None:
        data = self._stream.receive_now(size)
        if data:
            self._ear.hear_requests(data)
        return data

    async def receive_some(self, size: int) -> bytes:
        data = await self._stream.receive_some(size)
        self._ear.hear_requests(data)
        return data

    def send_now(self, data: bytes | memoryview) -> int:
        sent = self._stream.send_now(data)
        self._ear.hear_answers(bytes(data[:sent]))
        return sent

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        return self.send_now(b"".join(pieces))

    async def send_all(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            await self.wait_writable()
            view = view[self.send_now(view) :]

    async def wait_readable(self) -> None:
        await self._stream.wait_readable()

    async def wait_writable(self) -> None:
        await self._stream.wait_writable()

    def end_sending(self) -> None:
        self._stream.end_sending()

    def close(self, *, reset: bool = False) -> None:
        self._stream.close(reset=reset)


class Ear:
    """Understands both directions of one connection, as far as the checkers want to know."""

    def __init__(self, bookie: BookieProcess) -> None:
        self._bookie = bookie
        self._emit: Callable[..., None] = bookie.world.history.emit
        self._requests = FrameBuffer()
        self._answers = FrameBuffer()
        self._batches: dict[int, tuple[tuple[int, ...], bool]] = {}
        self._adds: dict[int, list[bool]] = {}  # deferred or not, by entry, in order
        self._reads: dict[int, list[bool]] = {}  # fencing or not, by entry, in order
        self._batch_fences: set[int] = set()
        self._questions: dict[int, Any] = {}  # v3, by transaction

    def hear_requests(self, data: bytes) -> None:
        self._requests.feed(data)
        while (payload := self._requests.next_frame()) is not None:
            if payload[0] == _V3:
                header, request = codec_v3.decode_request(payload)
                self._questions[header.transaction_id] = request
                self._hear_lac(request)
            else:
                self._hear_v2(codec_v2.decode_request(payload).request)

    def _hear_v2(self, request: Any) -> None:
        if getattr(request, "ledger_id", None) != self._bookie.world.ledger_id:
            return
        self._hear_lac(request)
        match request:
            case AddRequest():
                self._adds.setdefault(request.entry_id, []).append(request.deferred_sync)
            case AddBatchRequest():
                if self._bookie.is_v2_only:
                    self._bookie.world.on_bug(AssertionError("a batch for a bookie without them"))
                ids = tuple(int.from_bytes(entry[8:16], "big") for entry in records(request.body))
                self._batches[request.request_id] = ids, request.deferred_sync
            case ReadRequest():
                self._reads.setdefault(request.entry_id, []).append(request.fence)
            case BatchReadRequest(fence=True):
                self._batch_fences.add(request.request_id)

    def _hear_lac(self, request: Any) -> None:
        """Every LAC that a bookie is given: of the entries, and of the idle writer."""
        world = self._bookie.world
        if getattr(request, "ledger_id", None) != world.ledger_id:
            return
        bodies: list[bytes] = []
        if isinstance(request, AddRequest):
            bodies = [bytes(request.body)]
        elif isinstance(request, AddBatchRequest):
            bodies = records(request.body)
        lacs = [int.from_bytes(body[_LAC_BYTES], "big", signed=True) for body in bodies]
        if isinstance(request, WriteLacRequest):
            lacs.append(request.lac)
        if lacs:
            self._emit("lac_stored", self._bookie.name, max(lacs))

    # ------------------------------------------------------------------ answers

    def hear_answers(self, data: bytes) -> None:
        if not data:
            return
        self._answers.feed(data)
        while (payload := self._answers.next_frame()) is not None:
            if payload[0] == _V3:
                header, answer = codec_v3.decode_response(payload)
                question = self._questions.pop(header.transaction_id, None)
                if getattr(answer, "ledger_id", None) == self._bookie.world.ledger_id:
                    self._hear_v3_answer(question, answer)
            else:
                answer = codec_v2.decode_response(payload)
                if getattr(answer, "ledger_id", None) == self._bookie.world.ledger_id:
                    self._hear_v2_answer(answer)

    def _hear_v2_answer(self, answer: Any) -> None:
        match answer:
            case AddResponse():
                deferred = self._adds[answer.entry_id].pop(0)
                self._said(answer.status, (answer.entry_id,), deferred)
            case AddBatchResponse():
                ids, deferred = self._batches.pop(answer.request_id)
                self._said(answer.status, ids, deferred)
            case ReadResponse():
                waiting = self._reads.get(answer.entry_id, [])
                is_fence = bool(waiting) and all(waiting)
                if waiting:
                    waiting.pop(0)
                self._read(answer.status, answer.entry_id, is_fence)
            case BatchReadResponse():
                is_fence = answer.request_id in self._batch_fences
                self._batch_fences.discard(answer.request_id)
                self._read(answer.status, answer.first_entry_id, is_fence)

    def _hear_v3_answer(self, question: Any, answer: Any) -> None:
        match answer:
            case AddResponse():
                deferred = isinstance(question, AddRequest) and question.deferred_sync
                self._said(answer.status, (answer.entry_id,), deferred)
            case ReadResponse():
                is_fence = isinstance(question, ReadRequest) and question.fence
                is_poll = isinstance(question, ReadRequest) and question.previous_lac is not None
                if not is_poll:
                    self._read(answer.status, answer.entry_id, is_fence)
            case ForceResponse(status=Status.OK):
                self._bookie.on_forced()

    def _said(self, status: Status, entry_ids: tuple[int, ...], deferred: bool) -> None:
        if status is Status.OK:
            self._bookie.on_acknowledged(entry_ids, deferred=deferred)

    def _read(self, status: Status, entry_id: int, is_fence: bool) -> None:
        name = self._bookie.name
        if is_fence and status in (Status.OK, *_ABSENT):
            self._bookie.on_fence_answered()
        if status in _ABSENT:
            whole = status is Status.NO_LEDGER or entry_id == LAST_ENTRY
            self._emit("denied", name, None if whole else entry_id)


def records(body: bytes | memoryview) -> list[bytes]:
    """The entries of a batch, cut at their lengths."""
    data = bytes(body)
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found
