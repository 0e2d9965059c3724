"""Conversations of Java clients with a Java bookie, held again with ours: the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from tests.bookie_server.world import Client, running
from wire import codec_v2, codec_v3
from wire.messages import ReadResponse

VECTORS = Path(__file__).parent.parent / "vectors"


def exchanges(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Requests to a bookie with sorted storage, each with its answer, in the order of sending."""
    items = json.loads((VECTORS / name).read_text())
    answers = {item["exchange"]: item for item in items if item["direction"] == "response"}
    return [
        (item, answers[item["exchange"]])
        for item in items
        if item["direction"] == "request" and item["scenario"].startswith("server.sorted.")
    ]


def decoded(payload: bytes, version: str) -> object:
    if version == "v2":
        return payload[:4], codec_v2.decode_response(payload)
    header, response = codec_v3.decode_response(payload)
    if isinstance(response, ReadResponse) and response.lac_update_ms is not None:
        response = ReadResponse(
            **{
                field: getattr(response, field)
                for field in ("status", "ledger_id", "entry_id", "body", "max_lac")
            }
        )
    return header, response


@pytest.mark.parametrize(("name", "count"), [("wire-v2.json", 39), ("wire-v3.json", 47)])
async def test_recorded_requests_get_the_recorded_answers(
    name: str, count: int, autojump_clock: trio.testing.MockClock
) -> None:
    found = exchanges(name)
    assert len(found) == count
    async with running() as world:
        connections: dict[str, Client] = {}
        for request, answer in found:
            label = request["connection"]
            if label not in connections:
                connections[label] = await world.connect()
            client = connections[label]
            await client.send(bytes.fromhex(request["frame_hex"]))
            payload = await client.receive()
            assert payload is not None, f"{request['name']}: closed"
            recorded = bytes.fromhex(answer["frame_hex"])[4:]
            assert decoded(payload, answer["version"]) == decoded(recorded, answer["version"]), (
                request["name"]
            )
