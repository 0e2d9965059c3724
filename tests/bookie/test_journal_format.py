"""Bytes of the journal: file headers, blocks and records, there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.storage import journal_records as records
from bookie.storage.journal_format import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    JournalDamageError,
    JournalError,
    JournalPosition,
    block_checksum,
    decode_block_header,
    decode_file_header,
    encode_file_header,
    file_id_of,
    file_name,
    frame_block,
    is_spare,
    spare_name,
)
from wire.errors import LedgerError
from wire.types import ID_MAX

VECTORS = Path(__file__).parent.parent / "vectors"
KEY = bytes(range(20))
HEADER = FileHeader(file_id=5, file_bytes=1 << 28, store_id=bytes(range(16)), prepared_ms=1234)
POSITION = JournalPosition(file_id=5, offset=8192, sequence=77)

ids = st.integers(min_value=0, max_value=ID_MAX)
keys = st.binary(min_size=20, max_size=20)


def entry(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes(16) + payload


def batch(ledger_id: int, entry_ids: list[int], flags: int = 0) -> bytes:
    entries = b"".join(
        len(one).to_bytes(4, "big") + one for one in (entry(ledger_id, e) for e in entry_ids)
    )
    rest = (
        (0x0241 << 16 | flags).to_bytes(4, "big")
        + KEY
        + (9).to_bytes(8, "big")
        + b"\0\1\0\0"
        + b"".join(n.to_bytes(8, "big") for n in (ledger_id, entry_ids[0], entry_ids[-1]))
        + len(entry_ids).to_bytes(4, "big")
        + entries
    )
    return len(rest).to_bytes(4, "big") + rest


def test_file_names_are_sixteen_hex_digits() -> None:
    assert file_name(0x1F) == "000000000000001f.jnl"
    assert file_id_of("000000000000001f.jnl") == 0x1F
    for name in ("1f.jnl", "000000000000001F.jnl", "000000000000001f.jnl~", spare_name(3), "x"):
        assert file_id_of(name) is None
    assert is_spare("next-12.tmp")
    assert not is_spare("next-.tmp")


def test_file_header_reads_back_and_every_flipped_bit_is_noticed() -> None:
    page = encode_file_header(HEADER)
    assert len(page) == FILE_HEADER_BYTES
    assert decode_file_header(page, "f") == HEADER
    for index in (*range(64), 2000, *range(4088, 4096)):
        for bit in range(8):
            bad = bytearray(page)
            bad[index] ^= 1 << bit
            with pytest.raises(LedgerError):
                decode_file_header(bytes(bad), "f")
    with pytest.raises(JournalDamageError, match="too few"):
        decode_file_header(page[:-1], "f")


def test_a_newer_file_is_refused_with_advice() -> None:
    page = bytearray(encode_file_header(HEADER))
    page[8:10] = (2).to_bytes(2, "big")
    page[4092:] = crc32c(page[:4092]).to_bytes(4, "big")
    with pytest.raises(
        JournalError, match="format version 2, this release reads up to 1: start the"
    ):
        decode_file_header(bytes(page), "f")


def test_small_block_has_these_bytes() -> None:
    """The layout, written down once more: a change here is a change of the format."""
    data = records.encode_fence(3, KEY)
    block = b"".join(
        frame_block(
            [data], byte_count=len(data), record_count=1, position=POSITION, durable_before=76
        )
    )
    assert len(block) == ALIGNMENT
    assert block[: 48 + len(data)].hex(" ", 4) == (
        "4a424c4b 4202b98c 00000024 00000001 00000000 00000005 00000000 0000004d "
        "00000000 00002000 00000000 0000004c "
        "00000020 7b010000 00000000 00000003 00010203 04050607 08090a0b 0c0d0e0f 10111213"
    )
    assert not any(block[48 + len(data) :])


@given(pieces=st.lists(st.binary(max_size=3000), max_size=8), durable_before=ids)
def test_block_reads_back(pieces: list[bytes], durable_before: int) -> None:
    size = sum(map(len, pieces))
    block = b"".join(
        frame_block(
            [memoryview(piece) for piece in pieces],
            byte_count=size,
            record_count=len(pieces),
            position=POSITION,
            durable_before=durable_before,
        )
    )
    assert len(block) % ALIGNMENT == 0
    header = decode_block_header(block, 0, POSITION.file_id, POSITION.offset)
    assert header is not None
    assert (header.payload_bytes, header.record_count) == (size, len(pieces))
    assert (header.sequence, header.durable_before) == (77, durable_before)
    payload = block[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + size]
    assert payload == b"".join(pieces)
    assert crc32c(payload, block_checksum(block)) == header.checksum


@pytest.mark.parametrize("sizes", [[700_000] * 3, [1000] * 1300, [0, 1] * 70, [5] * 129])
def test_many_pieces_become_chunks_and_the_same_block(sizes: list[int]) -> None:
    pieces = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    size = sum(sizes)
    framed = {
        len(given): frame_block(
            given, byte_count=size, record_count=9, position=POSITION, durable_before=1
        )
        for given in (pieces, [b"".join(pieces)])
    }
    whole, block = framed[1], framed[len(pieces)]
    assert b"".join(block) == b"".join(whole)
    assert len(block) <= 130
    if len(pieces) <= 128:
        assert all(ours is given for ours, given in zip(block[1:], pieces, strict=False))
    else:
        assert max(map(len, block)) <= 300 * 1024


def test_every_flipped_bit_of_a_block_header_is_noticed() -> None:
    data = records.encode_untombstone(1)
    good = b"".join(
        frame_block(
            [data], byte_count=len(data), record_count=1, position=POSITION, durable_before=77
        )
    )
    for index in range(BLOCK_HEADER_BYTES + len(data)):
        for bit in range(8):
            bad = bytearray(good)
            bad[index] ^= 1 << bit
            header = decode_block_header(bytes(bad), 0, POSITION.file_id, POSITION.offset)
            if header is not None and 48 + header.payload_bytes <= len(bad):
                payload = bytes(bad[48 : 48 + header.payload_bytes])
                assert crc32c(payload, block_checksum(bytes(bad))) != header.checksum


def test_block_of_another_file_or_offset_is_none_of_ours() -> None:
    block = b"".join(
        frame_block([b"x"], byte_count=1, record_count=1, position=POSITION, durable_before=1)
    )
    assert decode_block_header(block, 0, 5, 8192) is not None
    assert decode_block_header(block, 0, 6, 8192) is None
    assert decode_block_header(block, 0, 5, 4096) is None
    assert decode_block_header(block[:40], 0, 5, 8192) is None


@given(ledger_id=ids, key=keys, blob=st.binary(max_size=300), on=st.booleans())
def test_state_records_read_back(ledger_id: int, key: bytes, blob: bytes, on: bool) -> None:
    payload = (
        records.encode_fence(ledger_id, key)
        + records.encode_explicit_lac(ledger_id, key, blob)
        + records.encode_ledger_key(ledger_id, blob)
        + records.encode_limbo(ledger_id, on=on)
        + records.encode_untombstone(ledger_id)
    )
    assert records.check_records(payload) == 5
    assert [
        records.decode_state(word, payload, start, end)
        for word, start, end in records.iterate_records(payload)
    ] == [
        records.Fence(ledger_id, key),  # type: ignore[arg-type]
        records.ExplicitLac(ledger_id, key, blob),  # type: ignore[arg-type]
        records.LedgerKey(ledger_id, blob),  # type: ignore[arg-type]
        records.Limbo(ledger_id, on),  # type: ignore[arg-type]
        records.Untombstone(ledger_id),  # type: ignore[arg-type]
    ]


@given(ledger_id=ids, entry_id=ids, flags=st.integers(0, 0xFFFF), payload=st.binary(max_size=99))
def test_add_is_a_v2_frame(ledger_id: int, entry_id: int, flags: int, payload: bytes) -> None:
    body = entry(ledger_id, entry_id, payload)
    data = records.encode_add(KEY, memoryview(body), flags)
    assert data == (
        (24 + len(body)).to_bytes(4, "big") + b"\x02\x01" + flags.to_bytes(2, "big") + KEY + body
    )
    head = records.encode_add_head(KEY, entry_bytes=len(body), flags=flags)
    assert head + body == data
    ((word, start, end),) = records.iterate_records(data)
    assert (word, end) == (0x02010000 | flags, len(data))
    assert data[start + records.ADD_ENTRY_OFFSET : end] == body
    assert records.check_records(data) == 1


def test_captured_v2_adds_are_records_as_they_stand() -> None:
    """The frames of the wire are the records, so nothing is rebuilt on the hot path."""
    frames = [
        bytes.fromhex(case["frame_hex"])
        for case in json.loads((VECTORS / "wire-v2.json").read_text())
        if case["operation"] == "ADDENTRY" and case["direction"] == "request"
        if case["fields"]["protocol_version"] == 2
    ]
    assert len(frames) > 3
    payload = b"".join(frames)
    assert records.check_records(payload) == len(frames)
    spans = [(start - 8, end) for _, start, end in records.iterate_records(payload)]
    assert [payload[start:end] for start, end in spans] == frames


def test_batch_is_one_record_and_keeps_its_flags() -> None:
    data = records.encode_add(KEY, entry(1, 2)) + batch(3, [4, 6, 7], flags=0x0100)
    assert records.check_records(data) == 2
    words = [word for word, _, _ in records.iterate_records(data)]
    assert [records.record_name(word) for word in words] == ["ADD", "ADD_BATCH"]
    assert words[1] & 0xFFFF == 0x0100


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (bytes.fromhex("0000000c 7b060000 0000000000000001"), "type word 0x7b060000"),
        (bytes.fromhex("0000000c 7b050001 0000000000000001"), "type word 0x7b050001"),
        (bytes.fromhex("0000000c 01010000 0000000000000001"), "type word 0x01010000"),
        (records.encode_untombstone(1) + b"\0\0\0", "3 stray bytes"),
        (bytes.fromhex("0000000d 7b050000 0000000000000001"), "length 13 does not fit"),
        (bytes.fromhex("00000003 7b050000 0000000000000001"), "length 3 does not fit"),
        (bytes.fromhex("0000000b 7b050000 00000000000001"), "length 11 does not fit"),
        (records.encode_add(KEY, bytes(15)), "length 39 does not fit"),
        (b"\0" * 64, "type word 0x00000000"),
    ],
)
def test_record_that_cannot_be_read_is_an_error_that_names_its_place(
    payload: bytes, complaint: str
) -> None:
    with pytest.raises(JournalDamageError, match=complaint) as caught:
        list(records.iterate_records(payload, POSITION, "journal/5.jnl"))
    assert "journal/5.jnl" in str(caught.value)
    assert "block 77 at offset 8192" in str(caught.value)


@pytest.mark.parametrize(
    "payload",
    [
        bytes.fromhex("0000000d 7b040000 0000000000000001 02"),
        records.encode_fence(1, KEY)[:3] + b"\x21" + records.encode_fence(1, KEY)[4:] + b"x",
        bytes.fromhex("00000010 7b030000 0000000000000001 0005 6162"),
    ],
)
def test_malformed_state_is_an_error(payload: bytes) -> None:
    ((word, start, end),) = records.iterate_records(payload)
    with pytest.raises(JournalDamageError, match="malformed"):
        records.decode_state(word, payload, start, end)


@pytest.mark.parametrize(
    "payload",
    [
        records.encode_add(KEY, bytes.fromhex("ff" * 8) + bytes(24)),
        records.encode_fence(-1, KEY),
        batch(1, [3, 2]),
        batch(1, [2, 3])[:-1] + b"",
        batch(1, [5])[:59] + b"\7" + batch(1, [5])[60:],
    ],
)
def test_what_the_writer_must_not_write_is_caught_by_the_check(payload: bytes) -> None:
    with pytest.raises(JournalDamageError):
        records.check_records(payload)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_record_scan_do_anything_but_raise_or_end(payload: bytes) -> None:
    try:
        records.check_records(payload)
    except JournalDamageError:
        return
    assert payload == b"" or len(payload) >= 16
