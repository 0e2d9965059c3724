"""The load of the engine's benchmark: receive buffers full of adds.

It is made in the thread that is measured, so it must cost what `recv` would: one copy of a buffer.
A buffer is made by the encoders once, and from then on its ids are written over by columns. Made
anew each time, a buffer held the loop up for 0.4 ms, as much as the engine's own work on it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from wire.batch import batch_head, join_records
from wire.build_v2 import add_requests

KEY = bytes(range(20))
BUFFER_BYTES = 256 * 1024
DIGEST = bytes(4)
_ID_BYTES = 8


def entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    ids = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    return ids + (entry_id - 1).to_bytes(8, "big", signed=True) + bytes(8) + DIGEST + payload


class Load:
    """Receive buffers full of adds, one after the other."""

    def __init__(self, *, payload_bytes: int, ledger_count: int, batches: bool = False) -> None:
        assert ledger_count == 1 or not batches
        self.per_buffer = max(1, BUFFER_BYTES // (payload_bytes + 64))
        self.next_entry = [0] * ledger_count
        self._turn = 0
        self._batches = batches
        entries = [entry(1, 0, os.urandom(payload_bytes))] * self.per_buffer
        made = join_records(entries) if batches else add_requests(entries, master_key=KEY)
        self._template = bytearray(made)
        self._stride = len(made) // self.per_buffer
        self._entry_at = self._stride - len(entries[0])

    def buffer(self) -> bytes:
        ledgers, count = len(self.next_entry), self.per_buffer
        if ledgers == 1:
            first = self.next_entry[0]
            self.next_entry[0] += count
            ids: Sequence[int] = range(first, first + count)
        else:
            numbers = [turn % ledgers for turn in range(self._turn, self._turn + count)]
            self._turn += count
            self._write(0, [number + 1 for number in numbers])
            ids = []
            for number in numbers:
                ids.append(self.next_entry[number])
                self.next_entry[number] += 1
        self._write(_ID_BYTES, ids)
        self._write(2 * _ID_BYTES, [entry_id - 1 for entry_id in ids])  # the LAC
        if not self._batches:
            return bytes(self._template)
        head = batch_head(len(self._template), 1, 1, ids[0], ids[-1], count, KEY)
        return b"".join((head, self._template))

    def _write(self, offset: int, values: Sequence[int]) -> None:
        """Set the number at this offset of every entry."""
        packed = struct.pack(f">{len(values)}q", *values)
        for byte in range(_ID_BYTES):
            self._template[self._entry_at + offset + byte :: self._stride] = packed[byte::_ID_BYTES]
