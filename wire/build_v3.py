"""Writing v3 adds and reads, and the answers to them, without the protobuf library.

The counterpart of `scan_v3`: the four messages that travel once per entry are put together from
templates with the numbers filled in. Entries are never copied here: a builder returns pieces, to be
joined once with everything else that is sent at the same time. Field order is that of Apache's 4.18
(`flag` first), which every peer reads. Every result is a whole frame, or frames, with the length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Final, TypeAlias

from wire.errors import Status
from wire.messages import Bytes
from wire.types import Flag
from wire.varint import encode_varint

#: Begins with transaction id, ledger id, entry id: a `ScannedAdd` will do as it is.
AddToAnswer: TypeAlias = tuple[int, int, int, *tuple[object, ...]]

#: What Apache's client sends as header priority for recovery traffic; any number above 0 will do.
HIGH_PRIORITY: Final = 100

_LENGTH: Final = struct.Struct(">I")
_PRIORITY: Final = b"\x20" + encode_varint(HIGH_PRIORITY)
_VARINT_BYTES_MAX: Final = 10
_READ_ANSWER_HEADS: Final = [
    bytes((0x0A, 5 + txn_bytes, 0x08, 3, 0x10, 1, 0x18))
    for txn_bytes in range(_VARINT_BYTES_MAX + 1)
]


def add_answers(adds: Iterable[AddToAnswer], status: Status = Status.OK) -> bytes:
    """The answers to many adds that share their outcome, as one string of frames.

    Made for a group of adds that became durable together, so nothing here is done per entry that
    could be done per ledger, per status or never.
    """
    heads, middles = _add_answer_templates(status.v3)
    pieces: list[bytes] = []
    last_ledger_id = -1
    ledger = encode_varint(last_ledger_id)
    for add in adds:
        ledger_id = add[1]
        if ledger_id != last_ledger_id:
            ledger = encode_varint(ledger_id)
            last_ledger_id = ledger_id
        txn = encode_varint(add[0])
        entry = encode_varint(add[2])
        id_bytes = len(ledger) + len(entry)
        pieces += (heads[len(txn)][id_bytes], txn, middles[id_bytes], ledger, b"\x18", entry)
    return b"".join(pieces)


def alike_add_answers(
    raw_transaction_ids: Sequence[bytes],
    raw_ledger_ids: Sequence[bytes],
    raw_entry_ids: Sequence[bytes],
    status: Status = Status.OK,
) -> bytes:
    """The same for ids that are varints already, as long as their neighbours in each column."""
    count = len(raw_transaction_ids)
    heads, middles = _add_answer_templates(status.v3)
    id_bytes = len(raw_ledger_ids[0]) + len(raw_entry_ids[0])
    pieces = [b"\x18"] * (6 * count)
    pieces[0::6] = [heads[len(raw_transaction_ids[0])][id_bytes]] * count
    pieces[1::6] = raw_transaction_ids
    pieces[2::6] = [middles[id_bytes]] * count
    pieces[3::6] = raw_ledger_ids
    pieces[5::6] = raw_entry_ids
    return b"".join(pieces)


@cache
def _add_answer_templates(status: int) -> tuple[list[list[bytes]], list[bytes]]:
    """What stands before the transaction id and before the ledger id of an add answer.

    Only lengths change between answers of one status: of the transaction id, and of the two ids
    together. Every combination is made beforehand.
    """
    code = encode_varint(status)
    middles = []
    for id_bytes in range(2 * _VARINT_BYTES_MAX + 1):
        size = bytes((1 + len(code) + 1 + 1 + id_bytes,))
        middles.append(b"\x10" + code + b"\xaa\x06" + size + b"\x08" + code + b"\x10")
    heads = [
        [
            _LENGTH.pack(7 + txn_bytes + len(middle) + 1 + id_bytes)
            + bytes((0x0A, 5 + txn_bytes, 0x08, 3, 0x10, 2, 0x18))
            for id_bytes, middle in enumerate(middles)
        ]
        for txn_bytes in range(_VARINT_BYTES_MAX + 1)
    ]
    return heads, middles


def read_answer(
    transaction_id: int, ledger_id: int, entry_id: int, body: Bytes, max_lac: int | None
) -> tuple[bytes, Bytes, bytes]:
    """The answer to a read that found its entry, in three pieces; the middle one is the entry."""
    raw_txn, raw_id = encode_varint(transaction_id), encode_varint(entry_id)
    return _read_answer(raw_txn, ledger_id, raw_id, body, max_lac)


def _read_answer(
    txn: bytes, ledger_id: int, entry: bytes, body: Bytes, max_lac: int | None
) -> tuple[bytes, Bytes, bytes]:
    tail = b"" if max_lac is None else b"\x28" + encode_varint(max_lac)
    ledger = encode_varint(ledger_id)
    body_bytes = len(body)
    body_size = encode_varint(body_bytes)
    message_bytes = 5 + len(ledger) + len(entry) + len(body_size) + body_bytes + len(tail)
    size = encode_varint(message_bytes)
    head = b"".join(
        (
            _LENGTH.pack(11 + len(txn) + len(size) + message_bytes),
            _READ_ANSWER_HEADS[len(txn)],
            txn,
            b"\x10\x00\xa2\x06",
            size,
            b"\x08\x00\x10",
            ledger,
            b"\x18",
            entry,
            b"\x22",
            body_size,
        )
    )
    return head, body, tail


def read_answers(
    raw_transaction_ids: Sequence[bytes],
    ledger_id: int,
    entry_ids: Sequence[int],
    bodies: Sequence[bytes],
    max_lac: int | None,
) -> bytes:
    """The answers to reads of one ledger that found their entries, as one string of frames.

    Entries of one size, which many ledgers have, share everything between the numbers.
    """
    count = len(entry_ids)
    raw_ids = list(map(encode_varint, entry_ids))
    if (
        len(set(map(len, bodies))) > 1
        or len(set(map(len, raw_transaction_ids))) > 1
        or len(set(map(len, raw_ids))) > 1
    ):
        return b"".join(
            chain.from_iterable(
                _read_answer(raw_txn, ledger_id, raw_id, body, max_lac)
                for raw_txn, raw_id, body in zip(raw_transaction_ids, raw_ids, bodies, strict=True)
            )
        )
    head, _, tail = _read_answer(raw_transaction_ids[0], ledger_id, raw_ids[0], bodies[0], max_lac)
    txn_at, txn_bytes, id_bytes = 11, len(raw_transaction_ids[0]), len(raw_ids[0])
    id_at = len(head) - len(encode_varint(len(bodies[0]))) - 1 - id_bytes
    pieces = [head[:txn_at]] * (6 * count)
    pieces[1::6] = raw_transaction_ids
    pieces[2::6] = [head[txn_at + txn_bytes : id_at]] * count
    pieces[3::6] = raw_ids
    pieces[4::6] = [head[id_at + id_bytes :]] * count
    pieces[5::6] = bodies
    # The tail of one is in front of the next.
    pieces[6::6] = [tail + head[:txn_at]] * (count - 1)
    pieces.append(tail)
    return b"".join(pieces)


def add_requests(
    entries: Iterable[tuple[int, int, Bytes]],
    *,
    ledger_id: int,
    master_key: bytes,
    flags: int = 0,
) -> list[Bytes]:
    """Requests to add many entries of one ledger, as pieces to be sent in order.

    Each entry comes as (transaction id, entry id, body). `flags` are those of `Flag` that an add
    knows: RECOVERY_ADD, HIGH_PRIORITY, DEFERRED_SYNC.
    """
    priority = _PRIORITY if flags & Flag.HIGH_PRIORITY else b""
    first = b"\xa0\x06\x01\x08" if flags & Flag.RECOVERY_ADD else b"\x08"
    tail = b"\x28\x01" if flags & Flag.DEFERRED_SYNC else b""
    ledger = first + encode_varint(ledger_id) + b"\x10"
    key = b"\x1a" + encode_varint(len(master_key)) + master_key + b"\x22"
    fixed_bytes = len(ledger) + len(key) + len(tail)
    pieces: list[Bytes] = []
    for transaction_id, entry_id, body in entries:
        txn = encode_varint(transaction_id)
        entry = encode_varint(entry_id)
        body_bytes = len(body)
        body_size = encode_varint(body_bytes)
        size_bytes = fixed_bytes + len(entry) + len(body_size) + body_bytes
        size = encode_varint(size_bytes)
        header_bytes = 5 + len(txn) + len(priority)
        pieces += (
            b"%b\x0a%c\x08\x03\x10\x02\x18%b%b\xaa\x06%b%b%b%b%b"
            % (
                _LENGTH.pack(4 + header_bytes + len(size) + size_bytes),
                header_bytes,
                txn,
                priority,
                size,
                ledger,
                entry,
                key,
                body_size,
            ),
            body,
        )
        if tail:
            pieces.append(tail)
    return pieces


def read_requests(
    entries: Iterable[tuple[int, int]], *, ledger_id: int, flags: int = 0
) -> list[bytes]:
    """Plain reads of many entries of one ledger, each given as (transaction id, entry id)."""
    priority = _PRIORITY if flags & Flag.HIGH_PRIORITY else b""
    ledger = b"\x08" + encode_varint(ledger_id) + b"\x10"
    frames = []
    for transaction_id, entry_id in entries:
        txn = encode_varint(transaction_id)
        entry = encode_varint(entry_id)
        header_bytes = 5 + len(txn) + len(priority)
        size = len(ledger) + len(entry)
        frames.append(
            b"\x00\x00\x00%c\x0a%c\x08\x03\x10\x01\x18%b%b\xa2\x06%c%b%b"
            % (5 + header_bytes + size, header_bytes, txn, priority, size, ledger, entry)
        )
    return frames
