"""Frames out of a stream that is cut anywhere, with bounded memory."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import ProtocolError
from wire.framing import FrameBuffer, frame
from wire.types import FRAME_BYTES_MAX


def drain(frames: FrameBuffer) -> list[bytes]:
    found = []
    while (payload := frames.next_frame()) is not None:
        found.append(payload)
    return found


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=50), max_size=12),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_frames_come_out_whole_and_in_order_however_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(frame, payloads))
    frames, found, position, turn = FrameBuffer(), [], 0, 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        frames.feed(stream[position : position + size])
        found += drain(frames)
        position, turn = position + size, turn + 1
    assert found == payloads
    assert frames.held_bytes == 0


def test_byte_by_byte_never_holds_more_than_the_frame() -> None:
    stream = frame(b"x" * 70) + frame(b"y")
    frames, found = FrameBuffer(limit=74), []
    for i in range(len(stream)):
        frames.feed(stream[i : i + 1])
        found += drain(frames)
        assert frames.held_bytes <= 74
    assert found == [b"x" * 70, b"y"]


def test_a_receive_with_nothing_left_over_is_not_copied() -> None:
    frames = FrameBuffer()
    chunk = frame(b"first") + frame(b"second")
    frames.feed(chunk)
    assert frames.data is chunk
    assert drain(frames) == [b"first", b"second"]
    frames.feed(chunk)
    assert frames.data is chunk


@pytest.mark.parametrize("length", [0, -1, -(2**31), 97, 2**31 - 1])
def test_bad_length_is_an_error_as_soon_as_its_four_bytes_are_there(length: int) -> None:
    start = length.to_bytes(4, signed=True)
    frames = FrameBuffer(limit=100)
    frames.feed(start[:3])
    assert frames.next_frame() is None
    frames.feed(start[3:])
    with pytest.raises(ProtocolError, match=f"announces {length} bytes"):
        frames.next_frame()


def test_limit_counts_the_length_bytes() -> None:
    frames = FrameBuffer(limit=100)
    frames.feed(frame(b"x" * 96))
    assert frames.next_frame() == b"x" * 96
    frames.feed(frame(b"x" * 97))
    with pytest.raises(ProtocolError):
        frames.next_frame()


def test_feeding_on_after_a_bad_length_is_an_error_too() -> None:
    frames = FrameBuffer(limit=100)
    frames.feed((97).to_bytes(4))
    with pytest.raises(ProtocolError):
        frames.feed(b"x")


def test_largest_frame_arrives_in_small_pieces_with_linear_work() -> None:
    """Counts bytes that `feed` leaves in a new `data`: joining at each receive would make 80 x."""
    payload = random.Random(1).randbytes(FRAME_BYTES_MAX - 4)
    stream = frame(payload) + frame(b"next")
    frames, found, copied, seen = FrameBuffer(), [], 0, b""
    for position in range(0, len(stream), 65536):
        frames.feed(stream[position : position + 65536])
        if frames.data is not seen:
            copied, seen = copied + len(frames.data), frames.data
        assert frames.held_bytes <= FRAME_BYTES_MAX + 65536
        found += drain(frames)
    assert found == [payload, b"next"]
    assert copied < 1.1 * len(stream)


def test_peek_shows_the_first_payload_byte() -> None:
    frames = FrameBuffer()
    frames.feed(b"\x00\x00\x00\x02")
    assert frames.peek() is None
    frames.feed(b"\x0a\x00")
    assert frames.peek() == 0x0A


@pytest.mark.parametrize("cut", range(1, 40))
def test_rest_behind_a_frame_can_be_taken_for_tls(cut: int) -> None:
    rest = b"\x16\x03\x01 client hello"
    stream = frame(b"start tls") + rest
    frames = FrameBuffer()
    frames.feed(stream[:cut])
    payload = frames.next_frame()
    if payload is None:
        frames.feed(stream[cut:])
        payload = frames.next_frame()
        cut = len(stream)
    assert payload == b"start tls"
    assert frames.take_rest() + stream[cut:] == rest
    assert frames.held_bytes == 0


def test_rest_of_a_frame_being_gathered_can_be_taken() -> None:
    frames = FrameBuffer()
    frames.feed((1000).to_bytes(4) + b"a")
    frames.feed(b"b")
    frames.feed(b"c")
    assert frames.held_bytes == 7
    assert frames.take_rest() == (1000).to_bytes(4) + b"abc"
    assert frames.held_bytes == 0


@pytest.mark.parametrize("sizes", [(1,), (1, 20_000), (16_383, 16_384, 5)], ids=str)
def test_frame_gathers_from_receives_of_any_sizes_in_few_pieces(sizes: tuple[int, ...]) -> None:
    payload = random.Random(1).randbytes(300_000)
    stream = frame(payload) + frame(b"next")
    frames, position, pieces = FrameBuffer(), 0, 0
    for size in itertools.cycle(sizes):
        frames.feed(stream[position : position + size])
        position += size
        pieces = max(pieces, len(frames._pieces))
        if found := drain(frames):
            break
    frames.feed(stream[position:])
    assert found + drain(frames) == [payload, b"next"]
    assert pieces <= 2 * len(stream) / 16_384 + 2
