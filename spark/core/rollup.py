"""What many rows add up to, in whichever order they come.

Two writes of the same rows may cut them into tasks in different ways; a file and a ledger hold them
in different groups. So the checksum is a sum: it depends on the rows and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RollUp:
    """Rows, payload bytes, and the sum of the checksums of all payloads."""

    entries: int = 0
    nbytes: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, payloads: Iterable[bytes]) -> RollUp:
        payloads = payloads if isinstance(payloads, list) else list(payloads)
        return cls(len(payloads), sum(map(len, payloads)), sum(map(crc32, payloads)) & _MASK)

    def __add__(self, other: RollUp) -> RollUp:
        return RollUp(
            self.entries + other.entries,
            self.nbytes + other.nbytes,
            (self.checksum + other.checksum) & _MASK,
        )

    def to_list(self) -> list[int]:
        return [self.entries, self.nbytes, self.checksum]

    @classmethod
    def from_list(cls, found: Any) -> RollUp:
        entries, nbytes, checksum = map(int, found)
        return cls(entries, nbytes, checksum)


def total(parts: Iterable[RollUp]) -> RollUp:
    return sum(parts, RollUp())
