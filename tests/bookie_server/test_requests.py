"""Requests over a connection: batches, cold entries, many ledgers at once, authentication."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.authentication import AuthenticationFailedError, Subject
from runtime.memory_files import MemoryFile
from runtime.sockets import ByteStream
from tests.bookie_server.world import KEY, Client, World, entry_of, running
from wire import codec_v2, codec_v3
from wire.batch import encode_batch, join_records
from wire.build_v2 import add_requests, read_requests
from wire.build_v3 import read_requests as read_requests_v3
from wire.errors import Status
from wire.messages import (
    AddBatchResponse,
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
)
from wire.types import LedgerId, Operation

LEDGER = LedgerId(1)


def batch(request_id: int, ids: range, *, key: bytes = KEY) -> bytes:
    entries = [entry_of(LEDGER, entry_id, b"y" * 50) for entry_id in ids]
    return encode_batch(
        join_records(entries),
        request_id=request_id,
        ledger_id=LEDGER,
        first_entry_id=ids[0],
        last_entry_id=ids[-1],
        count=len(ids),
        master_key=key,
    )


async def test_batch_is_answered_as_one_and_reads_like_single_adds() -> None:
    async with running() as world:
        client = await world.connect()
        await client.send(batch(7, range(10)), batch(8, range(10, 12), key=bytes(20)))
        answers = {answer.request_id: answer for answer in
                   [await batch_answer(client), await batch_answer(client)]}  # fmt: skip
        assert answers[7].status is Status.OK
        assert (answers[7].first_entry_id, answers[7].last_entry_id) == (0, 9)
        assert answers[8].status is Status.UNAUTHORIZED
        found = await client.ask_v2(ReadRequest(ledger_id=LEDGER, entry_id=9))
        assert isinstance(found, ReadResponse)
        assert found.body == entry_of(LEDGER, 9, b"y" * 50)
        request = BatchReadRequest(
            request_id=5, ledger_id=LEDGER, first_entry_id=3, count_max=4, bytes_max=1 << 20
        )
        read = await client.ask_v2(request)
        assert isinstance(read, BatchReadResponse)
        assert read.request_id == 5
        assert [bytes(entry)[8:16] for entry in read.entries] == [
            entry_id.to_bytes(8, "big") for entry_id in range(3, 7)
        ]


async def batch_answer(client: Client) -> AddBatchResponse:
    answer = await client.answer_v2()
    assert isinstance(answer, AddBatchResponse)
    return answer


async def test_fencing_batch_read_fences() -> None:
    async with running() as world:
        client = await world.connect()
        await client.send(batch(1, range(3)))
        await batch_answer(client)
        request = BatchReadRequest(
            request_id=5, ledger_id=LEDGER, first_entry_id=0, count_max=2, bytes_max=1 << 20,
            fence=True, master_key=KEY,
        )  # fmt: skip
        read = await client.ask_v2(request)
        assert isinstance(read, BatchReadResponse)
        assert len(read.entries) == 2
        await client.add_v2(LEDGER, 9)
        assert (await client.answer_v2()).status is Status.FENCED


@pytest.mark.parametrize("entry_id", [-1, 0, 77])
@pytest.mark.parametrize("version", ["v2", "v3"])
async def test_no_answer_to_a_fence_leaves_before_it_is_durable(
    entry_id: int, version: str
) -> None:
    """Not even "no such entry": recovery counts that as fenced, and a restart would forget it."""
    async with running(run_workers=False) as world:
        client = await world.connect()
        fence = ReadRequest(ledger_id=LEDGER, entry_id=entry_id, fence=True, master_key=KEY)
        if version == "v2":
            await client.send(codec_v2.encode_request(fence))
        else:
            await client.send_v3(fence)
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.engine.ledger(LEDGER).fenced
        assert client.stream.receive_now(100) is None
        world.workers.run_until_idle()
        answer = await client.answer_v2() if version == "v2" else (await client.answer_v3())[1]
        assert answer.status is Status.NO_ENTRY


async def test_add_is_readable_at_once_and_acknowledged_when_durable() -> None:
    async with running(run_workers=False) as world:
        writer, reader = await world.connect(), await world.connect()
        await writer.add_v2(LEDGER, 0, 1)
        found = await reader.ask_v2(ReadRequest(ledger_id=LEDGER, entry_id=1))
        assert found.status is Status.OK
        assert writer.stream.receive_now(100) is None
        world.workers.run_until_idle()
        assert (await writer.answer_v2()).status is Status.OK


@pytest.mark.parametrize(
    ("bytes_max", "count"), [(0, 1), (36 + 86, 1), (36 + 2 * 86 - 1, 1), (36 + 2 * 86, 2)]
)
async def test_batch_read_counts_the_whole_frame(bytes_max: int, count: int) -> None:
    """Each record takes 4 + 82 bytes; the first one always fits."""
    async with running() as world:
        client = await world.connect()
        await client.send(batch(1, range(5)))
        await batch_answer(client)
        request = BatchReadRequest(
            request_id=5, ledger_id=LEDGER, first_entry_id=0, count_max=0, bytes_max=bytes_max
        )
        read = await client.ask_v2(request)
        assert isinstance(read, BatchReadResponse)
        assert len(read.entries) == count


async def test_adds_of_many_ledgers_in_one_buffer_are_each_answered() -> None:
    async with running() as world:
        client = await world.connect()
        fence = ReadRequest(ledger_id=LedgerId(13), entry_id=-1, fence=True, master_key=KEY)
        assert (await client.ask_v2(fence)).status is Status.NO_ENTRY
        entries = [entry_of(ledger_id, 0, b"z") for ledger_id in range(10, 40)]
        await client.send(add_requests(entries, master_key=KEY))
        found: dict[int, Status] = {}
        for _ in entries:
            answer = await client.answer_v2()
            assert isinstance(answer, AddResponse)
            found[answer.ledger_id] = answer.status
        assert found.pop(13) is Status.FENCED
        assert set(found.values()) == {Status.OK}
        assert set(found) == set(range(10, 40)) - {13}


async def cooled(world: World, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A ledger whose entries are in a log, and must be waited for."""
    client = await world.connect()
    entries = [entry_of(LEDGER, entry_id, b"c" * 100, entry_id - 1) for entry_id in range(100)]
    await client.send(add_requests(entries, master_key=KEY))
    for _ in entries:
        await client.answer_v2()
    world.bookie.engine.checkpoint()
    await trio.testing.wait_all_tasks_blocked()
    assert world.bookie.engine.statistics().write_cache_bytes == 0
    monkeypatch.setattr(MemoryFile, "read_cached", lambda self, size, offset: None)
    return client


