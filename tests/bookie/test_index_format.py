from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.storage.index_format import (
    JournalPosition,
    LogMark,
    LogState,
    NewerFormatError,
    StoredLedgerState,
    StoredLog,
    Tombstone,
    decode_flag,
    decode_ledger_state,
    decode_log,
    decode_mark,
    decode_run_key,
    encode_flag,
    id_in_key,
    ledger_key,
    log_key,
    run_key,
    run_prefix,
)
from bookie.storage.indexed_run import IndexedRun, encode_run_value, mark_damaged
from wire.errors import BadRequestError, CorruptionError
from wire.types import ID_MAX

U64 = st.integers(0, 2**64 - 1)
IDS = st.integers(0, ID_MAX)


@given(st.tuples(IDS, IDS, U64), st.tuples(IDS, IDS, U64))
def test_run_keys_sort_as_their_numbers_do(
    left: tuple[int, int, int], right: tuple[int, int, int]
) -> None:
    assert (run_key(*left) < run_key(*right)) == (left < right)
    assert decode_run_key(run_key(*left)) == left
    assert run_key(*left).startswith(run_prefix(left[0]))


def test_keys_have_the_documented_bytes() -> None:
    assert run_key(1, 2, 3 << 32 | 4) == b"R" + bytes.fromhex("0000000000000001 0000000000000002 00000003 00000004")  # fmt: skip  # noqa: E501
    assert ledger_key(258) == b"L" + bytes.fromhex("0000000000000102")
    assert log_key(258) == b"G" + bytes.fromhex("00000102")
    assert id_in_key(ledger_key(ID_MAX)) == ID_MAX
    assert id_in_key(log_key(7)) == 7


def test_key_of_another_kind_is_no_run_key() -> None:
    with pytest.raises(CorruptionError, match="rebuild the index"):
        decode_run_key(ledger_key(1))


def test_run_value_has_the_documented_bytes() -> None:
    value = encode_run_value(
        first=10, count=2, body_bytes=100, body_crc=0xA0B0C0D0, sequence=5,
        entry_ids=[10, 13], starts=[0, 40, 100],
    )  # fmt: skip
    assert value == bytes.fromhex(
        "01 08 0002 00000064 000000000000000a a0b0c0d0 00000000000000050000 03002800 3c00"
    )
    dense = encode_run_value(
        first=10, count=2, body_bytes=100, body_crc=0xA0B0C0D0, sequence=5,
        entry_ids=None, starts=50,
    )  # fmt: skip
    assert dense == bytes.fromhex(
        "01 03 0002 00000064 000000000000000a a0b0c0d0 0000000000000005 32000000"
    )
    assert mark_damaged(dense) == dense[:1] + b"\x07" + dense[2:]
    assert IndexedRun(run_key(1, 11, 0), mark_damaged(dense)).is_damaged
    assert not IndexedRun(run_key(1, 11, 0), dense).is_damaged


@pytest.mark.parametrize("entry_ids", [None, [10, 12, 14]])
@pytest.mark.parametrize("starts", [40, [0, 30, 60, 120]])
def test_run_value_that_contradicts_itself_is_corruption(
    entry_ids: list[int] | None, starts: list[int] | int
) -> None:
    value = encode_run_value(
        first=10, count=3, body_bytes=120, body_crc=0, sequence=5,
        entry_ids=entry_ids, starts=starts,
    )  # fmt: skip
    key = run_key(1, 12 if entry_ids is None else 14, 0)
    IndexedRun(key, value)
    for cut in range(len(value)):
        with pytest.raises(CorruptionError):
            IndexedRun(key, value[:cut])
    for wrong_last in 9, 8 + 4096 + 3:
        with pytest.raises(CorruptionError):
            IndexedRun(run_key(1, wrong_last, 0), value)
    with pytest.raises(CorruptionError):
        IndexedRun(key, value + b"\0\0\0\0")
    with pytest.raises(CorruptionError):
        IndexedRun(key[:-1], value)
    tampered = value[:-4] + struct.pack("<I", 121)  # the record size, or the end of the body
    with pytest.raises(CorruptionError):
        IndexedRun(key, tampered).starts()


@pytest.mark.parametrize(
    ("body_bytes", "starts"), [(0, 0), (9, 3), (80, [0, 30, 30, 80]), (80, [0, 30, 33, 80])]
)
def test_run_with_records_that_have_no_room_for_their_length_is_corruption(
    body_bytes: int, starts: list[int] | int
) -> None:
    """Found by fuzzing: a division of nothing into records of nothing."""
    value = encode_run_value(
        first=10, count=3, body_bytes=body_bytes, body_crc=0, sequence=5,
        entry_ids=None, starts=starts,
    )  # fmt: skip
    with pytest.raises(CorruptionError, match="counts its bytes wrongly"):
        IndexedRun(run_key(1, 12, 0), value).locate(11)


