from __future__ import annotations

import random
import struct
from typing import NamedTuple

import pytest
from crc32c import crc32c

from bookie.core.runs import Run, run_of
from bookie.storage.entry_log_format import (
    HEADER_BYTES,
    Footer,
    LedgerTotals,
    LogHeader,
    LogKind,
    RunHeader,
    check_body,
    check_entry,
    decode_footer,
    decode_log_header,
    decode_run_header,
    decode_tail,
    log_id_of_name,
    log_name,
)
from bookie.storage.index_format import NewerFormatError, decode_run_key
from bookie.storage.indexed_run import (
    RUN_BYTES_MAX,
    RUN_ENTRIES_MAX,
    RUN_SPAN,
    IndexedRun,
)
from bookie.storage.run_builder import build_run, rebuild_value, record_starts
from wire.errors import CorruptionError

STORE_ID = bytes(range(16))
HEADER = LogHeader(7, LogKind.COMPACTION, STORE_ID, 1234)
RUN = RunHeader(4096, 5, 10, 19, 10, 360, 0xAABBCCDD, 7, 3)


def entry(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + payload


def record(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    data = entry(ledger_id, entry_id, payload)
    return struct.pack(">I", len(data)) + data


class Built(NamedTuple):
    header: RunHeader
    body: bytes
    key: bytes
    value: bytes


def make_run(ids: list[int], payloads: list[bytes] | None = None) -> Built:
    """A run at 4096 of log 7."""
    payloads = payloads or [b"x" * 8] * len(ids)
    run = run_of(ids, [entry(5, n, payload) for n, payload in zip(ids, payloads, strict=True)])
    header, key, value = build_run(run, 7, 4096, 5, 3)
    return Built(decode_run_header(header, log_id=7, offset=4096), run.body, key, value)


def test_log_header_has_the_documented_bytes() -> None:
    data = HEADER.encode()
    assert len(data) == HEADER_BYTES
    front = b"BKPYLOG1" + bytes.fromhex("0001 0001 00000007") + STORE_ID
    assert data[:40] == front + (1234).to_bytes(8, "big")
    assert data[40:4092] == bytes(4052)
    assert data[4092:] == crc32c(data[:4092]).to_bytes(4, "big")
    assert decode_log_header(data, "x") == HEADER


def test_run_header_has_the_documented_bytes() -> None:
    rest = bytes.fromhex(
        "0000000000000005 000000000000000a 0000000000000013 0000000a 00000168 aabbccdd 00000007"
        "0000000000000003"
    )
    assert RUN.encode() == b"\xff\xff\xff\xfe" + crc32c(rest).to_bytes(4, "big") + rest
    assert decode_run_header(RUN.encode(), log_id=7, offset=4096) == RUN


def test_footer_has_the_documented_bytes() -> None:
    footer = Footer(7, 5000, {9: LedgerTotals(100, 2, 1, 5, b"key"), 1: LedgerTotals(50, 1, 1)})
    rest = bytes.fromhex(
        "00000007 00000002 0000000000001388"
        "0000000000000001 0000000000000032 00000001 00000001 00 00"
        "0000000000000009 0000000000000064 00000002 00000001 05 03"
    )
    rest += b"key"
    front = b"\xff\xff\xff\xfd" + crc32c(rest).to_bytes(4, "big")
    tail = (5000).to_bytes(8, "big") + len(front + rest).to_bytes(4, "big")
    data = footer.encode()
    assert data == front + rest + tail + crc32c(tail).to_bytes(4, "big") + b"BKPYEND1"
    assert decode_tail(data[-24:]) == (5000, len(data) - 24)
    assert decode_footer(data[:-24], log_id=7, offset=5000) == footer


def test_master_key_that_has_no_room_in_the_footer_is_left_out() -> None:
    footer = Footer(7, 5000, {1: LedgerTotals(50, 1, 1, 0, b"k" * 256)})
    decoded = decode_footer(footer.encode()[:-24], log_id=7, offset=5000)
    assert decoded is not None
    assert decoded.ledgers[1].master_key == b""


def test_log_header_with_a_flipped_bit_is_refused() -> None:
    for bit in range(0, HEADER_BYTES * 8, 97):
        with pytest.raises(CorruptionError):
            decode_log_header(_flipped(HEADER.encode(), bit), "x")


def test_run_header_with_a_flipped_bit_is_refused() -> None:
    for bit in range(56 * 8):
        with pytest.raises(CorruptionError):
            decode_run_header(_flipped(RUN.encode(), bit), log_id=7, offset=4096)


def test_footer_with_a_flipped_bit_is_no_footer() -> None:
    data = Footer(7, 5000, {9: LedgerTotals(100, 2, 1, 5, b"key")}).encode()
    body, tail = data[:-24], data[-24:]
    for bit in range(len(body) * 8):
        assert decode_footer(_flipped(body, bit), log_id=7, offset=5000) is None
    for bit in range(len(tail) * 8):
        assert decode_tail(_flipped(tail, bit)) is None
    for cut in range(len(body)):
        assert decode_footer(body[:cut], log_id=7, offset=5000) is None


def test_footer_of_another_log_or_place_is_no_footer() -> None:
    data = Footer(7, 5000, {}).encode()[:-24]
    assert decode_footer(data, log_id=8, offset=5000) is None
    assert decode_footer(data, log_id=7, offset=5001) is None


def test_run_of_another_log_is_refused() -> None:
    with pytest.raises(CorruptionError, match="was written for log 00000007"):
        decode_run_header(RUN.encode(), log_id=8, offset=4096)


def test_log_header_of_a_newer_release_is_refused() -> None:
    data = bytearray(HEADER.encode())
    data[9] = 2
    data[4092:] = crc32c(data[:4092]).to_bytes(4, "big")
    with pytest.raises(NewerFormatError, match="version 2"):
        decode_log_header(bytes(data), "x")


def test_file_that_is_no_log_is_refused() -> None:
    for data in b"", b"PK", bytes(HEADER_BYTES):
        with pytest.raises(CorruptionError, match="no entry log"):
            decode_log_header(data, "x")


def test_entry_is_checked_against_what_was_looked_for() -> None:
    data = record(5, 6, b"payload")
    assert check_entry(data, ledger_id=5, entry_id=6, where="x") == entry(5, 6, b"payload")
    for wrong, ledger_id, entry_id in (
        (data, 5, 7),
        (data, 4, 6),
        (data[:-1], 5, 6),
        (data + b"x", 5, 6),
        (data[:19], 5, 6),
    ):
        with pytest.raises(CorruptionError):
            check_entry(wrong, ledger_id=ledger_id, entry_id=entry_id, where="x")


def test_log_names_go_both_ways() -> None:
    assert log_name(0xBEEF) == "0000beef.log"
    assert log_id_of_name("0000beef.log") == 0xBEEF
    for name in "0000BEEF.log", "beef.log", "0000beef.txt", "0000beeg.log", "mark", "0000beef":
        assert log_id_of_name(name) is None


@pytest.mark.parametrize("seed", range(30))
def test_built_run_locates_each_of_its_entries(seed: int) -> None:
    """All kinds: gaps or none, sizes alike or not, one piece or many."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 40, RUN_ENTRIES_MAX])
    ids = list(range(100, 100 + count))
    if rng.random() < 0.5:
        ids = sorted(rng.sample(range(100, 100 + RUN_SPAN), count))
    size = rng.randrange(50)
    alike = rng.random() < 0.5
    payloads = [rng.randbytes(size if alike else rng.randrange(60)) for _ in ids]
    built = make_run(ids, payloads)

    body = built.body
    check_body(built.header, body)
    run = IndexedRun(built.key, built.value)
    assert (run.ledger_id, run.first, run.last) == (5, ids[0], ids[-1])
    assert (run.entry_count, run.body_bytes) == (count, len(body))
    assert (run.body_crc, run.sequence) == (crc32c(body), 3)
    assert (run.log_id, run.offset, run.body_offset) == (7, 4096, 4152)
    assert list(run.entry_ids()) == ids
    assert list(run.starts()) == list(record_starts(body, count))
    log = bytes(4096) + built.header.encode() + body
    for position, (entry_id, payload) in enumerate(zip(ids, payloads, strict=True)):
        place = run.locate(entry_id)
        assert place is not None
        assert log[place[0] : sum(place)] == entry(5, entry_id, payload)
        assert run.position(entry_id) == run.position_from(entry_id) == position
        assert run.start(position) == place[0] - 4 - run.body_offset
    for absent in {ids[0] - 1, ids[-1] + 1, *range(ids[0], ids[-1])} - set(ids):
        assert run.locate(absent) is None
        assert run.position_from(absent) == sum(entry_id < absent for entry_id in ids)
    assert rebuild_value(built.header, body) == built.value


def test_run_of_entries_alike_and_without_gaps_has_a_short_value() -> None:
    assert len(make_run(list(range(512))).value) == 32


def test_payload_that_looks_like_lengths_does_not_fool_the_size_check() -> None:
    """Two records whose sizes differ, and whose mean is a multiple that hits a fake length."""
    fake = struct.pack(">I", 36)
    for first_size in range(8):
        payloads = [(fake * 4)[:first_size], (fake * 4)[: 8 - first_size]]
        built = make_run([1, 2], payloads)
        run = IndexedRun(built.key, built.value)
        place = run.locate(2)
        assert place == (4152 + 36 + first_size + 4, 32 + 8 - first_size)


def test_key_names_ledger_last_entry_and_location() -> None:
    built = make_run([3, 9])
    assert decode_run_key(built.key) == (5, 9, 7 << 32 | 4096)


@pytest.mark.parametrize(
    ("first", "last", "count", "size"),
    [
        (0, 512, 513, 36),
        (0, RUN_SPAN, 2, 36),
        (5, 4, 1, 36),
        (0, 0, 2, 36),
        (-1, 0, 2, 36),
        (0, 1, 2, RUN_BYTES_MAX // 2 + 1),
    ],
)
def test_run_beyond_its_limits_is_never_built(first: int, last: int, count: int, size: int) -> None:
    ids = [*range(first, first + max(count, 2) - 1), last]  # no run begins and ends so by chance
    with pytest.raises(AssertionError):
        build_run(Run(ids, range(0, size * count + 1, size), bytes(size) * count), 7, 4096, 5, 3)


def test_single_entry_may_be_bigger_than_a_run() -> None:
    built = make_run([4], [bytes(RUN_BYTES_MAX + 5)])
    assert IndexedRun(built.key, built.value).body_bytes > RUN_BYTES_MAX


def test_body_that_does_not_end_with_its_last_record_is_refused() -> None:
    body = record(1, 1) + record(1, 2)
    for wrong in body + b"\0", body[:-1], body[:38], body[:36]:
        with pytest.raises(CorruptionError):
            record_starts(wrong, 2)


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)
