"""What stands inside a journal block: records, back to back.

A record is `u32 length of the rest | u32 type word | body`. An accepted v2 add or batch is its
own wire frame, copied verbatim, so that a group commit is a join of slices; what arrived as v3
is rebuilt to the same layout. State changes have type words of our own, which no v2 frame has:
their first byte is not the protocol version.

The journal holds only what was accepted, so replay applies records without judging them. A record
that replay cannot read would stop the start, or worse, drop acknowledged state; hence the reader
refuses, and `check_records` lets tests hold the writer to what the reader accepts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bookie.storage.journal_format import JournalDamageError, JournalPosition
from wire.types import ID_MAX, MASTER_KEY_BYTES, LedgerId, Opcode

#: The upper halves of the type words. Of adds, the lower half holds the request's flags.
ADD: Final = 2 << 8 | Opcode.ADD
ADD_BATCH: Final = 2 << 8 | Opcode.ADD_BATCH
FENCE: Final = 0x7B01
EXPLICIT_LAC: Final = 0x7B02
LEDGER_KEY: Final = 0x7B03
LIMBO: Final = 0x7B04
UNTOMBSTONE: Final = 0x7B05

#: Stands in the ADDs of a ledger whose key has another length; a LEDGER_KEY record names it.
NO_MASTER_KEY: Final = bytes(MASTER_KEY_BYTES)

_HEAD = struct.Struct(">II")
_ADD_IDS = struct.Struct(">qq")
_FENCE = struct.Struct(f">IIq{MASTER_KEY_BYTES}s")
_EXPLICIT_LAC = struct.Struct(f">IIq{MASTER_KEY_BYTES}sH")
_LEDGER_KEY = struct.Struct(">IIqH")
_LIMBO = struct.Struct(">IIqB")
_UNTOMBSTONE = struct.Struct(">IIq")
_BATCH = struct.Struct(f">{MASTER_KEY_BYTES}sQHHqqqI")  # the body of ADD_BATCH up to its entries

RECORD_HEAD_BYTES: Final = _HEAD.size
ADD_ENTRY_OFFSET: Final = MASTER_KEY_BYTES  # of the entry inside the body of an ADD
ADD_BATCH_ENTRIES_OFFSET: Final = _BATCH.size  # of the first entry's length in an ADD_BATCH

#: Shortest body by kind. Whoever got a record from `iterate_records` may unpack this much.
_BODY_BYTES_MIN: Final = {
    ADD: MASTER_KEY_BYTES + _ADD_IDS.size,
    ADD_BATCH: _BATCH.size,
    FENCE: _FENCE.size - _HEAD.size,
    EXPLICIT_LAC: _EXPLICIT_LAC.size - _HEAD.size,
    LEDGER_KEY: _LEDGER_KEY.size - _HEAD.size,
    LIMBO: _LIMBO.size - _HEAD.size,
    UNTOMBSTONE: _UNTOMBSTONE.size - _HEAD.size,
}

_NAMES: Final = {
    ADD: "ADD",
    ADD_BATCH: "ADD_BATCH",
    FENCE: "FENCE",
    EXPLICIT_LAC: "EXPLICIT_LAC",
    LEDGER_KEY: "LEDGER_KEY",
    LIMBO: "LIMBO",
    UNTOMBSTONE: "UNTOMBSTONE",
}


@dataclass(frozen=True, slots=True)
class Fence:
    ledger_id: LedgerId
    master_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExplicitLac:
    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    lac: bytes  # as received: an entry body, not a number


@dataclass(frozen=True, slots=True)
class LedgerKey:
    ledger_id: LedgerId
    master_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Limbo:
    ledger_id: LedgerId
    on: bool


@dataclass(frozen=True, slots=True)
class Untombstone:
    ledger_id: LedgerId


StateRecord: TypeAlias = Fence | ExplicitLac | LedgerKey | Limbo | Untombstone


def record_key(master_key: bytes) -> bytes:
    """The key as records carry it: of another length, zeros, and a LEDGER_KEY record names it."""
    return master_key if len(master_key) == MASTER_KEY_BYTES else NO_MASTER_KEY


def encode_add_head(master_key: bytes, *, entry_bytes: int, flags: int = 0) -> bytes:
    """What precedes the entry in an ADD, for those who keep the entry as a piece of its own."""
    assert len(master_key) == MASTER_KEY_BYTES, "other keys go into a LEDGER_KEY record"
    length = 4 + MASTER_KEY_BYTES + entry_bytes
    return _HEAD.pack(length, ADD << 16 | flags) + master_key


def encode_add(master_key: bytes, entry: bytes | memoryview, flags: int = 0) -> bytes:
    """An accepted add in the layout of a v2 frame, whatever it arrived as."""
    return b"".join((encode_add_head(master_key, entry_bytes=len(entry), flags=flags), entry))


def encode_fence(ledger_id: int, master_key: bytes) -> bytes:
    assert len(master_key) == MASTER_KEY_BYTES
    return _FENCE.pack(_FENCE.size - 4, FENCE << 16, ledger_id, master_key)


def encode_explicit_lac(ledger_id: int, master_key: bytes, lac: bytes) -> bytes:
    assert len(master_key) == MASTER_KEY_BYTES
    length = _EXPLICIT_LAC.size - 4 + len(lac)
    return _EXPLICIT_LAC.pack(length, EXPLICIT_LAC << 16, ledger_id, master_key, len(lac)) + lac


def encode_ledger_key(ledger_id: int, master_key: bytes) -> bytes:
    length = _LEDGER_KEY.size - 4 + len(master_key)
    return _LEDGER_KEY.pack(length, LEDGER_KEY << 16, ledger_id, len(master_key)) + master_key


def encode_limbo(ledger_id: int, *, on: bool) -> bytes:
    return _LIMBO.pack(_LIMBO.size - 4, LIMBO << 16, ledger_id, on)


def encode_untombstone(ledger_id: int) -> bytes:
    return _UNTOMBSTONE.pack(_UNTOMBSTONE.size - 4, UNTOMBSTONE << 16, ledger_id)


def record_name(type_word: int) -> str:
    return _NAMES.get(type_word >> 16, "UNKNOWN")


def iterate_records(
    payload: bytes,
    position: JournalPosition | None = None,
    path: str = "journal",
    *,
    begin: int = 0,
) -> Iterator[tuple[int, int, int]]:
    """Every record of a block's payload as (type word, start of the body, end of the record).

    The whole record with its head is `payload[start - 8 : end]`. `position` and `path` only
    serve the message of the error, which stops the start: the block is valid, so a newer
    release or a defect wrote what we cannot read, and skipping it would drop acknowledged state.
    """
    unpack = _HEAD.unpack_from
    add_length_min = _BODY_BYTES_MIN[ADD] + 4
    size = len(payload)
    end = begin
    while end < size:
        start = end + 8
        if start > size:
            raise _damage(f"{size - end} stray bytes follow the last record", end, position, path)
        length, word = unpack(payload, end)
        stop = end + 4 + length
        if word >> 16 == ADD and stop <= size and length >= add_length_min:
            yield word, start, stop
            end = stop
            continue
        body_min = _BODY_BYTES_MIN.get(word >> 16)
        if body_min is None or (word >= 0x7B000000 and word & 0xFFFF):
            raise _damage(f"type word {word:#010x} is not known", end, position, path)
        if stop > size or stop - start < body_min:
            raise _damage(f"length {length} does not fit", end, position, path)
        yield word, start, stop
        end = stop


def decode_state(
    type_word: int,
    payload: bytes,
    start: int,
    end: int,
    position: JournalPosition | None = None,
    path: str = "journal",
) -> StateRecord:
    """A record that `iterate_records` found, if it is neither ADD nor ADD_BATCH."""
    kind = type_word >> 16
    at = start - RECORD_HEAD_BYTES
    size = end - at
    if kind == FENCE and size == _FENCE.size:
        _, _, ledger_id, key = _FENCE.unpack_from(payload, at)
        return Fence(LedgerId(ledger_id), key)
    if kind == LIMBO and size == _LIMBO.size and payload[end - 1] <= 1:
        _, _, ledger_id, on = _LIMBO.unpack_from(payload, at)
        return Limbo(LedgerId(ledger_id), bool(on))
    if kind == UNTOMBSTONE and size == _UNTOMBSTONE.size:
        return Untombstone(LedgerId(_UNTOMBSTONE.unpack_from(payload, at)[2]))
    if kind == EXPLICIT_LAC:
        _, _, ledger_id, key, count = _EXPLICIT_LAC.unpack_from(payload, at)
        if size == _EXPLICIT_LAC.size + count:
            return ExplicitLac(LedgerId(ledger_id), key, bytes(payload[end - count : end]))
    elif kind == LEDGER_KEY:
        _, _, ledger_id, count = _LEDGER_KEY.unpack_from(payload, at)
        if size == _LEDGER_KEY.size + count:
            return LedgerKey(LedgerId(ledger_id), bytes(payload[end - count : end]))
    raise _damage(f"the body of {record_name(type_word)} is malformed", at, position, path)


def check_records(payload: bytes) -> int:
    """Whether replay would accept all of this; how many records it is. For tests and tools.

    Stricter than replay, which trusts what was accepted once: ids are not negative either, and
    the entries of a batch add up.
    """
    count = 0
    for word, start, end in iterate_records(payload):
        kind = word >> 16
        if kind == ADD:
            ledger_id, entry_id = _ADD_IDS.unpack_from(payload, start + ADD_ENTRY_OFFSET)
        elif kind == ADD_BATCH:
            ledger_id, entry_id = _check_batch(payload, start, end)
        else:
            ledger_id, entry_id = decode_state(word, payload, start, end).ledger_id, 0
        if not (0 <= ledger_id <= ID_MAX and 0 <= entry_id <= ID_MAX):
            raise _damage(f"negative id in {record_name(word)}", start - 8, None, "journal")
        count += 1
    return count


def _check_batch(payload: bytes, start: int, end: int) -> tuple[int, int]:
    *_, ledger_id, first, last, count = _BATCH.unpack_from(payload, start)
    found: list[int] = []
    at = start + ADD_BATCH_ENTRIES_OFFSET
    while at + 4 + _ADD_IDS.size <= end:
        entry_ledger, entry_id = _ADD_IDS.unpack_from(payload, at + 4)
        if entry_ledger != ledger_id or (found and entry_id <= found[-1]):
            break
        found.append(entry_id)
        at += 4 + int.from_bytes(payload[at : at + 4], "big")
    if at != end or len(found) != count or not found or (found[0], found[-1]) != (first, last):
        raise _damage("the entries of ADD_BATCH do not add up", start - 8, None, "journal")
    return ledger_id, first


def _damage(what: str, at: int, position: JournalPosition | None, path: str) -> JournalDamageError:
    where = f" of block {position.sequence} at offset {position.offset}" if position else ""
    return JournalDamageError(
        f"{path}: {what}, at byte {at} of the records{where}; a newer release may have written it"
    )