def test_run_value_of_a_newer_release_is_told_apart_from_damage() -> None:
    value = encode_run_value(
        first=0, count=1, body_bytes=40, body_crc=0, sequence=5, entry_ids=None, starts=40
    )
    with pytest.raises(NewerFormatError, match="version 2"):
        IndexedRun(run_key(1, 0, 0), b"\2" + value[1:])


STATES = st.builds(
    StoredLedgerState,
    master_key=st.binary(max_size=40),
    fenced=st.booleans(),
    limbo=st.booleans(),
    tombstone=st.none() | st.builds(Tombstone, U64, U64),
    explicit_lac=st.none() | st.binary(max_size=60),
    journal_file_id=U64,
    journal_offset=U64,
)


@given(STATES)
def test_ledger_state_survives_storage(state: StoredLedgerState) -> None:
    value = state.encode()
    assert decode_ledger_state(1, value) == state
    for wrong in value[:-1], value + b"\0":
        with pytest.raises(CorruptionError):
            decode_ledger_state(1, wrong)


def test_ledger_state_has_the_documented_bytes() -> None:
    state = StoredLedgerState(
        master_key=b"key",
        fenced=True,
        limbo=True,
        tombstone=Tombstone(17, 18),
        explicit_lac=b"lac!",
        journal_file_id=3,
        journal_offset=4096,
    )
    assert state.encode() == (
        bytes.fromhex("01 0f 0003 00000000 0000000000000003 0000000000001000")
        + bytes.fromhex("0000000000000011 0000000000000012")
        + b"key\0\4lac!"
    )


def test_ledger_state_with_unknown_flags_or_version_is_refused() -> None:
    value = StoredLedgerState().encode()
    with pytest.raises(CorruptionError, match="unknown flags"):
        decode_ledger_state(1, value[:1] + b"\x10" + value[2:])
    with pytest.raises(NewerFormatError, match="state of ledger 9 "):
        decode_ledger_state(9, b"\2" + value[1:])
    with pytest.raises(CorruptionError):
        decode_ledger_state(1, b"")


def test_ledger_state_with_an_endless_key_is_refused_at_birth() -> None:
    StoredLedgerState(master_key=bytes(65535))
    with pytest.raises(BadRequestError):
        StoredLedgerState(master_key=bytes(65536))
    with pytest.raises(BadRequestError):
        StoredLedgerState(explicit_lac=bytes(65536))


def test_log_has_the_documented_bytes() -> None:
    log = StoredLog(LogState.DAMAGED, 1, 2, 3)
    value = bytes.fromhex("03 0000000000000001 0000000000000002 0000000000000003")
    assert log.encode() == value
    assert decode_log(5, value) == log
    for wrong in b"", value[:-1], b"\x09" + value[1:]:
        with pytest.raises(CorruptionError, match="entry log 00000005"):
            decode_log(5, wrong)


def test_mark_has_the_documented_bytes() -> None:
    mark = LogMark(9, (JournalPosition(0, 1, 2, 3), JournalPosition(1, 4, 5, 6)))
    value = bytes.fromhex(
        "0000000000000009 0002"
        "0000 0000000000000001 0000000000000002 0000000000000003"
        "0001 0000000000000004 0000000000000005 0000000000000006"
    )
    assert mark.encode() == value
    assert decode_mark(value) == mark
    assert decode_mark(LogMark(0, ()).encode()) == LogMark(0, ())
    for wrong in b"", value[:-1], value + b"\0", value[:9]:
        with pytest.raises(CorruptionError, match="log mark"):
            decode_mark(wrong)


def test_flags_are_yes_no_or_corrupt() -> None:
    assert decode_flag(encode_flag(True))
    assert not decode_flag(encode_flag(False))
    assert not decode_flag(None)
    with pytest.raises(CorruptionError):
        decode_flag(b"maybe")


def test_sizes_beyond_two_bytes_are_stored_in_four() -> None:
    value = encode_run_value(
        first=1, count=2, body_bytes=70_040, body_crc=0, sequence=1,
        entry_ids=None, starts=[0, 40, 70_040],
    )  # fmt: skip
    run = IndexedRun(run_key(1, 2, 0), value)
    assert list(run.starts()) == [0, 40, 70_040]
    assert len(value) == 28 + 8
