"""Bytes that nobody should send: every prefix, every split, mutations, probes, noise.

Whatever arrives, decoders and scanners either understand it or raise ProtocolError; they hold no
more than the frame limit and one receive, and every item they yield has moved them on.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import v2
from wire.batch import encode_batch, join_records
from wire.codec_v2 import decode_request, decode_response, encode_response
from wire.errors import ProtocolError, Status
from wire.framing import FrameBuffer
from wire.messages import AddBatchResponse
from wire.scan_v2 import AddAnswerMix, scan_requests, scan_responses
from wire.types import LedgerId

Scan = Callable[[FrameBuffer], Iterator[Any]]

LIMIT = 4096
BATCH = encode_batch(
    join_records([v2.entry(7, i, b"payload") for i in range(30)]),
    request_id=3,
    ledger_id=7,
    first_entry_id=0,
    last_entry_id=29,
    count=30,
    master_key=bytes(20),
)
BATCH_ANSWER = encode_response(
    AddBatchResponse(
        status=Status.OK,
        request_id=3,
        ledger_id=LedgerId(7),
        first_entry_id=0,
        last_entry_id=29,
    )
)

both = pytest.mark.parametrize(
    ("scan", "decode", "frames"),
    [
        (scan_requests, decode_request, [*v2.frames("request"), BATCH]),
        (scan_responses, decode_response, [*v2.frames("response"), BATCH_ANSWER]),
    ],
    ids=["requests", "answers"],
)


def run(scan: Scan, pieces: list[bytes]) -> list[Any]:
    """Feed and scan; ProtocolError ends it, anything else that is raised fails the test."""
    frames, found = FrameBuffer(limit=LIMIT), []
    try:
        for piece in pieces:
            frames.feed(piece)
            assert frames.held_bytes <= LIMIT + len(piece)
            held = frames.held_bytes
            for item in scan(frames):
                assert frames.held_bytes < held, "an item that took no bytes"
                held = frames.held_bytes
                found.append(item)
    except ProtocolError:
        found.append(ProtocolError)
    return found


def quietly(decode: Callable[[bytes], Any], payload: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(payload)


@both
def test_every_prefix_of_every_frame_decodes_or_is_no_message(
    scan: Scan, decode: Callable[[bytes], Any], frames: list[bytes]
) -> None:
    for frame in frames:
        for size in range(len(frame)):
            assert run(scan, [frame[:size]]) == [], "an incomplete frame is waited for"
            if size >= 4:
                quietly(decode, frame[4:size])
                # The same payload as a frame of its own, which is whole and too short.
                run(scan, [(size - 4).to_bytes(4) + frame[4:size]])


@both
def test_every_split_of_a_frame_gives_the_same_items(
    scan: Scan, decode: Callable[[bytes], Any], frames: list[bytes]
) -> None:
    for frame in frames[:: max(1, len(frames) // 40)]:
        whole = len(run(scan, [frame]))
        assert whole == 1
        for cut in range(len(frame) + 1):
            assert len(run(scan, [frame[:cut], frame[cut:]])) == 1
        assert len(run(scan, [frame[i : i + 1] for i in range(len(frame))])) == 1


@both
@pytest.mark.parametrize("seed", range(20))
def test_random_cuts_of_all_frames_lose_nothing(
    scan: Scan, decode: Callable[[bytes], Any], frames: list[bytes], seed: int
) -> None:
    rng = random.Random(seed)
    chosen = rng.choices(frames, k=60)
    stream, pieces, position = b"".join(chosen), [], 0
    while position < len(stream):
        size = rng.choice([1, 2, 3, 30, 500, 3000])
        pieces.append(stream[position : position + size])
        position += size
    found = run(scan, pieces)
    assert ProtocolError not in found
    assert sum(map(_entries, found)) == 60


@both
def test_any_changed_byte_decodes_or_is_no_message(
    scan: Scan, decode: Callable[[bytes], Any], frames: list[bytes]
) -> None:
    """Every byte of the shortest frames and a sample of the others, several values each."""
    rng = random.Random(7)
    neighbour = frames[0]
    for frame in frames:
        every = range(len(frame)) if len(frame) <= 120 else rng.sample(range(len(frame)), 100)
        for position in every:
            old = frame[position]
            for new in {old ^ 1 << rng.randrange(8), 0, 0xFF, rng.randrange(256)}:
                wrong = frame[:position] + bytes([new]) + frame[position + 1 :]
                quietly(decode, wrong[4:])
                run(scan, [wrong, neighbour])


@both
def test_any_changed_byte_inside_a_run_decodes_or_is_no_message(
    scan: Scan, decode: Callable[[bytes], Any], frames: list[bytes]
) -> None:
    rng = random.Random(8)
    for frame in rng.sample(frames, 20):
        stream = bytearray(frame * min(12, LIMIT // len(frame)))
        for _ in range(60):
            position, old = rng.randrange(len(stream)), 0
            old, stream[position] = stream[position], rng.randrange(256)
            run(scan, [bytes(stream)])
            stream[position] = old


@pytest.mark.parametrize("name", list(v2.probes()))
def test_probe_is_understood_or_no_message(name: str) -> None:
    """Probes of v3 that reach a connection in v2 mode are among them."""
    sent = v2.probes()[name]
    for scan in (scan_requests, scan_responses):
        run(scan, [sent])
        run(scan, [sent[i : i + 1] for i in range(len(sent))])
    closed = next(p for p in v2.load("probes.json") if p["name"] == name)["outcome"]["connection"]
    if name.startswith("v2.") or (name.startswith("frame.") and "truncated" not in name):
        assert (run(scan_requests, [sent])[-1:] == [ProtocolError]) == (
            closed == "closed" or name == "frame.limit_header_only"  # our limit here is lower
        )


@given(noise=st.binary(max_size=300), header=st.sampled_from(["", "0201", "0202", "0207", "0241"]))
def test_noise_is_understood_or_no_message(noise: bytes, header: str) -> None:
    payload = bytes.fromhex(header) + noise
    for decode in (decode_request, decode_response):
        quietly(decode, payload)
    for scan in (scan_requests, scan_responses):
        run(scan, [len(payload).to_bytes(4) + payload, noise])


@pytest.mark.parametrize("scan", [scan_requests, scan_responses])
def test_announced_sizes_allocate_nothing(scan: Scan) -> None:
    """Lengths and counts that promise gigabytes cost no more than the bytes that came."""
    head = bytearray(BATCH[:68])
    head[64:68] = b"\xff\xff\xff\xff"
    huge_count = (len(BATCH) - 4).to_bytes(4) + bytes(head[4:]) + BATCH[68:]
    huge_record = BATCH_READ_ANSWER + b"\x7f\xff\xff\xff"
    attacks = [
        b"\x7f\xff\xff\xff" + bytes(100),
        b"\x00\x00\x0f\xfc" + bytes([2, 1]),
        huge_count,
        len(huge_record).to_bytes(4) + huge_record,
    ]
    tracemalloc.start()
    try:
        for attack in attacks:
            run(scan, [attack])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * LIMIT


BATCH_READ_ANSWER = bytes.fromhex("0207000000000000") + bytes(24)


@both
def test_frames_of_zero_and_negative_length_never_loop(
    scan: Scan, decode: Callable[[bytes], Any], frames: list[bytes]
) -> None:
    for length in (0, -1, -4, -8, -24, -28, -(2**31)):
        bad = length.to_bytes(4, signed=True) + frames[0][4:]
        assert run(scan, [bad]) == [ProtocolError]
        assert run(scan, [frames[0] * 12 + bad])[-1] is ProtocolError
        stream = frames[0] + bad
        assert run(scan, [stream[i : i + 1] for i in range(len(stream))])[-1] is ProtocolError


def _entries(item: object) -> int:
    keys = item.keys if isinstance(item, AddAnswerMix) else getattr(item, "entry_ids", [0])
    return len(keys)
