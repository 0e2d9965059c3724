"""Answers on their way out: in order, whatever the socket takes, and never copied in vain."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest
import trio

from bookie.answers import JOIN_BYTES_MAX, SEND_BYTES, Outbox, Post
from runtime.sockets import PIECES_MAX, ByteStream


class Socket:
    """Takes as much as it is told to, call by call, then nothing."""

    peer = "somebody"

    def __init__(self, rooms: Sequence[int]) -> None:
        self.rooms = list(rooms)
        self.taken = b""
        self.calls: list[int] = []  # how many pieces came at a time

    def send_now(self, data: bytes | memoryview) -> int:
        return self.send_pieces_now([data])

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        assert len(pieces) <= PIECES_MAX
        self.calls.append(len(pieces))
        data = b"".join(pieces)[: self.rooms.pop(0) if self.rooms else 0]
        self.taken += data
        return len(data)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()


class Owner:
    """A connection whose writer tasks are counted."""

    def __init__(self) -> None:
        self.writers = 0

    def start_writer(self) -> None:
        self.writers += 1

    def lost(self, error: Exception) -> None:
        raise error


def outbox_on(socket: Socket) -> tuple[Outbox, Post, Owner]:
    post, owner = Post(), Owner()
    return Outbox(cast("ByteStream", socket), post, owner), post, owner


def test_small_answers_leave_joined_and_large_ones_as_they_are() -> None:
    socket = Socket([1 << 30] * 2)
    outbox, post, owner = outbox_on(socket)
    outbox.put(*[bytes(28)] * 500)
    post.flush()
    assert socket.calls == [1]
    outbox.put(b"head", bytes(8 * JOIN_BYTES_MAX), bytes(8 * JOIN_BYTES_MAX))
    post.flush()
    assert socket.calls == [1, 3]
    assert (outbox.bytes, post.unsent, owner.writers) == (0, 0, 0)


def test_no_call_gets_more_pieces_than_a_system_takes() -> None:
    socket = Socket([1 << 30] * 10)
    outbox, post, _ = outbox_on(socket)
    count = 2 * PIECES_MAX
    assert count * JOIN_BYTES_MAX > SEND_BYTES
    outbox.put(*[bytes([n]) * JOIN_BYTES_MAX for n in range(count)])
    post.flush()
    assert socket.taken == b"".join(bytes([n]) * JOIN_BYTES_MAX for n in range(count))


@pytest.mark.parametrize("seed", range(40))
async def test_answers_arrive_in_order_however_little_the_socket_takes(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 28, 5000, 70_000, SEND_BYTES + 5]) for _ in range(12)]
    pieces = [chance.randbytes(size) for size in sizes]
    socket = Socket([chance.choice([1, 27, 4000, 80_000, 1 << 21]) for _ in range(6)])
    outbox, post, owner = outbox_on(socket)
    expected = b"".join(pieces)
    outbox.put(*pieces)
    post.flush()
    assert expected.startswith(socket.taken)
    assert outbox.bytes == post.unsent == len(expected) - len(socket.taken)
    assert owner.writers == post.blocked == (1 if outbox.bytes else 0)
    if outbox.bytes:
        socket.rooms = [1 << 30] * 100
        await outbox.drain(1.0)
    assert socket.taken == expected
    assert post.bytes_sent == len(expected)
    assert (outbox.bytes, post.unsent, post.blocked) == (0, 0, 0)
