"""Usual v3 adds by the receive buffer, in runs and mixes: what `scan_v2` does for v2.

Neighbours mostly differ in values, seldom in how many bytes a value takes. So the layout of the
last frame is tried on the next: one unpack, then each piece must be the only one that the frame and
the entry in it allow. If it is not, `scan_add` looks at the frame afresh: nothing is accepted here
that it would refuse.

Transaction ids are not turned into numbers, because answers repeat them as they came. Measured on
adds of 1 KiB, per frame with the entry cut out: 2.1 us when all numbers were decoded, 1.8 by the
loop below; 1.1 when frames have one size, which is guessed and then checked by the column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import lt
from typing import Any, Final, NamedTuple, TypeAlias

from wire.framing import LENGTH_BYTES
from wire.scan_v3 import ScannedAdd, are_shortest, scan_add
from wire.types import FRAME_BYTES_MAX, LedgerId
from wire.varint import encode_varint

#: Guessing that the next frames have one size pays from this many on,
_COLUMN_MIN: Final = 8
#: and takes so many at first, twice as many each time it went well.
_COLUMN_FIRST: Final = 16
_COLUMN_MAX: Final = 256
_ENTRY_BYTES_MIN: Final = 32
_LAC_OFFSET: Final = 16

_LENGTH: Final = struct.Struct(">I")
_LAC: Final = struct.Struct(">q")

#: Transaction ids and entry ids as they came, entry ids, LACs: a column of each.
_Columns: TypeAlias = tuple[Sequence[bytes], Sequence[bytes], Sequence[int], Sequence[int]]


class AddRunV3(NamedTuple):
    """Adds of one ledger, one key and the same flags, entry ids strictly ascending.

    Raw ids are varints in their shortest form. Those of transactions have one length in all of the
    run, and so have those of entries.
    """

    flags: int
    master_key: bytes
    ledger_id: LedgerId
    entry_ids: Sequence[int]
    lac: int  # the highest one inside the entries
    entries: list[bytes]
    raw_transaction_ids: Sequence[bytes]
    raw_entry_ids: Sequence[bytes]


class AddMixV3(NamedTuple):
    """Adds without flags, of any ledgers; what many writers leave in one buffer."""

    master_keys: Sequence[bytes]
    ledger_ids: Sequence[LedgerId]
    entry_ids: Sequence[int]
    lacs: Sequence[int]
    entries: list[bytes]
    raw_transaction_ids: Sequence[bytes]
    raw_entry_ids: Sequence[bytes]


def scan_add_runs(
    data: bytes, position: int, end: int, frame_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[list[AddRunV3 | AddMixV3], int]:
    """The usual adds at the head of a buffer of frames, and where the first other frame begins.

    `position` is that of a frame's length. Stops before a frame that is incomplete, too long or no
    usual add; what that frame is remains for the caller to find out.
    """
    items: list[AddRunV3 | AddMixV3] = []
    item = _Item(0)  # not finished
    from_bytes = int.from_bytes
    length_max = frame_bytes_max - LENGTH_BYTES
    layout = _layout(1, 1, 1, 1, 1)
    unpack, body_offset, message_offset, header_due, top_bits, top_bits_set, txn_min = layout[:7]
    bytes_due = LENGTH_BYTES + body_offset + _ENTRY_BYTES_MIN
    length_last = ledger_last = previous = -1
    size_due = body_size_due = ledger_due = key_due = key = b""
    chunk, singly = _COLUMN_FIRST, 1
    while (start := position + LENGTH_BYTES) <= end:
        if singly:
            singly -= 1
        elif length_last >= 0 and not item.mixed:  # the last frame has this layout and length
            count = min((end - position) // (LENGTH_BYTES + length_last), chunk)
            if count >= _COLUMN_MIN:
                size_all = LENGTH_BYTES + length_last
                found = layout.take(data, position, size_all, count, previous)
                if found:
                    item.add_columns(data, found, start + body_offset, size_all, count)
                    previous = item.ids[-1]
                    position += count * size_all
                    chunk = min(2 * chunk, _COLUMN_MAX)
                    continue
                chunk, singly = _COLUMN_FIRST, count
        if position + bytes_due <= end:
            (
                length, header, txn, size, ledger, entry, key_piece, body_size, ledger_id, entry_id,
                lac,
            ) = unpack(data, position)  # fmt: skip
            if length != length_last and length >= bytes_due - LENGTH_BYTES:
                length_last = length
                size_due = b"\xaa\x06" + encode_varint(length - message_offset)
                body_size_due = encode_varint(length - body_offset)
            frame_end = start + length
            if (
                length == length_last
                and header == header_due
                and size == size_due
                and body_size == body_size_due
                and entry == encode_varint(entry_id)
                and (txn_bits := from_bytes(txn, "little")) & top_bits == top_bits_set
                and txn_bits >= txn_min
                and ledger == (ledger_due if ledger_id == ledger_last else _ledger_piece(ledger_id))
                and (key_piece == key_due or _is_key(key_piece))
                and frame_end <= end
                and length <= length_max
            ):
                if ledger_id != ledger_last or key_piece != key_due or entry_id <= previous:
                    goes_on = item.turns_into_mix(ledger_id)
                    if key_piece != key_due:
                        key, key_due = key_piece[2:22], key_piece
                    ledger_due, ledger_last = ledger, ledger_id
                else:
                    goes_on = not item.mixed and not item.flags
                if not goes_on:
                    item.finish(items)
                    item = _Item(0)
                item.add(
                    txn, entry, entry_id, lac, ledger_id, key, data[start + body_offset : frame_end]
                )
                previous = entry_id
                position = frame_end
                continue
        (length,) = _LENGTH.unpack_from(data, position)
        frame_end = start + length
        if frame_end > end or length > length_max:
            break
        add = scan_add(data, start, frame_end)
        if add is None:
            break
        item.finish(items)
        txn_number, ledger_last, previous, flags, key, body_start, body_end = add
        txn, entry = encode_varint(txn_number), encode_varint(previous)
        (lac,) = _LAC.unpack_from(data, body_start + _LAC_OFFSET)
        item = _Item(flags)
        item.add(txn, entry, previous, lac, ledger_last, key, data[body_start:body_end])
        ledger_due, key_due = _ledger_piece(ledger_last), b"\x1a\x14" + key + b"\x22"
        position = frame_end
        layout = _layout_like(add)
        unpack, body_offset, message_offset, header_due, top_bits, top_bits_set, txn_min = layout[
            :7
        ]
        bytes_due = LENGTH_BYTES + body_offset + _ENTRY_BYTES_MIN
        length_last = -1
    item.finish(items)
    return items, position


class _Item:
    """A run or a mix in the making, by columns."""

    __slots__ = (
        "_entries", "_keys", "_lacs", "_ledger_ids", "_raw_ids", "_txns", "flags", "ids", "mixed",
    )  # fmt: skip

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.mixed = False
        self.ids: list[int] = []
        self._raw_ids: list[bytes] = []
        self._txns: list[bytes] = []
        self._lacs: list[int] = []
        self._entries: list[bytes] = []
        # Of a run only the first:
        self._ledger_ids: list[LedgerId] = []
        self._keys: list[bytes] = []

    def turns_into_mix(self, ledger_id: int) -> bool:
        """Whether an add of another ledger belongs here: if this is a mix, or one add and alone."""
        if self.flags or not self.ids or ledger_id == self._ledger_ids[-1]:
            return False
        self.mixed = self.mixed or len(self.ids) == 1
        return self.mixed

    def add(
        self,
        txn: bytes,
        raw_id: bytes,
        entry_id: int,
        lac: int,
        ledger_id: int,
        key: bytes,
        entry: bytes,
    ) -> None:
        self._txns.append(txn)
        self._raw_ids.append(raw_id)
        self._lacs.append(lac)
        self._entries.append(entry)
        if self.mixed or not self.ids:
            self._ledger_ids.append(LedgerId(ledger_id))
            self._keys.append(key)
        self.ids.append(entry_id)

    def add_columns(
        self, data: bytes, columns: _Columns, body_start: int, size: int, count: int
    ) -> None:
        """Adds of the same run whose frames have one size, the first entry at `body_start`."""
        txns, raw_ids, ids, lacs = columns
        self._txns += txns
        self._raw_ids += raw_ids
        self.ids += ids
        self._lacs += lacs
        body_bytes = len(self._entries[-1])
        starts = range(body_start, body_start + count * size, size)
        self._entries += [data[start : start + body_bytes] for start in starts]

    def finish(self, items: list[AddRunV3 | AddMixV3]) -> None:
        if self.mixed:
            items.append(AddMixV3(
                self._keys, self._ledger_ids, self.ids, self._lacs, self._entries, self._txns,
                self._raw_ids,
            ))  # fmt: skip
        elif self.ids:
            items.append(AddRunV3(
                self.flags, self._keys[0], self._ledger_ids[0], self.ids, max(self._lacs),
                self._entries, self._txns, self._raw_ids,
            ))  # fmt: skip


# ---------------------------------------------------------------------- layouts


class _Layout(NamedTuple):
    """Where the pieces of a plain add are, given how many bytes each of its numbers takes."""

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    body_offset: int  # from the start of the payload
    message_offset: int  # likewise: where the sub-message begins
    header: bytes  # the first piece, which never differs
    top_bits: int  # of the bytes of the transaction id,
    top_bits_set: int  # of these: all but the last
    txn_min: int  # as these bytes: below it a shorter form would do
    txn_bytes: int
    entry_at: int  # from the start of the frame
    entry_bytes: int

    def take(
        self, data: bytes, position: int, size: int, count: int, previous: int
    ) -> _Columns | None:
        """The next `count` frames, if all of them go on with the run of the frame before them."""
        last = position - size
        txn_at = LENGTH_BYTES + len(self.header)
        txn_end, entry_end = txn_at + self.txn_bytes, self.entry_at + self.entry_bytes
        ids_at = LENGTH_BYTES + self.body_offset + 8
        head = data[last : last + txn_at]
        if not data.startswith(head, position):
            return None
        between = data[last + txn_end : last + self.entry_at]
        behind = data[last + entry_end : last + ids_at]
        frames = memoryview(data)[position : position + count * size]
        rows = _columns(txn_at, len(between), len(behind), self.txn_bytes, self.entry_bytes, size)
        heads, txns, betweens, raw_ids, behinds, ids, lacs = zip(*rows(frames), strict=True)
        if (
            heads.count(head) < count
            or betweens.count(between) < count
            or behinds.count(behind) < count
            or ids[0] <= previous
            or not all(map(lt, ids, ids[1:]))
            or raw_ids != tuple(map(encode_varint, ids))
            or not are_shortest(b"".join(txns), self.txn_bytes)
        ):
            return None
        return txns, raw_ids, ids, lacs


@lru_cache(maxsize=256)
def _layout(txn: int, size: int, ledger: int, entry: int, body_size: int) -> _Layout:
    # Frame length | header up to the transaction id | that | tag and size | tag, ledger, tag |
    # entry | tag, master key, tag | size of the body | ids and LAC inside the body.
    pieces = struct.Struct(f">I7s{txn}s{2 + size}s{2 + ledger}s{entry}s23s{body_size}sQQq")
    top_bits = int.from_bytes(b"\x80" * txn, "little")
    message_offset = 7 + txn + 2 + size
    return _Layout(
        unpack=pieces.unpack_from,
        body_offset=message_offset + 2 + ledger + entry + 23 + body_size,
        message_offset=message_offset,
        header=bytes((0x0A, 5 + txn, 0x08, 3, 0x10, 2, 0x18)),
        top_bits=top_bits,
        top_bits_set=top_bits >> 8,
        txn_min=1 << 8 * (txn - 1) if txn > 1 else 0,
        txn_bytes=txn,
        entry_at=LENGTH_BYTES + message_offset + 2 + ledger,
        entry_bytes=entry,
    )


def _layout_like(add: ScannedAdd) -> _Layout:
    txn, ledger, entry = (len(encode_varint(number)) for number in add[:3])
    body_bytes = add[6] - add[5]
    body_size = len(encode_varint(body_bytes))
    size = len(encode_varint(2 + ledger + entry + 23 + body_size + body_bytes))
    return _layout(txn, size, ledger, entry, body_size)


@lru_cache(maxsize=256)
def _columns(
    txn_at: int, between: int, behind: int, txn: int, entry: int, size: int
) -> Callable[[memoryview], Iterator[tuple[Any, ...]]]:
    pieces = f">{txn_at}s{txn}s{between}s{entry}s{behind}sQq"
    return struct.Struct(f"{pieces}{size - struct.calcsize(pieces)}x").iter_unpack


@lru_cache(maxsize=1024)
def _ledger_piece(ledger_id: int) -> bytes:
    return b"\x08" + encode_varint(ledger_id) + b"\x10"


def _is_key(piece: bytes) -> bool:
    """Whether this is a master key between its tag and that of the body."""
    return piece[:2] == b"\x1a\x14" and piece[22:] == b"\x22"
