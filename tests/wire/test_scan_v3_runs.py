"""Buffers of many v3 frames: scanned together they are what they are one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.v3_checks import EDITS, KEY, USUAL, edited, framed, usual_add
from tests.wire.v3_samples import steady
from wire.build_v3 import read_requests
from wire.scan_v3 import scan_add, scan_read, scan_reads
from wire.scan_v3_runs import AddMixV3, AddRunV3, scan_add_runs
from wire.types import Flag
from wire.varint import decode_varint, encode_varint

#: transaction id, ledger id, entry id, flags, master key, entry.
Add = tuple[int, int, int, int, bytes, bytes]


def one_by_one(buffer: bytes, offset: int, end: int) -> tuple[list[Add], int]:
    """What `scan_add_runs` means, without its memory of the last frame."""
    adds = []
    while offset + 4 <= end:
        frame_end = offset + 4 + int.from_bytes(buffer[offset : offset + 4], "big")
        add = scan_add(buffer, offset + 4, frame_end) if frame_end <= end else None
        if add is None:
            break
        *numbers, key, start, after = add
        adds.append((*numbers, key, buffer[start:after]))
        offset = frame_end
    return adds, offset  # type: ignore[return-value]


def taken_apart(items: Sequence[AddRunV3 | AddMixV3]) -> list[Add]:
    adds: list[Add] = []
    for item in items:
        count = len(item.entry_ids)
        assert count == len(item.entries) == len(item.raw_transaction_ids)
        assert list(map(encode_varint, item.entry_ids)) == list(item.raw_entry_ids)
        assert len(set(map(len, item.raw_transaction_ids))) == 1
        assert len(set(map(len, item.raw_entry_ids))) == 1
        lacs = [int.from_bytes(entry[16:24], "big", signed=True) for entry in item.entries]
        if isinstance(item, AddRunV3):
            assert item.lac == max(lacs)
            assert list(item.entry_ids) == sorted(set(item.entry_ids))
            ledger_ids, keys = [item.ledger_id] * count, [item.master_key] * count
            flags = item.flags
        else:
            assert list(item.lacs) == lacs
            ledger_ids, keys, flags = list(item.ledger_ids), list(item.master_keys), 0
            assert len({len(encode_varint(ledger_id)) for ledger_id in ledger_ids}) == 1
        for raw_txn in item.raw_transaction_ids:
            assert encode_varint(decode_varint(raw_txn)) == raw_txn
        txns = map(decode_varint, item.raw_transaction_ids)
        rows = zip(txns, ledger_ids, item.entry_ids, keys, item.entries, strict=True)
        adds += [(txn, ledger, entry, flags, key, body) for txn, ledger, entry, key, body in rows]
    return adds


def together(buffer: bytes, offset: int, end: int) -> tuple[list[Add], int]:
    items, after = scan_add_runs(buffer, offset, end)
    return taken_apart(items), after


@st.composite
def buffers(draw: st.DrawFn) -> bytes:
    payloads = draw(
        st.lists(
            st.builds(
                usual_add,
                txn=st.integers(120, 140) | st.integers(0, 2**63 - 1),
                ledger_id=st.sampled_from((5, 6, 70_000, 70_001, 2**62)),
                entry_id=st.integers(120, 135) | st.integers(0, 2**63 - 1),
                payload=st.integers(0, 300).map(bytes),
                flags=st.sampled_from((0, 0, 0, 0, 2, 4, 0x100, 0x106)),
            ),
            min_size=1,
            max_size=12,
        )
    )
    return mangled(draw, payloads)


@st.composite
def even_buffers(draw: st.DrawFn) -> bytes:
    """Rows of adds of one size, long enough for columns, with something odd among them."""
    count = draw(st.integers(10, 60))
    first = draw(st.sampled_from((0, 100, 120, 300, 16_370)))
    size = draw(st.sampled_from((0, 1, 90)))
    payloads = [
        usual_add(txn=first + n, ledger_id=5, entry_id=first + n, payload=bytes(size))
        for n in range(count)
    ]
    odd = usual_add(
        txn=draw(st.sampled_from((0, 200, 2**40))),
        ledger_id=draw(st.sampled_from((5, 6))),
        entry_id=draw(st.sampled_from((first, first + 7, first + count, 2**40))),
        payload=bytes(size),
    )
    payloads[draw(st.integers(0, count - 1))] = odd
    return mangled(draw, payloads)


def mangled(draw: st.DrawFn, payloads: list[bytes]) -> bytes:
    if draw(st.booleans()):
        index = draw(st.integers(0, len(payloads) - 1))
        payloads[index] = edited(payloads[index], draw(EDITS))
    joined = b"".join(map(framed, payloads))
    if draw(st.booleans()):
        joined = edited(joined, draw(EDITS))
    return joined[: draw(st.integers(0, len(joined)) | st.just(len(joined)))]


@steady
@given(buffers() | even_buffers())
def test_adds_are_scanned_together_as_one_by_one(buffer: bytes) -> None:
    assert together(buffer, 0, len(buffer)) == one_by_one(buffer, 0, len(buffer))


def test_second_frame_with_any_byte_changed_is_scanned_as_if_alone() -> None:
    """The layout of the first frame is tried on the second; no byte of it may slip through."""
    first, second = usual_add(txn=300), usual_add(txn=301, entry_id=6)
    frames = framed(first) + framed(second)
    for position in range(len(first) + 4, len(frames)):
        for value in range(256):
            changed = frames[:position] + bytes((value,)) + frames[position + 1 :]
            assert together(changed, 0, len(changed)) == one_by_one(changed, 0, len(changed))


@pytest.mark.parametrize("odd", [1, 9, 25])
def test_frame_in_a_column_with_any_byte_changed_is_scanned_as_if_alone(odd: int) -> None:
    """Ids that take two bytes, so that each byte of a number has neighbours to be mistaken for."""
    payloads = [usual_add(txn=300 + n, entry_id=200 + n, payload=b"") for n in range(30)]
    frames = b"".join(map(framed, payloads))
    begin = odd * (len(payloads[0]) + 4)
    for position in range(begin, begin + len(payloads[0]) + 4):
        for value in (0, 1, 0x10, 0x7F, 0x80, 0x81, 0xFF, frames[position] ^ 1):
            changed = frames[:position] + bytes((value,)) + frames[position + 1 :]
            assert together(changed, 0, len(changed)) == one_by_one(changed, 0, len(changed))


def test_adds_of_one_ledger_are_one_run() -> None:
    """Of one size or not: what is said once is checked once."""
    for size in (lambda n: 50, lambda n: 50 + n % 3):
        frames = [framed(usual_add(txn=n, entry_id=n, payload=bytes(size(n)))) for n in range(100)]
        buffer = b"".join(frames)
        (run,), end = scan_add_runs(buffer, 0, len(buffer))
        assert isinstance(run, AddRunV3)
        assert (run.entry_ids, run.master_key, end) == (list(range(100)), KEY, len(buffer))


@pytest.mark.parametrize("place", [1, 5, 20, 28])
def test_run_ends_where_entry_ids_do_not_ascend(place: int) -> None:
    """Also inside a column, where nothing but the order is odd."""
    ids = list(range(200, 230))
    ids[place], ids[place + 1] = ids[place + 1], ids[place]
    frames = [framed(usual_add(txn=300 + n, entry_id=entry)) for n, entry in enumerate(ids)]
    buffer = b"".join(frames)
    runs, end = scan_add_runs(buffer, 0, len(buffer))
    assert end == len(buffer)
    assert [len(run.entry_ids) for run in runs] == [place + 1, 29 - place]
    assert taken_apart(runs) == one_by_one(buffer, 0, len(buffer))[0]


def test_adds_of_many_ledgers_in_turn_are_one_mix_until_one_has_two() -> None:
    ledgers = [*range(10, 40), 39, 39, 39]
    frames = [
        framed(usual_add(txn=n, ledger_id=ledger, entry_id=n)) for n, ledger in enumerate(ledgers)
    ]
    buffer = b"".join(frames)
    (mix, run), _ = scan_add_runs(buffer, 0, len(buffer))
    assert isinstance(mix, AddMixV3)
    assert mix.ledger_ids == list(range(10, 40))
    assert isinstance(run, AddRunV3)
    assert (run.ledger_id, run.entry_ids) == (39, [30, 31, 32])


def test_flagged_adds_do_not_run_into_plain_ones() -> None:
    flags = (0, 0, Flag.RECOVERY_ADD, 0, Flag.DEFERRED_SYNC, Flag.HIGH_PRIORITY, 0)
    frames = [framed(usual_add(txn=n, entry_id=n, flags=int(flag))) for n, flag in enumerate(flags)]
    buffer = b"".join(frames)
    items, _ = scan_add_runs(buffer, 0, len(buffer))
    found = [(item.flags, len(item.entry_ids)) for item in items if isinstance(item, AddRunV3)]
    assert found == [(0, 2), (2, 1), (0, 1), (0x100, 1), (4, 1), (0, 1)]


def test_adds_stop_before_the_first_other_frame() -> None:
    adds = b"".join(framed(usual_add(txn=txn, entry_id=txn)) for txn in range(10))
    other = framed(USUAL["read"])
    scanned, offset = together(b"junk" + adds + other + adds, 4, 4 + len(adds + other + adds))
    assert [add[0] for add in scanned] == list(range(10))
    assert offset == 4 + len(adds)


def test_adds_stop_before_an_incomplete_or_too_long_frame() -> None:
    frames = [framed(usual_add(txn=txn, payload=bytes(100 * txn))) for txn in range(3)]
    buffer = b"".join(frames)
    for cut in range(len(frames[2])):
        scanned, offset = together(buffer, 0, len(buffer) - 1 - cut)
        assert (len(scanned), offset) == (2, len(frames[0] + frames[1]))
    limit = len(frames[1])
    assert scan_add_runs(buffer, 0, len(buffer), limit)[1] == len(frames[0] + frames[1])
    same = frames[1] * 30
    assert len(taken_apart(scan_add_runs(same, 0, len(same), limit)[0])) == 30
    assert scan_add_runs(same, 0, len(same), limit - 1) == ([], 0)


# ---------------------------------------------------------------------- reads


def reads_one_by_one(buffer: bytes) -> tuple[int, list[bytes], list[int], int]:
    txns: list[bytes] = []
    ids: list[int] = []
    ledger_id, offset = -1, 0
    while offset + 4 <= len(buffer):
        after = offset + 4 + int.from_bytes(buffer[offset : offset + 4], "big")
        read = scan_read(buffer, offset + 4, after) if after <= len(buffer) else None
        if read is None or (txns and read[1] != ledger_id):
            break
        txn, ledger_id, entry_id, _ = read
        txns.append(encode_varint(txn))
        ids.append(entry_id)
        offset = after
    return ledger_id, txns, ids, offset


@st.composite
def read_buffers(draw: st.DrawFn) -> bytes:
    first = draw(st.sampled_from((0, 100, 300, 2**14)))
    ids = list(range(first, first + draw(st.integers(1, 150))))
    for _ in range(draw(st.integers(0, 2))):
        ids[draw(st.integers(0, len(ids) - 1))] = draw(st.sampled_from((-1, 0, 2**40, first + 2)))
    flags = draw(st.sampled_from((0, int(Flag.HIGH_PRIORITY))))
    ledger_id = draw(st.sampled_from((0, 5, 70_000)))
    pairs = [(300 + n, entry_id) for n, entry_id in enumerate(ids)]
    payloads = [frame[4:] for frame in read_requests(pairs, ledger_id=ledger_id, flags=flags)]
    return mangled(draw, payloads)


@steady
@given(read_buffers())
def test_reads_are_scanned_together_as_one_by_one(buffer: bytes) -> None:
    assert scan_reads(buffer, 0, len(buffer)) == reads_one_by_one(buffer)


@pytest.mark.parametrize("odd", [0, 1, 20])
def test_read_in_a_column_with_any_byte_changed_is_scanned_as_if_alone(odd: int) -> None:
    frames = read_requests([(300 + n, 200 + n) for n in range(80)], ledger_id=300)
    buffer = b"".join(frames)
    begin = odd * len(frames[0])
    for position in range(begin, begin + len(frames[0])):
        for value in range(256):
            changed = buffer[:position] + bytes((value,)) + buffer[position + 1 :]
            assert scan_reads(changed, 0, len(changed)) == reads_one_by_one(changed)


@pytest.mark.parametrize("place", ["transaction", "entry"])
def test_id_written_longer_than_needed_is_no_pattern_for_the_next_read(place: str) -> None:
    """0x80 0x00 is a zero of two bytes; the frames behind it must not be cut at its places."""
    long_zero = b"\x80\x00"
    txn, entry_id = (long_zero, b"\x05") if place == "transaction" else (b"\x05", long_zero)
    message = b"\x08\x07\x10" + entry_id
    payload = b"\x0a%c\x08\x03\x10\x01\x18%b\xa2\x06%c%b" % (
        5 + len(txn), txn, len(message), message,
    )  # fmt: skip
    buffer = framed(payload) * 10
    for position in range(len(payload) + 4, len(buffer)):
        for value in (0, 5, 0x80):
            changed = buffer[:position] + bytes((value,)) + buffer[position + 1 :]
            assert scan_reads(changed, 0, len(changed)) == reads_one_by_one(changed)
