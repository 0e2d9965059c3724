"""Clients of a bookie that is a process: writers that go on until it ends, and bad neighbours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from tests.bookie_server.world import KEY, entry_of
from wire import codec_v2
from wire.build_v2 import add_requests, read_requests
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import ReadRequest, ReadResponse
from wire.scan_v2 import (
    READ_ANSWER_ENTRY_OFFSET,
    AddAnswerMix,
    AddAnswers,
    ReadAnswers,
    scan_responses,
)
from wire.types import LedgerId

#: Only a bookie that hangs takes so long; nothing is measured by it.
HANGS_SECONDS = 120.0
CHUNK = 50
OUTSTANDING_MAX = 2000


def answers_in(frames: FrameBuffer) -> Iterator[AddAnswers | ReadAnswers]:
    """All whole ones. Such as stand alone come as a mix; nobody here cares about the difference."""
    for answers in scan_responses(frames):
        if isinstance(answers, AddAnswerMix):
            for ledger_id, entry_id in answers.ids():
                yield AddAnswers(Status.OK, LedgerId(ledger_id), [entry_id])
        else:
            assert isinstance(answers, AddAnswers | ReadAnswers), answers
            yield answers


class LiveClient:
    """One v2 connection over TCP, with answers scanned in runs."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._frames = FrameBuffer()

    async def answers(self) -> list[AddAnswers | ReadAnswers]:
        """The next answers, at least one; none when the connection has ended."""
        found: list[AddAnswers | ReadAnswers] = []
        while not found:
            data = await self.stream.receive_some(1 << 16)
            if not data:
                return []
            self._frames.feed(data)
            found += answers_in(self._frames)
        return found

    async def add(self, ledger_id: int, entry_ids: Iterable[int], payload: bytes) -> set[Status]:
        """Add and wait; the statuses that came."""
        entries = [entry_of(ledger_id, entry_id, payload) for entry_id in entry_ids]
        await self.stream.send_all(add_requests(entries, master_key=KEY))
        statuses: list[Status] = []
        while len(statuses) < len(entries):
            found = await self.answers()
            assert found, "the bookie closed the connection"
            for answers in found:
                statuses += [answers.status] * len(answers.entry_ids)
        return set(statuses)

    async def read(self, ledger_id: int, entry_ids: Sequence[int]) -> dict[int, bytes]:
        """The entries among these that the bookie has."""
        await self.stream.send_all(read_requests(entry_ids, ledger_id=ledger_id))
        entries: dict[int, bytes] = {}
        left = len(entry_ids)
        while left:
            found = await self.answers()
            assert found, "the bookie closed the connection"
            for answers in found:
                assert isinstance(answers, ReadAnswers)
                left -= len(answers.entry_ids)
                if answers.status is Status.OK:
                    for place, entry_id in enumerate(answers.entry_ids):
                        start = answers.bounds[place] + READ_ANSWER_ENTRY_OFFSET
                        entries[entry_id] = answers.data[start : answers.bounds[place + 1]]
        return entries

    async def fence(self, ledger_id: int) -> Status:
        request = ReadRequest(
            ledger_id=LedgerId(ledger_id), entry_id=0, fence=True, master_key=KEY
        )  # fmt: skip
        await self.stream.send_all(codec_v2.encode_request(request))
        while (payload := self._frames.next_frame()) is None:
            data = await self.stream.receive_some(1 << 16)
            assert data, "the bookie closed the connection"
            self._frames.feed(data)
        response = codec_v2.decode_response(payload)
        assert isinstance(response, ReadResponse)
        return response.status


@asynccontextmanager
async def connected(port: int, patience: float = HANGS_SECONDS) -> AsyncIterator[LiveClient]:
    with trio.fail_after(patience):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            yield LiveClient(stream)


class Writer:
    """Adds to one ledger for as long as the bookie takes it, and remembers what was promised."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.acknowledged: list[int] = []
        self.refused: list[Status] = []
        self._sent = 0
        self._progress = trio.Event()

    def entry(self, entry_id: int) -> bytes:
        return entry_of(self.ledger_id, entry_id, b"%d/%d " % (self.ledger_id, entry_id) * 200)

    async def run(self, port: int) -> None:
        async with connected(port) as client:
            try:
                while not self.refused:
                    await self._send_some(client)
                    if not await self._take_answers(client):
                        return
                await client.stream.send_eof()
            except trio.BrokenResourceError:
                pass  # the process is gone; what it said before may still be on the way to us
            with suppress(trio.BrokenResourceError):
                while await self._take_answers(client):
                    pass

    async def _send_some(self, client: LiveClient) -> None:
        while self._sent - len(self.acknowledged) < OUTSTANDING_MAX:
            ids = range(self._sent, self._sent + CHUNK)
            self._sent += CHUNK
            entries = [self.entry(entry_id) for entry_id in ids]
            await client.stream.send_all(add_requests(entries, master_key=KEY))

    async def _take_answers(self, client: LiveClient) -> bool:
        found = await client.answers()
        for answers in found:
            if answers.status is Status.OK:
                self.acknowledged += answers.entry_ids
            else:
                self.refused += [answers.status] * len(answers.entry_ids)
        self._progress.set()
        return bool(found)

    async def wait_acknowledged(self, count: int) -> None:
        with trio.fail_after(HANGS_SECONDS):
            while len(self.acknowledged) < count:
                self._progress = trio.Event()
                await self._progress.wait()

    async def missing(self, port: int) -> list[int]:
        """What was acknowledged, and is not there or is something else."""
        lost: list[int] = []
        async with connected(port) as client:
            for at in range(0, len(self.acknowledged), 1000):
                ids = self.acknowledged[at : at + 1000]
                found = await client.read(self.ledger_id, ids)
                lost += [n for n in ids if found.get(n) != self.entry(n)]
        return lost


async def one_round(client: LiveClient, number: int) -> None:
    """What a well-behaved neighbour of misbehaving clients does: add a hundred, read them."""
    ids = range(number * 100, number * 100 + 100)
    assert await client.add(2, ids, b"neighbour") == {Status.OK}
    assert len(await client.read(2, ids)) == 100
