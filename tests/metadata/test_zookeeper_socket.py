"""What kazoo sees of its socket: the same bytes in the same order, and honest readiness."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from metadata.zookeeper_socket import ReadAheadSocket, wait_ready


@pytest.fixture
def pair() -> Iterator[tuple[ReadAheadSocket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    ours = ReadAheadSocket.around(near)
    with ours, far:
        yield ours, far


def test_bytes_come_in_order_whatever_the_pieces(
    pair: tuple[ReadAheadSocket, socket.socket],
) -> None:
    ours, far = pair
    far.sendall(b"0123456789")
    assert [ours.recv(4), ours.recv(1), ours.recv(2)] == [b"0123", b"4", b"56"]
    far.sendall(b"abc")
    assert [ours.recv(10), ours.pending(), ours.recv(10)] == [b"789", 0, b"abc"]
    far.close()
    assert ours.recv(4) == b"", "the end of the connection"


def test_what_was_read_ahead_is_ready_without_the_network(
    pair: tuple[ReadAheadSocket, socket.socket],
) -> None:
    ours, far = pair
    assert wait_ready([ours], [], 0.0)[0] == []
    far.sendall(b"0123456789")
    assert ours.recv(4) == b"0123"
    assert ours.pending() == 6
    assert wait_ready([ours, far], [], 3600.0)[0] == [ours], "and nothing is waited for"
    assert ours.recv(100) == b"456789"
    assert wait_ready([ours], [], 0.0)[0] == []


def test_a_socket_without_blocking_stays_one(pair: tuple[ReadAheadSocket, socket.socket]) -> None:
    ours, _ = pair
    with pytest.raises(BlockingIOError):
        ours.recv(1)


def test_reading_and_writing_are_told_apart(pair: tuple[ReadAheadSocket, socket.socket]) -> None:
    ours, far = pair
    assert wait_ready([ours], [ours], 0.0) == ([], [ours], [])
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    assert wait_ready([ours], [ours], 0.0) == ([], [], [])
    assert wait_ready([far], [ours], None) == ([far], [], [])


def test_the_end_of_a_connection_is_ready_and_a_closed_socket_is_refused(
    pair: tuple[ReadAheadSocket, socket.socket],
) -> None:
    ours, far = pair
    far.close()
    assert wait_ready([ours], [], None)[0] == [ours]
    ours.close()
    with pytest.raises(ValueError, match="closed"):
        wait_ready([ours], [], 0.0)
