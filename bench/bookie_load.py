"""The load on a bookie, from a process of its own and as cheap as Python can make it.

    python -m bench.bookie_load PORT JOB

Requests are one template whose ids are overwritten column by column; answers are counted by their
size, and only their status bytes are looked at. A client would do far more: this one is there to
leave the machine to the bookie. The JOB is JSON, and so is the answer on standard output.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from wire.batch import encode_batch, join_records
from wire.build_v2 import add_requests, read_requests
from wire.build_v3 import add_answers as add_answers_v3
from wire.build_v3 import add_requests as add_requests_v3
from wire.codec_v2 import encode_request
from wire.messages import BatchReadRequest
from wire.types import LedgerId
from wire.varint import encode_varint

KEY: Final = bytes(range(20))
ENTRY_HEAD_BYTES: Final = 36  # ids, LAC, length, digest of 4
CHUNK: Final = 100  # adds or reads that are sent together
OUTSTANDING: Final = 1000
BATCH_COUNT: Final = 1000
BATCHES_OUTSTANDING: Final = 8
READ_BATCH_COUNT: Final = 500
READ_BATCHES_OUTSTANDING: Final = 4
V3_FIRST: Final = 1 << 21
NEIGHBOUR_COUNT: Final = 10
NEIGHBOUR_REST_SECONDS: Final = 0.001
TIMEOUT_SECONDS: Final = 60.0
RECEIVE_BYTES: Final = 1 << 20

_ADD_HEAD_BYTES: Final = 28  # length, word, key
_STATUS_AT: Final = 11  # last byte of an answer's status, from the length on
_BATCH_READ_HEAD: Final = struct.Struct(">IIiqqq")


def entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    ids = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return ids + bytes(4) + payload


class Columns:
    """Frames or records of one size in one buffer, whose ids can be overwritten."""

    def __init__(
        self, data: bytes, count: int, ids_at: int, *, varints_at: tuple[int, ...] = ()
    ) -> None:
        self.data = bytearray(data)
        self._size = len(data) // count
        self._count = count
        self._ids_at = ids_at
        self._varints_at = varints_at  # where an id stands once more, as a varint of four bytes

    def set_entry_ids(self, first: int) -> None:
        ids = range(first, first + self._count)
        self._set(8, ids)
        self._set(16, range(first - 1, first - 1 + self._count))
        for place in range(4 if self._varints_at else 0):
            last = place == 3
            column = bytes([n >> 7 * place & 0x7F | (0 if last else 0x80) for n in ids])
            for at in self._varints_at:
                self.data[at + place :: self._size] = column

    def set_round(self, first_ledger: int, round_number: int) -> None:
        """The same entry of many ledgers."""
        self._set(0, range(first_ledger, first_ledger + self._count))
        self._set(8, [round_number] * self._count)
        self._set(16, [round_number - 1] * self._count)

    def _set(self, column: int, ids: range | list[int]) -> None:
        packed = struct.pack(f">{self._count}q", *ids)
        for place in range(8):
            self.data[self._ids_at + column + place :: self._size] = packed[place::8]


class Answers:
    """Counts answers of one size, and refuses to go on after one that is not OK."""

    def __init__(
        self, connection: socket.socket, size: int, *, status_at: int = _STATUS_AT
    ) -> None:
        self._status_at = status_at
        self._connection = connection
        self._size = size
        self._buffer = bytearray(RECEIVE_BYTES)
        self._held = 0

    def receive(self) -> int:
        got = self._connection.recv_into(memoryview(self._buffer)[self._held :])
        if not got:
            raise RuntimeError("the bookie closed the connection")
        held = self._held + got
        whole = held // self._size
        end = whole * self._size
        if any(self._buffer[self._status_at : end : self._size]):
            raise RuntimeError("the bookie refused a request")
        self._held = held - end
        self._buffer[: self._held] = self._buffer[end:held]
        return whole


def pump(
    connection: socket.socket,
    requests: Iterator[bytes | bytearray],
    receive: Callable[[], int],
    *,
    per_request: int,
    outstanding_max: int,
) -> dict[str, Any]:
    """Keep up to `outstanding_max` answers under way; how long it took, and each chunk."""
    sent: deque[float] = deque()
    took: list[float] = []
    owed = answered = 0
    more = True
    started = time.perf_counter()
    while more or owed:
        while more and owed + per_request <= outstanding_max:
            request = next(requests, None)
            if request is None:
                more = False
                break
            sent.append(time.perf_counter())
            connection.sendall(request)
            owed += per_request
        if not owed:
            break
        before = answered // per_request
        got = receive()
        answered += got
        owed -= got
        now = time.perf_counter()
        took += [now - sent.popleft() for _ in range(answered // per_request - before)]
    return {"seconds": time.perf_counter() - started, "latencies": took}


def add_v2(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    first, count = job["first"], job["count"]
    payload = os.urandom(job["payload"])
    entries = [entry(job["ledger"], first + n, payload) for n in range(CHUNK)]
    columns = Columns(add_requests(entries, master_key=KEY), CHUNK, _ADD_HEAD_BYTES)

    def requests() -> Iterator[bytearray]:
        for at in range(first, first + count, CHUNK):
            columns.set_entry_ids(at)
            yield columns.data

    return pump(connection, requests(), Answers(connection, 28).receive, per_request=CHUNK,
                outstanding_max=OUTSTANDING)  # fmt: skip


def add_many_ledgers(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    """Every ledger in its turn, as many writers would leave it in one socket."""
    payload = os.urandom(job["payload"])
    entries = [entry(1, n, payload) for n in range(CHUNK)]
    columns = Columns(add_requests(entries, master_key=KEY), CHUNK, _ADD_HEAD_BYTES)

    def requests() -> Iterator[bytearray]:
        for round_number in range(job["first"], job["first"] + job["count"] // job["ledgers"]):
            for at in range(0, job["ledgers"], CHUNK):
                columns.set_round(job["ledger"] + at, round_number)
                yield columns.data

    return pump(connection, requests(), Answers(connection, 28).receive, per_request=CHUNK,
                outstanding_max=OUTSTANDING)  # fmt: skip


def add_batches(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    first, count, ledger = job["first"], job["count"], job["ledger"]
    payload = os.urandom(job["payload"])
    entries = [entry(ledger, first + n, payload) for n in range(BATCH_COUNT)]
    columns = Columns(join_records(entries), BATCH_COUNT, 4)

    def requests() -> Iterator[bytes]:
        for at in range(first, first + count, BATCH_COUNT):
            columns.set_entry_ids(at)
            yield encode_batch(
                bytes(columns.data), request_id=at, ledger_id=ledger, first_entry_id=at,
                last_entry_id=at + BATCH_COUNT - 1, count=BATCH_COUNT, master_key=KEY,
            )  # fmt: skip

    return pump(connection, requests(), Answers(connection, 44).receive, per_request=1,
                outstanding_max=BATCHES_OUTSTANDING)  # fmt: skip


def add_v3(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    """Ids from 2**21 on: as long as their varints have one length, columns can be overwritten."""
    first, count, ledger = V3_FIRST + job["first"], job["count"], job["ledger"]
    payload = os.urandom(job["payload"])
    adds = [(n, n, entry(ledger, n, payload)) for n in range(first, first + CHUNK)]
    frames = b"".join(add_requests_v3(adds, ledger_id=ledger, master_key=KEY))
    varint = encode_varint(first)
    entry_at = frames.index(b"\x10" + varint, frames.index(varint) + 1) + 1
    ids_at = frames.index(struct.pack(">qq", ledger, first))
    columns = Columns(frames, CHUNK, ids_at, varints_at=(frames.index(varint), entry_at))

    def requests() -> Iterator[bytearray]:
        for at in range(first, first + count, CHUNK):
            columns.set_entry_ids(at)
            yield columns.data

    answer = add_answers_v3([(first, ledger, first)])
    answers = Answers(connection, len(answer), status_at=answer.index(varint) + len(varint) + 1)
    return pump(connection, requests(), answers.receive, per_request=CHUNK,
                outstanding_max=OUTSTANDING)  # fmt: skip


def add_singly(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    """One add at a time, and in turn as many bare durable writes on the same disk."""
    payload = os.urandom(job["payload"])
    path = Path(job["directory"], "baseline")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    page = os.urandom(4096)
    os.pwrite(file, bytes(1 << 20), 0)
    adds: list[float] = []
    writes: list[float] = []
    for at in range(job["first"], job["first"] + job["count"]):
        request = add_requests([entry(job["ledger"], at, payload)], master_key=KEY)
        started = time.perf_counter()
        connection.sendall(request)
        answer = connection.recv(64)
        adds.append(time.perf_counter() - started)
        if len(answer) != 28 or answer[_STATUS_AT]:
            raise RuntimeError("the bookie refused a request")
        started = time.perf_counter()
        os.pwrite(file, page, (at % 256) * 4096)
        writes.append(time.perf_counter() - started)
    os.close(file)
    path.unlink()
    return {"seconds": sum(adds), "latencies": adds, "disk": writes}


def neighbour(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    """Somebody well-behaved: a few adds, then the same entries read back; how long each round took.

    A little rest between rounds: it is what others do that may make it wait.
    """
    payload = os.urandom(job["payload"])
    rounds: list[float] = []
    for at in range(job["first"], job["first"] + job["count"], NEIGHBOUR_COUNT):
        ids = range(at, at + NEIGHBOUR_COUNT)
        entries = [entry(job["ledger"], n, payload) for n in ids]
        adds = add_requests(entries, master_key=KEY)
        reads = read_requests(ids, ledger_id=job["ledger"])
        started = time.perf_counter()
        for requests, size in ((adds, 28), (reads, 28 + ENTRY_HEAD_BYTES + job["payload"])):
            connection.sendall(requests)
            answers, owed = Answers(connection, size), NEIGHBOUR_COUNT
            while owed:
                owed -= answers.receive()
        rounds.append(time.perf_counter() - started)
        time.sleep(NEIGHBOUR_REST_SECONDS)
    return {"seconds": sum(rounds), "latencies": rounds}


def read(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    first, count = job["first"], job["count"]
    frames = [
        read_requests(range(at, at + CHUNK), ledger_id=job["ledger"])
        for at in range(first, first + count, CHUNK)
    ]
    answers = Answers(connection, 28 + ENTRY_HEAD_BYTES + job["payload"])
    return pump(connection, iter(frames), answers.receive, per_request=CHUNK,
                outstanding_max=OUTSTANDING)  # fmt: skip


def read_batches(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    """Several under way; an answer that stops short is followed by a question for the rest."""
    record = 4 + ENTRY_HEAD_BYTES + job["payload"]
    end = job["first"] + job["count"]
    wanted = deque(
        (at, min(READ_BATCH_COUNT, end - at)) for at in range(job["first"], end, READ_BATCH_COUNT)
    )
    asked: dict[int, tuple[int, int, float]] = {}
    buffer = bytearray(8 << 20)
    view = memoryview(buffer)
    took: list[float] = []
    number = 0
    started = time.perf_counter()
    while wanted or asked:
        while wanted and len(asked) < READ_BATCHES_OUTSTANDING:
            at, count = wanted.popleft()
            number += 1
            request = BatchReadRequest(
                request_id=number, ledger_id=LedgerId(job["ledger"]), first_entry_id=at,
                count_max=count, bytes_max=4 << 20,
            )  # fmt: skip
            asked[number] = at, count, time.perf_counter()
            connection.sendall(encode_request(request))
        _receive(connection, view[: _BATCH_READ_HEAD.size])
        length, _, status, _, at, request_id = _BATCH_READ_HEAD.unpack_from(buffer)
        if status:
            raise RuntimeError(f"the bookie refused a batch read with status {status}")
        size = length + 4 - _BATCH_READ_HEAD.size
        _receive(connection, view[:size])
        at, count, since = asked.pop(request_id)
        got = size // record
        took.append(time.perf_counter() - since)
        if got < count:
            wanted.appendleft((at + got, count - got))
    return {"seconds": time.perf_counter() - started, "latencies": took}


def _receive(connection: socket.socket, view: memoryview) -> None:
    while view:
        got = connection.recv_into(view)
        if not got:
            raise RuntimeError("the bookie closed the connection")
        view = view[got:]


JOBS: Final[dict[str, Callable[[socket.socket, dict[str, Any]], dict[str, Any]]]] = {
    "add_v2": add_v2,
    "add_v3": add_v3,
    "add_batches": add_batches,
    "add_many_ledgers": add_many_ledgers,
    "add_singly": add_singly,
    "neighbour": neighbour,
    "read": read,
    "read_batches": read_batches,
}


def main() -> None:
    port, job = int(sys.argv[1]), json.loads(sys.argv[2])
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before = time.process_time()
        found = JOBS[job["kind"]](connection, job)
    found["cpu_seconds"] = time.process_time() - before
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