async def test_cold_entries_are_fetched_and_each_is_answered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as world:
        client = await cooled(world, monkeypatch)
        wanted = [*range(100), 5, 5, 400]
        await client.send(read_requests(wanted, ledger_id=LEDGER))
        found = []
        for _ in wanted:
            answer = await client.answer_v2()
            assert isinstance(answer, ReadResponse)
            assert (answer.status is Status.OK) == (answer.entry_id < 100)
            found.append(answer.entry_id)
        assert sorted(found) == sorted(wanted)
        await trio.testing.wait_all_tasks_blocked()
        assert [connection.owed for connection in world.bookie.connections] == [0]


async def test_neighbours_that_are_cold_are_fetched_by_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as world:
        client = await cooled(world, monkeypatch)
        reads: list[int] = []
        plain = MemoryFile.read

        def counted(file: MemoryFile, size: int, offset: int) -> bytes:
            reads.append(size)
            return plain(file, size, offset)

        monkeypatch.setattr(MemoryFile, "read", counted)
        await client.send(read_requests(range(100), ledger_id=LEDGER))
        for _ in range(100):
            assert (await client.answer_v2()).status is Status.OK
        assert len(reads) <= 8, reads


async def test_cold_entries_by_v3_carry_the_lac(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as world:
        await cooled(world, monkeypatch)
        client = await world.connect()
        frames = read_requests_v3([(n, n) for n in range(100)], ledger_id=LEDGER)
        await client.send(b"".join(frames))
        found = set()
        for _ in frames:
            header, answer = await client.answer_v3()
            assert isinstance(answer, ReadResponse)
            assert (answer.status, answer.max_lac) == (Status.OK, 98)
            assert header.transaction_id == answer.entry_id
            found.add(answer.entry_id)
        assert found == set(range(100))


async def test_bytes_after_good_requests_do_not_cost_them_their_answers() -> None:
    async with running() as world:
        client = await world.connect()
        entries = [entry_of(LEDGER, entry_id) for entry_id in range(20)]
        await client.send(add_requests(entries, master_key=KEY) + b"\xff" * 8)
        for entry_id in range(20):
            answer = await client.answer_v2()
            assert isinstance(answer, AddResponse)
            assert (answer.status, answer.entry_id) == (Status.OK, entry_id)
        assert await client.is_closed()


class Doorkeeper:
    """Lets in whoever says `friend` to the plugin `door`."""

    def __init__(self, stream: ByteStream) -> None:
        self.is_complete = False

    def respond(self, request: AuthRequest) -> AuthResponse:
        if request.plugin != "door":
            return AuthResponse(plugin="door", payload=b"", status=Status.UNAUTHORIZED)
        if request.payload != b"friend":
            raise AuthenticationFailedError("not a friend")
        self.is_complete = True
        return AuthResponse(plugin="door", payload=b"enter")

    def on_tls(self, subject: Subject) -> None:
        pass


async def test_v3_client_is_refused_until_it_has_said_who_it_is() -> None:
    async with running(new_authenticator=Doorkeeper) as world:
        client = await world.connect()
        body = entry_of(LEDGER, 0)
        add = AddRequest(ledger_id=LEDGER, entry_id=0, master_key=KEY, body=body)
        assert await client.ask_v3(add) == BareResponse(
            operation=Operation.ADD_ENTRY, status=Status.UNAUTHORIZED
        )
        asked = await client.ask_v3(ReadLacRequest(ledger_id=LEDGER))
        assert asked.status is Status.UNAUTHORIZED
        entered = await client.ask_v3(AuthRequest(plugin="door", payload=b"friend"))
        assert entered == AuthResponse(plugin="door", payload=b"enter")
        assert (await client.ask_v3(add)).status is Status.OK


async def test_v2_client_is_refused_until_it_has_said_who_it_is() -> None:
    async with running(new_authenticator=Doorkeeper) as world:
        client = await world.connect()
        await client.add_v2(LEDGER, 0)
        assert (await client.answer_v2()).status is Status.UNAUTHORIZED
        found = await client.ask_v2(ReadRequest(ledger_id=LEDGER, entry_id=0))
        assert found.status is Status.UNAUTHORIZED
        await client.ask_v2(AuthRequest(plugin="door", payload=b"friend"))
        await client.add_v2(LEDGER, 0)
        assert (await client.answer_v2()).status is Status.OK


@pytest.mark.parametrize(
    "request_",
    [
        AuthRequest(plugin="window", payload=b"friend"),
        AuthRequest(plugin="door", payload=b"foe"),
        BatchReadRequest(
            request_id=1, ledger_id=LEDGER, first_entry_id=0, count_max=1, bytes_max=9
        ),
    ],
)
async def test_v2_stranger_is_disconnected(request_: AuthRequest | BatchReadRequest) -> None:
    async with running(new_authenticator=Doorkeeper) as world:
        client = await world.connect()
        with pytest.raises(AssertionError, match="closed"):
            await client.ask_v2(request_)


async def test_v3_header_of_an_old_version_is_answered() -> None:
    async with running() as world:
        client = await world.connect()
        frame = bytearray(
            codec_v3.encode_request(ReadLacRequest(ledger_id=LEDGER), transaction_id=4)
        )
        assert frame[7] == 3
        frame[7] = 2
        await client.send(bytes(frame))
        _, answer = await client.answer_v3()
        assert answer.status is Status.BAD_VERSION
