"""Whatever bytes arrive, the v3 decoders answer with a value or a ProtocolError, soon.

Nothing else may come out: an exception of another kind would end a bookie's connection task, and
an endless loop its other connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.v3_samples import REQUESTS, RESPONSES, payload_of, recorded, steady, v3_frames
from wire.codec_v3 import (
    NotV3Error,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from wire.errors import LedgerError, ProtocolError
from wire.framing import FrameBuffer
from wire.scan_v3 import scan_add, scan_add_answer, scan_read, scan_read_answer, scan_reads
from wire.scan_v3_runs import scan_add_runs

SCANNERS: tuple[Callable[[bytes, int, int], object], ...] = (
    scan_add,
    scan_read,
    scan_add_answer,
    scan_read_answer,
)
FRAMES = v3_frames()


def survive(payload: bytes) -> None:
    """Feed a payload to everything that reads payloads."""
    refusals: list[ProtocolError] = []
    try:
        decode_request(payload)
    except NotV3Error as error:
        refusals.append(error)
    try:
        decode_response(payload)
    except ProtocolError as error:
        refusals.append(error)
    for refusal in refusals:
        assert len(str(refusal)) < 200
        assert "\n" not in str(refusal)
    for scan in SCANNERS:
        scan(payload, 0, len(payload))
    scan_add_runs(bytes(payload), 0, len(payload))
    scan_reads(bytes(payload), 0, len(payload))


def one_of_each_shape() -> list[dict[str, Any]]:
    """The shortest recorded frame of every direction, operation, status and field order."""
    shapes: dict[tuple[object, ...], dict[str, Any]] = {}
    for frame in sorted(FRAMES, key=lambda frame: len(frame["frame_hex"])):
        fields = frame["fields"]
        order = tuple(fields.get("field_order", ()))
        key = (frame["direction"], frame["operation"], fields.get("status"), order)
        shapes.setdefault(key, frame)
    return list(shapes.values())


SHAPES = [pytest.param(frame, id=frame["name"]) for frame in one_of_each_shape()]


@pytest.mark.parametrize("frame", SHAPES)
def test_every_prefix_is_survived(frame: dict[str, Any]) -> None:
    payload = payload_of(frame)
    for length in range(len(payload) + 1):
        survive(payload[:length])


@pytest.mark.parametrize("frame", SHAPES)
def test_every_changed_byte_is_survived(frame: dict[str, Any]) -> None:
    """Each byte in turn becomes each of the values that mean something in protobuf."""
    payload = payload_of(frame)[:160]
    for position in range(len(payload)):
        old = payload[position]
        for value in {
            0x00,
            0x01,
            0x7F,
            0x80,
            0xFF,
            old ^ 0x01,
            old ^ 0x80,
            old ^ 0x07,
            old + 8 & 0xFF,
        }:
            survive(payload[:position] + bytes((value,)) + payload[position + 1 :])


@steady
@given(st.binary(max_size=300))
def test_random_bytes_are_survived(junk: bytes) -> None:
    survive(junk)
    survive(b"\x0a\x06\x08\x03\x10\x02\x18\x05" + junk)
    survive(b"\x0a\x06\x08\x03\x10\x05\x18\x05\xb2\x06" + bytes((len(junk) % 128,)) + junk)


@steady
@given(
    st.one_of(*REQUESTS.values()).map(lambda value: encode_request(value, transaction_id=7))
    | st.one_of(*RESPONSES.values()).map(lambda value: encode_response(value, transaction_id=7)),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=5),
)
def test_changed_messages_are_survived(frame: bytes, changes: list[tuple[int, int]]) -> None:
    payload = bytearray(frame[4:])
    for position, value in changes:
        payload[position % len(payload)] = value
    survive(bytes(payload))


@pytest.mark.parametrize(
    "probe", [pytest.param(item, id=item["name"]) for item in recorded("probes.json")]
)
def test_every_probe_is_survived_as_v3(probe: dict[str, Any]) -> None:
    """Also those of v2: a connection starts in v3 mode, so each of them may be tried as v3."""
    sent = b"".join(map(bytes.fromhex, probe.get("setup_hex", []) + (probe["sent_hex"] or [])))
    buffer = FrameBuffer()
    try:
        buffer.feed(sent)
        while (payload := buffer.next_frame()) is not None:
            survive(payload)
    except LedgerError:
        assert probe["outcome"]["connection"] == "closed"  # no frame at all


@pytest.mark.parametrize("name", ["v2.version_1.add", "v2.version_2.add", "v2.version_10.add"])
def test_v2_request_is_not_taken_for_v3(name: str) -> None:
    (probe,) = [item for item in recorded("probes.json") if item["name"] == name]
    with pytest.raises(NotV3Error):
        decode_request(bytes.fromhex(probe["sent_hex"][0])[4:])


@steady
@given(st.lists(st.sampled_from(FRAMES), min_size=1, max_size=6), st.data())
def test_frames_split_anywhere_arrive_whole(
    frames: list[dict[str, Any]], data: st.DataObject
) -> None:
    stream = b"".join(bytes.fromhex(frame["frame_hex"]) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    buffer = FrameBuffer()
    payloads = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer.feed(stream[start:end])
        while (payload := buffer.next_frame()) is not None:
            payloads.append(payload)
    assert payloads == [payload_of(frame) for frame in frames]


def test_deeply_nested_groups_are_refused() -> None:
    header = b"\x0a\x06\x08\x03\x10\x07\x18\x05\xc2\x06\x02\x08\x01"
    for depth in (10, 1_000, 1_000_000):
        nested = header + b"\x93\x03" * depth + b"\x94\x03" * depth
        if depth == 10:
            decode_request(nested)
        else:
            with pytest.raises(NotV3Error):
                decode_request(nested)


def test_frame_full_of_context_is_read_or_refused_whole() -> None:
    """The most objects that a default frame can make the library create."""
    header = b"\x0a\x06\x08\x03\x10\x07\x18\x05\xc2\x06\x02\x08\x01"
    decode_request(header + b"\xc2\x0c\x04\x0a\x00\x12\x00" * 700_000)
    with pytest.raises(NotV3Error) as refused:
        decode_request(header + b"\xc2\x0c\x00" * 1_600_000)
    assert len(str(refused.value)) < 200


def test_long_run_of_continuation_bytes_is_unusual_at_once() -> None:
    payload = b"\x0a\x06\x08\x03\x10\x02\x18" + b"\xff" * 5_000_000
    for scan in SCANNERS:
        assert scan(payload, 0, len(payload)) is None
    with pytest.raises(NotV3Error):
        decode_request(payload)
