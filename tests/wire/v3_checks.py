"""Direct scanners held against the protobuf library, which is always right.

A scanner may call anything unusual, but what it accepts must mean the same to the library. Each
check says whether its scanner accepted a payload, and fails if the two disagree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from hypothesis import strategies as st

from wire import messages
from wire.build_v3 import add_answers, add_requests, read_answer, read_requests
from wire.codec_v3 import Header, decode_request, decode_response
from wire.errors import Status
from wire.scan_v3 import (
    scan_add,
    scan_add_answer,
    scan_read,
    scan_read_answer,
)
from wire.types import Flag, LedgerId, Operation

KEY = bytes(range(20))


def entry(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">QQqq", ledger_id, entry_id, -1, len(payload)) + payload


def usual_add(
    *,
    txn: int = 300,
    ledger_id: int = 70_000,
    entry_id: int = 5,
    payload: bytes = b"x",
    flags: int = 0,
) -> bytes:
    """A payload as our client builds it."""
    body = entry(ledger_id, entry_id, payload)
    pieces = add_requests([(txn, entry_id, body)], ledger_id=ledger_id, master_key=KEY, flags=flags)
    return b"".join(pieces)[4:]


IDS = st.one_of(
    st.sampled_from((0, 1, 5, 127, 128, 70_000, 2**35, 2**63 - 1)),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**20),
    st.integers(-(2**63), 2**63 - 1),
)

EDITS = st.lists(
    st.tuples(st.sampled_from("=+-"), st.integers(0, 400), st.integers(0, 255)), max_size=4
)


def edited(payload: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    changed = bytearray(payload)
    for kind, position, value in edits:
        position %= len(changed) + 1
        if kind == "+":
            changed.insert(position, value)
        elif position < len(changed) > 1:
            if kind == "=":
                changed[position] = value
            else:
                del changed[position]
    return bytes(changed)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def check_add(payload: bytes) -> bool:
    """Whether the add was scanned; if so, the library must read the same."""
    scanned = scan_add(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id, flags, key, start, end = scanned
    header, request = decode_request(payload)
    priority = header.priority
    assert header == Header(transaction_id=txn, operation=Operation.ADD_ENTRY, priority=priority)
    assert request == messages.AddRequest(
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        master_key=key,
        body=payload[start:end],
        recovery=bool(flags & Flag.RECOVERY_ADD),
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
        deferred_sync=bool(flags & Flag.DEFERRED_SYNC),
    )
    assert struct.unpack_from(">qq", payload, start) == (ledger_id, entry_id)
    assert ledger_id >= 0
    assert entry_id >= 0
    assert end - start >= 32
    return True


def check_read(payload: bytes) -> bool:
    scanned = scan_read(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id, flags = scanned
    header, request = decode_request(payload)
    assert (header.transaction_id, header.version) == (txn, 3)
    assert request == messages.ReadRequest(
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
    )
    return True


def check_add_answer(payload: bytes) -> bool:
    scanned = scan_add_answer(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id = scanned
    header, response = decode_response(payload)
    assert header.transaction_id == txn
    assert response == messages.AddResponse(
        status=Status.OK, ledger_id=LedgerId(ledger_id), entry_id=entry_id
    )
    return True


def check_read_answer(payload: bytes) -> bool:
    scanned = scan_read_answer(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id, start, end, max_lac = scanned
    header, response = decode_response(payload)
    assert header.transaction_id == txn
    assert response == messages.ReadResponse(
        status=Status.OK,
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        body=payload[start:end],
        max_lac=max_lac,
    )
    return True


CHECKS: dict[str, Callable[[bytes], bool]] = {
    "add": check_add,
    "read": check_read,
    "add answer": check_add_answer,
    "read answer": check_read_answer,
}
USUAL: dict[str, bytes] = {
    "add": usual_add(payload=b"x" * 200),
    "read": read_requests([(300, 5)], ledger_id=70_000)[0][4:],
    "add answer": add_answers([(300, 70_000, 5)])[4:],
    "read answer": b"".join(read_answer(300, 70_000, -1, entry(70_000, 5, b"x" * 200), -1))[4:],
}
