"""One v2 message at a time: captured frames both ways, round trips, what is refused and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import v2
from wire.codec_v2 import (
    Refusal,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from wire.errors import ProtocolError, Status
from wire.messages import AddResponse, AuthRequest, ReadRequest, ReadResponse, Request, Response
from wire.types import LedgerId

KEY = bytes(range(20))


@pytest.mark.parametrize("vector", v2.vectors(), ids=lambda vector: vector["name"])
def test_captured_frame_decodes_to_its_fields_and_encodes_back(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame_hex"])
    version = vector["fields"]["protocol_version"]
    if vector["direction"] == "request":
        request = v2.request_of(vector)
        assert decode_request(frame[4:]) == (version, request)
        assert encode_request(request, version=version) == frame
    else:
        response = v2.response_of(vector)
        assert decode_response(frame[4:]) == response
        assert encode_response(response, version=version) == frame


@given(request=v2.requests)
def test_request_survives_the_wire(request: Request) -> None:
    frame = encode_request(request)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert decode_request(frame[4:]) == (2, request)
    assert decode_request(memoryview(frame)[4:]) == (2, request)


@given(response=v2.responses, version=st.integers(0, 255))
def test_response_survives_the_wire_in_every_version(response: Response, version: int) -> None:
    frame = encode_response(response, version=version)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert frame[4] == version
    assert decode_response(frame[4:]) == response


def test_version_0_has_its_opcode_in_the_low_byte() -> None:
    request = ReadRequest(ledger_id=LedgerId(7), entry_id=3)
    frame = encode_request(request, version=0)
    assert frame[4:8] == b"\x00\x00\x00\x02"
    assert decode_request(frame[4:]) == (0, request)
    with pytest.raises(ProtocolError, match="opcode 0"):
        decode_request(b"\x00\x02\x00\x00" + frame[8:])


def test_version_1_fence_has_no_key_on_the_wire() -> None:
    request = ReadRequest(ledger_id=LedgerId(7), entry_id=-1, fence=True)
    frame = encode_request(request, version=1)
    assert len(frame) == 24
    assert decode_request(frame[4:]) == (1, request)


@pytest.mark.parametrize("missing", [1, 20])
@pytest.mark.parametrize("opcode", [2, 7])
def test_fence_without_its_whole_key_is_no_message(opcode: int, missing: int) -> None:
    fixed = {2: 20, 7: 40}[opcode]
    payload = bytes([2, opcode, 0, 1]) + bytes(fixed - 4) + KEY
    assert decode_request(payload).version == 2
    with pytest.raises(ProtocolError, match="master key"):
        decode_request(payload[:-missing])


def test_read_ignores_trailing_bytes_and_unknown_flags() -> None:
    payload = b"\x02\x02\xfd\xf8" + (7).to_bytes(8) + (3).to_bytes(8) + b"more"
    assert decode_request(payload).request == ReadRequest(ledger_id=LedgerId(7), entry_id=3)


def _kept_answers() -> list[Any]:
    """Probes of one frame that a Java bookie answered without looking into its storage."""
    names = ("v2.version_", "v2.add.body_16", "v2.add.body_23", "v2.add.entry_-1", "v2.add.ledger")
    return [
        pytest.param(probe, id=probe["name"])
        for probe in v2.load("probes.json")
        if probe["name"].startswith(names)
        and len(probe["sent_hex"]) == 1
        and probe["outcome"]["connection"] == "kept"
        and probe["outcome"]["responses"][0].get("rc") in (100, 103)
    ]


@pytest.mark.parametrize("probe", _kept_answers())
def test_refusal_is_answered_byte_for_byte_as_java_does(probe: dict[str, Any]) -> None:
    version, refusal = decode_request(bytes.fromhex(probe["sent_hex"][0])[4:])
    assert isinstance(refusal, Refusal)
    assert refusal.reason
    answer = encode_response(refusal.response, version=version)
    assert [answer.hex()] == probe["outcome"]["responses_hex"]


def test_there_are_probes_of_refusals() -> None:
    assert len(_kept_answers()) >= 12, json.dumps([p.id for p in _kept_answers()])


@pytest.mark.parametrize(
    "name",
    ["v2.add.body_24_bytes", "v2.add.body_31_bytes", "v2.add.entry_-2", "v2.add.entry_-1000h"],
)
def test_adds_that_java_takes_and_should_not_are_refused(name: str) -> None:
    request = decode_request(v2.probes()[name][4:]).request
    assert isinstance(request, Refusal)
    assert isinstance(request.response, AddResponse)
    assert request.response.status is Status.BAD_REQUEST


@pytest.mark.parametrize(
    "name",
    [n for n in v2.probes() if n.startswith(("v2.opcode_", "v2.auth.m"))]
    + [
        "frame.len_1",
        "frame.len_3",
        "frame.len_4_add",
        "frame.len_4_read",
        "frame.len_4_batch",
        "frame.len_4_auth",
        "v2.version_0.add",
        "v2.version_0.read_unknown_ledger",
        "v2.version_0.fence_bit",
        "v2.fence_read.key_missing",
        "v2.fence_read.key_short",
        "v2.read.truncated_19",
        "v2.batch.truncated_39",
        "v2.add.body_0_bytes",
        "v2.add.body_8_bytes",
        "v2.add.body_15_bytes",
    ],
)
def test_what_closes_a_java_connection_closes_ours(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode_request(v2.probes()[name][4:])


def test_auth_is_decoded_in_any_version() -> None:
    payload = v2.probes()["v2.version_3.auth"][4:]
    assert decode_request(payload) == (3, AuthRequest(plugin="X", payload=b"t"))


@pytest.mark.parametrize(
    "message",
    ["0a0158", "120174", "0a02fffe1200", "ffffff"],
    ids=["token", "name", "utf8", "bytes"],
)
def test_auth_without_a_whole_message_is_no_message(message: str) -> None:
    for decode in (decode_request, decode_response):
        with pytest.raises(ProtocolError, match="AUTH"):
            decode(b"\x02\x03\x00\x00" + bytes.fromhex(message))


def test_unknown_ledger_state_is_sent_as_io_error_and_still_understood() -> None:
    """Java's v2 client breaks on 107, yet Java bookies send it."""
    response = ReadResponse(
        status=Status.UNKNOWN_LEDGER_STATE, ledger_id=LedgerId(7), entry_id=3, body=None
    )
    frame = encode_response(response)
    assert frame[8:12] == (101).to_bytes(4)
    as_java_sends_it = frame[4:8] + (107).to_bytes(4) + frame[12:]
    assert decode_response(as_java_sends_it) == response


@pytest.mark.parametrize("code", [3, 99, 108, 999, -1])
def test_answer_with_unknown_status_is_no_message(code: int) -> None:
    frame = encode_response(
        AddResponse(status=Status.OK, ledger_id=LedgerId(7), entry_id=3), version=2
    )
    with pytest.raises(ProtocolError, match=f"status {code}"):
        decode_response(frame[4:8] + code.to_bytes(4, signed=True) + frame[12:])


def test_answer_flags_and_bytes_behind_an_error_are_ignored() -> None:
    response = ReadResponse(status=Status.NO_ENTRY, ledger_id=LedgerId(7), entry_id=3)
    payload = bytearray(encode_response(response)[4:] + b"not an entry")
    payload[2:4] = b"\xff\xff"
    assert decode_response(bytes(payload)) == response
    assert encode_response(replace(response, body=b"dropped")) == encode_response(response)
