"""The small payloads, byte for byte with those of a live cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.model import InvalidMetadataError
from metadata.records import (
    UnderreplicationMark,
    check_underreplication_layout,
    decode_check_time,
    decode_delay,
    decode_instance_id,
    decode_lock,
    decode_mark,
    decode_vote,
    encode_check_time,
    encode_delay,
    encode_lock,
    encode_mark,
    encode_underreplication_layout,
    encode_vote,
)
from wire.types import BookieId

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)

VECTORS = Path(__file__).parent.parent / "vectors"
NODES: list[dict[str, Any]] = json.loads((VECTORS / "underreplication.json").read_text())["nodes"]
A, B, C = BookieId("a:1"), BookieId("b:1"), BookieId("c:1")


def rewritten(kind: str, data: bytes, fields: dict[str, Any]) -> bytes:
    """Decode, compare with the recorded fields, encode again."""
    if kind == "UnderreplicatedLedgerFormat":
        mark = decode_mark(data)
        assert mark.replicas == tuple(fields["replica"])
        assert mark.ctime_ms == fields.get("ctime")
        return encode_mark(mark)
    if kind == "LockDataFormat":
        owner = decode_lock(data)
        assert owner == fields["bookieId"]
        return encode_lock(owner or "")
    if kind == "AuditorVoteFormat":
        vote = decode_vote(data)
        assert vote == fields["bookieId"]
        return encode_vote(vote or BookieId(""))
    if kind == "CTime":
        time_ms = decode_check_time(data)
        assert time_ms == fields["ctime"]
        return encode_check_time(time_ms or 0)
    if kind == "decimal":
        seconds = decode_delay(data)
        assert seconds == fields["seconds"]
        return encode_delay(seconds)
    assert kind == "Layout"
    check_underreplication_layout(data)
    return encode_underreplication_layout()


@pytest.mark.parametrize(
    "node", NODES, ids=[f"{index}-{node['name']}" for index, node in enumerate(NODES)]
)
def test_captured_payload_is_read_and_written_back(node: dict[str, Any]) -> None:
    data = bytes.fromhex(node["data_hex"])
    assert rewritten(node["kind"], data, node["fields"]) == data


def test_captured_payloads_are_of_every_kind() -> None:
    assert len({node["kind"] for node in NODES}) == 6
    assert any(len(node["fields"].get("replica", [])) > 1 for node in NODES)


def test_golden_payloads() -> None:
    mark = UnderreplicationMark((BookieId("bk2.example.com:3181"),), 1750000000000)
    assert encode_mark(mark) == b'replica: "bk2.example.com:3181"\nctime: 1750000000000\n'
    assert encode_lock("bk3.example.com") == b'bookieId: "bk3.example.com"\n'
    assert encode_vote(BookieId("bk1.example.com:3181")) == b'bookieId: "bk1.example.com:3181"\n'
    assert encode_underreplication_layout() == b'type: "BASIC"\nversion: 1\n'
    assert encode_check_time(1750000000000).hex() == "0880b883a1f732"


# ---------------------------------------------------------------------- marks


def test_mark_gains_the_replicas_it_does_not_list_and_a_fresh_time() -> None:
    mark = UnderreplicationMark((A,), 100)
    assert mark.merged([B, A, C, B], now_ms=200) == UnderreplicationMark((A, B, C), 200)


def test_mark_that_lists_all_replicas_stays_itself() -> None:
    mark = UnderreplicationMark((A, B), 100)
    assert mark.merged([B], now_ms=200) is mark
    assert mark.merged([], now_ms=200) is mark


def test_mark_without_a_stored_time_stays_without() -> None:
    mark = UnderreplicationMark((A,), None)
    merged = mark.merged([B], now_ms=None)
    assert encode_mark(merged) == b'replica: "a:1"\nreplica: "b:1"\n'


def test_mark_takes_only_ids_that_an_ensemble_could_hold() -> None:
    with pytest.raises(InvalidMetadataError, match="is not valid"):
        UnderreplicationMark((A,)).merged([BookieId("x/y")], now_ms=1)


def test_mark_is_read_whatever_its_replicas_are_called() -> None:
    mark = decode_mark(b'replica: "x/y"\nother: 5\n')
    assert mark == UnderreplicationMark((BookieId("x/y"),), None)
    assert decode_mark(b"") == UnderreplicationMark((), None)


@steady
@given(
    st.lists(st.sampled_from([A, B, C]), max_size=4),
    st.lists(st.sampled_from([A, B, C]), max_size=4),
    st.none() | st.integers(0, 2**63 - 1),
)
def test_merging_loses_nobody_and_is_stable(
    first: list[BookieId], second: list[BookieId], now_ms: int | None
) -> None:
    mark = UnderreplicationMark(()).merged(first, now_ms=now_ms)
    merged = mark.merged(second, now_ms=now_ms)
    assert set(merged.replicas) == {*first, *second}
    assert len(set(merged.replicas)) == len(merged.replicas)
    assert merged.merged([*first, *second], now_ms=0) is merged
    assert decode_mark(encode_mark(merged)) == merged


# ---------------------------------------------------------------------- the others


def test_absent_values_are_none() -> None:
    assert decode_lock(b"") is None
    assert decode_vote(b"") is None
    assert decode_check_time(b"") is None


def test_vote_must_be_a_bookie_id_because_the_tools_of_java_parse_it() -> None:
    with pytest.raises(InvalidMetadataError):
        encode_vote(BookieId("not a bookie"))
    with pytest.raises(InvalidMetadataError):
        decode_vote(b'bookieId: "not a bookie"')


def test_instance_id_is_any_text() -> None:
    assert decode_instance_id(b"5b1cf3a2-9d0e-4c57-8a41-3f0f6a1f2c77").startswith("5b1c")


@pytest.mark.parametrize(
    ("decode", "data", "message"),
    [
        (decode_mark, b"replica", "^mark: line 1"),
        (decode_lock, b"\x00", "^lock: line 1"),
        (decode_vote, b'bookieId: "', "^vote: line 1"),
        (decode_check_time, b"\xff", "^check time is not a time"),
        (decode_delay, b"", "wants seconds"),
        (decode_delay, b"-1", "wants seconds"),
        (decode_delay, b"1\n", "wants seconds"),
        (decode_delay, b"9999999999", "wants seconds"),
        (decode_delay, b"x", "wants seconds"),
        (decode_instance_id, b"", "holds no instance id"),
        (decode_instance_id, b"\xff", "holds no instance id"),
        (check_underreplication_layout, b'type: "BASIC"', "missing: version"),
        (check_underreplication_layout, b'type: "BASIC" version: 2', "only BASIC version 1"),
        (check_underreplication_layout, b'type: "OTHER" version: 1', "asks for OTHER"),
    ],
)
def test_unreadable_payload_is_explained_in_one_line(
    decode: Callable[[bytes], object], data: bytes, message: str
) -> None:
    with pytest.raises(InvalidMetadataError, match=message) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


def test_delay_that_java_cannot_parse_is_not_written() -> None:
    for seconds in (-1, 2**31):
        with pytest.raises(InvalidMetadataError, match="outside"):
            encode_delay(seconds)
    assert decode_delay(encode_delay(2**31 - 1)) == 2**31 - 1


@steady
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_mark, decode_lock, decode_vote, decode_check_time, decode_delay):
        try:
            decode(data)
        except InvalidMetadataError as caught:
            message = str(caught)
            assert "\n" not in message
