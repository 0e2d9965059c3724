"""Hand-made frames, most of them wrong: what a Java bookie does, ours does, or something stricter.

Silence is never right, and neither is an exception in the log.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.bookie_server.world import Client, running
from wire import codec_v2, codec_v3
from wire.errors import ProtocolError, Status
from wire.framing import frame
from wire.messages import ReadLacRequest, Response
from wire.types import LedgerId

PROBES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "probes.json").read_text()
)
#: Probes that are descriptions: an overloaded queue, and restarts after adds that ours refuses.
DESCRIBED = ("overload.", "restart.")

BAD_REQUEST = Status.BAD_REQUEST
#: Where ours differs on purpose: the statuses of its answers. The connection is kept.
STRICTER: dict[str, list[Status]] = {
    # entries without room for their header
    "v2.add.body_24_bytes": [BAD_REQUEST],
    "v2.add.body_31_bytes": [BAD_REQUEST],
    "v3.add.body_24_bytes": [BAD_REQUEST],
    "v3.add.body_31_bytes": [BAD_REQUEST],
    # negative ids, which have meanings in a Java journal
    "v2.add.entry_-2": [BAD_REQUEST],
    "v2.add.entry_-1000h": [BAD_REQUEST],
    # ids that the entry contradicts, and so nothing to read
    "v3.add.ids_differ_from_body": [BAD_REQUEST, Status.NO_LEDGER, Status.NO_LEDGER],
    "v3.write_lac.ids_differ": [BAD_REQUEST, Status.NO_ENTRY, Status.NO_ENTRY],
    "v2.batch.from_-1": [BAD_REQUEST],
    # a request without its message: 4.18 closes, 4.17 takes zeros for it
    "v3.add.submessage_missing": [BAD_REQUEST],
    "v3.write_lac.submessage_missing": [BAD_REQUEST],
    "v3.read_lac.submessage_missing": [BAD_REQUEST],
    "v3.force.submessage_missing": [BAD_REQUEST],
    "v3.list.submessage_missing": [BAD_REQUEST],
    "v3.read.submessage_missing": [BAD_REQUEST],
    "v3.operation_mismatch_add_with_read": [BAD_REQUEST],
    # 4.18 cannot skip a protobuf group; 4.17 and ours can
    "v3.group_wiretype": [Status.NO_ENTRY],
}
#: Fields of answers that depend on the machine.
MACHINE_DEPENDENT = ("v3.info.requested_0xff",)


def frames_of(probe: dict[str, Any]) -> list[bytes]:
    if probe["sent_hex"] is not None:
        return [bytes.fromhex(sent) for sent in probe["sent_hex"]]
    prefix = bytes.fromhex(probe["sent_prefix_hex"])  # followed by the letter z up to its length
    return [prefix + b"z" * (int.from_bytes(prefix[:4], "big") + 4 - len(prefix))]


def decoded(payload: bytes, *, like: bytes) -> tuple[object, Response]:
    """An answer and what stands before it; the recorded one says which protocol it is."""
    if like[:1] == b"\x0a" and like[2:3] == b"\x08":
        return codec_v3.decode_response(payload)
    return payload[:4], codec_v2.decode_response(payload)


def decode_any(payload: bytes) -> Response:
    try:
        return codec_v3.decode_response(payload)[1]
    except ProtocolError:
        return codec_v2.decode_response(payload)


@pytest.mark.parametrize(
    "probe",
    [probe for probe in PROBES if not probe["name"].startswith(DESCRIBED)],
    ids=lambda probe: str(probe["name"]),
)
async def test_probe_gets_apaches_outcome_or_a_stricter_one(
    probe: dict[str, Any],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, outcome = probe["name"], probe["outcome"]
    with caplog.at_level(logging.WARNING):
        async with running(buffer_bytes=8 << 20) as world:
            client = await world.connect()
            for hex_frame in probe.get("setup_hex", ()):
                await client.send(bytes.fromhex(hex_frame))
                payload = await client.receive()
                assert payload is not None
                assert decode_any(payload).status is Status.OK
            received: list[bytes] = []

            async def receive() -> None:
                while (payload := await client.receive()) is not None:
                    received.append(payload)

            with trio.move_on_after(1.5) as scope:
                for sent in frames_of(probe):
                    await client.send(sent)
                if name == "frame.truncated_then_half_close":
                    client.stream.end_sending()
                await receive()
            closed = not scope.cancelled_caught
            if name in STRICTER:
                assert not closed
                assert [decode_any(payload).status for payload in received] == STRICTER[name]
            else:
                assert closed == (outcome["connection"] == "closed")
                recorded = [bytes.fromhex(answer)[4:] for answer in outcome["responses_hex"]]
                assert len(received) == len(recorded)
                if name not in MACHINE_DEPENDENT:
                    assert [
                        decoded(a, like=b) for a, b in zip(received, recorded, strict=True)
                    ] == [decoded(b, like=b) for b in recorded]
            afterwards = outcome.get("v3_afterwards")
            if not closed and afterwards is not None:
                await check_v3_afterwards(client, afterwards)
    assert not caplog.records


async def check_v3_afterwards(client: Client, expected: str) -> None:
    """Whether a v3 request is still understood: not after the first v2 frame."""
    await client.send(
        codec_v3.encode_request(ReadLacRequest(ledger_id=LedgerId(1)), transaction_id=9)
    )
    payload = await client.receive()
    assert ("closed" if payload is None else "answered") == expected


@pytest.mark.parametrize("entry_id", [-0x1000, -0x2000, -0x8000])
async def test_add_that_would_spoil_a_java_journal_is_refused(entry_id: int) -> None:
    entry = (7).to_bytes(8, "big") + entry_id.to_bytes(8, "big", signed=True) + bytes(24)
    async with running() as world:
        client = await world.connect()
        await client.send(frame(b"\x02\x01\x00\x00" + bytes(20) + entry))
        response = await client.answer_v2()
        assert response.status is Status.BAD_REQUEST
