"""Which entries of a ledger a bookie holds: the bytes inside a list-entries answer.

A 64-byte header, then groups of 24 bytes. A group is a series of runs of consecutive ids, equally
long and equally spaced: striping leaves exactly that on each bookie, so one group often describes a
whole ledger. Ids are inclusive at both ends here as everywhere; a run is (first id, last id).

Apache's reader looks an id up in one group only, the last that starts at or before it, so groups
must not interleave. It also looks one id too far (`last + size` counts as inside), which does no
harm as long as the runs of a group do not touch; `encode_availability` keeps both.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from wire.errors import ProtocolError
from wire.types import ID_MAX

Run: TypeAlias = tuple[int, int]

_HEADER: Final = struct.Struct(">ii56x")  # version, number of groups
_GROUP: Final = struct.Struct(">qqii")  # start of first run, start of last run, size, period
_VERSION: Final = 0
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Group:
    first: int
    last_start: int
    size: int
    period: int  # 0 for a single run

    @property
    def last(self) -> int:
        return self.last_start + self.size - 1

    @property
    def run_count(self) -> int:
        return 1 if self.period == 0 else (self.last_start - self.first) // self.period + 1

    def holds(self, entry_id: int) -> bool:
        if not self.first <= entry_id <= self.last:
            return False
        return self.period == 0 or (entry_id - self.first) % self.period < self.size

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """The parts of its runs between two ids. Reaches the first of them without counting."""
        start = self.first
        if self.period and first > start:
            start += (first - start) // self.period * self.period
        while start <= min(last, self.last_start):
            end = start + self.size - 1
            if end >= first:
                yield max(start, first), min(end, last)
            if self.period == 0:
                return
            start += self.period


def runs_of(entry_ids: Iterable[int]) -> Iterator[Run]:
    """Ascending ids as runs. An id given twice counts once."""
    first = last = None
    for entry_id in entry_ids:
        if first is None or last is None:
            first = last = entry_id
        elif entry_id == last + 1:
            last = entry_id
        elif entry_id != last:
            yield first, last
            first = last = entry_id
    if first is not None and last is not None:
        yield first, last


def encode_availability(runs: Iterable[Run]) -> bytes:
    """The ids of ascending runs, as few groups as one pass without looking back can make."""
    groups = [
        _GROUP.pack(group.first, group.last_start, group.size, group.period)
        for group in _grouped(_joined(runs))
    ]
    return b"".join((_HEADER.pack(_VERSION, len(groups)), *groups))


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs that touch, as one; and none longer than a group's size can say."""
    first = last = None
    for start, end in runs:
        assert 0 <= start <= end <= ID_MAX, f"({start}, {end}) is no run of entry ids"
        if first is None or last is None:
            first, last = start, end
            continue
        assert start > last, f"run ({start}, {end}) does not follow ({first}, {last})"
        if start == last + 1:
            last = end
        else:
            yield from _cut(first, last)
            first, last = start, end
    if first is not None and last is not None:
        yield from _cut(first, last)


def _cut(first: int, last: int) -> Iterator[Run]:
    while last - first >= _INT_MAX:
        yield first, first + _INT_MAX - 1
        first += _INT_MAX
    yield first, last


def _grouped(runs: Iterable[Run]) -> Iterator[_Group]:
    first = last_start = size = period = 0  # size 0: no group yet
    for start, end in runs:
        run_size = end - start + 1
        distance = start - last_start
        # Runs that touch (cut ones) stay apart, because of the id that Apache looks too far.
        if run_size == size < distance <= _INT_MAX and period in (0, distance):
            last_start, period = start, distance
            continue
        if size:
            yield _Group(first, last_start, size, period)
        first, last_start, size, period = start, start, run_size, 0
    if size:
        yield _Group(first, last_start, size, period)


class Availability:
    """What a bookie says it holds of a ledger.

    Answers questions from the groups themselves: a million ids in a few groups stay a few groups.
    A hostile answer can describe 2**63 ids in 88 bytes, so nothing here walks all of them; loops
    are bounded by what the caller asks about.
    """

    __slots__ = ("_firsts", "_groups")

    def __init__(self, groups: list[_Group]) -> None:
        self._groups = groups
        self._firsts = [group.first for group in groups]

    @property
    def count(self) -> int:
        """How many entries."""
        return sum(group.run_count * group.size for group in self._groups)

    @property
    def last_entry_id(self) -> int:
        """The highest id, -1 if there is none."""
        return self._groups[-1].last if self._groups else -1

    def is_available(self, entry_id: int) -> bool:
        index = bisect_right(self._firsts, entry_id) - 1
        return index >= 0 and self._groups[index].holds(entry_id)

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """What is there from `first` to `last`, ascending. Runs may touch, never overlap."""
        index = max(bisect_right(self._firsts, first) - 1, 0)
        while index < len(self._groups) and self._firsts[index] <= last:
            yield from self._groups[index].runs(first, last)
            index += 1

    def missing(self, expected: Iterable[Run]) -> Iterator[Run]:
        """What of the expected runs is not there."""
        for first, last in expected:
            for start, end in self.runs(first, last):
                if start > first:
                    yield first, start - 1
                first = end + 1
            if first <= last:
                yield first, last


def decode_availability(encoded: bytes) -> Availability:
    """Read an answer's list. Raises ProtocolError for one that contradicts itself."""
    if len(encoded) < _HEADER.size:
        raise ProtocolError(
            f"entry list of {len(encoded)} bytes is shorter than its header of {_HEADER.size}"
        )
    version, count = _HEADER.unpack_from(encoded)
    if version != _VERSION:
        raise ProtocolError(f"entry list has version {version}; only {_VERSION} is understood")
    if count < 0 or len(encoded) < _HEADER.size + count * _GROUP.size:
        raise ProtocolError(f"entry list of {len(encoded)} bytes announces {count} groups")
    listed = memoryview(encoded)[_HEADER.size : _HEADER.size + count * _GROUP.size]
    groups: list[_Group] = []
    last = -1
    for first, last_start, size, period in _GROUP.iter_unpack(listed):
        group = _Group(first, last_start, size, period)
        if not _is_sound(group) or first <= last:
            raise ProtocolError(
                f"entry list has a wrong group {len(groups)} of {count}: first {first},"
                f" last {last_start}, size {size}, period {period}, after id {last}"
            )
        last = group.last
        groups.append(group)
    return Availability(groups)


def _is_sound(group: _Group) -> bool:
    if group.size < 1 or not 0 <= group.first <= group.last_start <= ID_MAX - group.size + 1:
        return False
    if group.period == 0:
        return group.first == group.last_start
    return group.period >= group.size and (group.last_start - group.first) % group.period == 0
