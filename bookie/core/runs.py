"""Runs: neighbouring entries of one ledger as one piece of bytes.

A run's body is a row of records, `u32 length | entry`, ascending by entry id. The same bytes are a
batch frame's body on the wire, an item of the write cache, a run in an entry log and a batch-read
answer, so an entry is cut out of its neighbours only when somebody asks for it alone.

A run in a log obeys three limits. Look-ups rely on them: whoever seeks entry `e` need only look at
runs whose last entry lies below `e + SPAN_MAX`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

ENTRIES_MAX: Final = 512
BYTES_MAX: Final = 1024 * 1024
SPAN_MAX: Final = 4096  # last - first stays below it

_LENGTH: Final = Struct(">I")
_PREFIX_BYTES: Final = _LENGTH.size


class Run:
    """Records of one ledger. Immutable by convention; a plain class because there are many."""

    __slots__ = ("body", "count", "first", "ids", "last", "record_bytes", "starts")

    def __init__(
        self,
        *,
        first: int,
        last: int,
        count: int,
        body: bytes,
        record_bytes: int = 0,
        starts: array[int] | None = None,
        ids: array[int] | None = None,
    ) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.body = body
        self.record_bytes = record_bytes  # the size of every record, or 0 when they differ
        self.starts = starts  # count + 1 offsets into the body; None when record_bytes says it all
        self.ids = ids  # None when the run is dense: first, first + 1, ..., last

    def position(self, entry_id: int) -> int:
        """Where `entry_id` stands in the run, or -1."""
        if not self.first <= entry_id <= self.last:
            return -1
        if self.ids is None:
            return entry_id - self.first
        at = bisect_left(self.ids, entry_id)
        return at if self.ids[at] == entry_id else -1

    def start(self, position: int) -> int:
        """The offset of a record in the body; `count` is allowed and gives the end."""
        if self.starts is None:
            return position * self.record_bytes
        return self.starts[position]

    def entry(self, entry_id: int) -> bytes | None:
        position = self.position(entry_id)
        if position < 0:
            return None
        return self.body[self.start(position) + _PREFIX_BYTES : self.start(position + 1)]

    def entry_ids(self) -> Sequence[int]:
        return range(self.first, self.last + 1) if self.ids is None else self.ids

    def neighbours(self, position: int) -> int:
        """How many records from `position` on have consecutive ids."""
        if self.ids is None:
            return self.count - position
        ids = self.ids
        # Ids ascend strictly, so `id - index` never falls: equal at the end means equal throughout.
        offset = ids[position] - position
        low, high = position + 1, self.count
        while low < high:
            middle = (low + high) // 2
            if ids[middle] - middle == offset:
                low = middle + 1
            else:
                high = middle
        return low - position

    def part(self, start: int, end: int) -> Run:
        """The records at positions start..end-1 as a run of their own."""
        assert 0 <= start < end <= self.count
        if start == 0 and end == self.count:
            return self
        begin = self.start(start)
        ids = self.entry_ids()
        starts = self.starts
        return Run(
            first=ids[start],
            last=ids[end - 1],
            count=end - start,
            body=self.body[begin : self.start(end)],
            record_bytes=self.record_bytes,
            starts=starts and array("I", [at - begin for at in starts[start : end + 1]]),
            ids=self.ids and self.ids[start:end],
        )


def run_of(ids: Sequence[int], entries: Sequence[bytes]) -> Run:
    """Join entries, ascending by id, into a run. The limits are the caller's business."""
    count = len(ids)
    lengths = list(map(len, entries))
    length = lengths[0]
    starts = None
    if lengths.count(length) == count:
        prefix = _LENGTH.pack(length)
        body = prefix + prefix.join(entries)  # equal sizes: the prefix is a separator
        record_bytes = length + _PREFIX_BYTES
    else:
        pieces: list[bytes] = [b""] * (2 * count)
        pieces[0::2] = map(_LENGTH.pack, lengths)
        pieces[1::2] = entries
        body = b"".join(pieces)
        record_bytes = 0
        starts = array("I", accumulate((n + _PREFIX_BYTES for n in lengths), initial=0))
    dense = ids[-1] - ids[0] + 1 == count
    return Run(
        first=ids[0],
        last=ids[-1],
        count=count,
        body=body,
        record_bytes=record_bytes,
        starts=starts,
        ids=None if dense else array("q", ids),
    )


def runs_of_entries(entries: Mapping[int, bytes]) -> Iterator[Run]:
    """Sort entries by id and join them into runs within the limits."""
    ids = sorted(entries)
    values = list(map(entries.__getitem__, ids))
    start, count = 0, len(ids)
    while start < count:
        end = min(start + ENTRIES_MAX, count)
        if ids[end - 1] - ids[start] >= SPAN_MAX:
            end = bisect_left(ids, ids[start] + SPAN_MAX, start, end)
        sizes = list(accumulate(len(value) + _PREFIX_BYTES for value in values[start:end]))
        if sizes[-1] > BYTES_MAX:
            # An entry beyond the limit is a run by itself.
            end = start + max(1, bisect_left(sizes, BYTES_MAX + 1))
        yield run_of(ids[start:end], values[start:end])
        start = end


def cut(run: Run) -> Iterator[Run]:
    """Cut a run at record borders so that every piece is within the limits."""
    ids = run.entry_ids()
    start = 0
    while start < run.count:
        end = min(start + ENTRIES_MAX, run.count)
        if ids[end - 1] - ids[start] >= SPAN_MAX:
            end = bisect_left(ids, ids[start] + SPAN_MAX, start, end)
        room = run.start(start) + BYTES_MAX
        if run.start(end) > room:
            while end > start + 1 and run.start(end) > room:
                end = start + max(1, (end - start) // 2)
        yield run.part(start, end)
        start = end


def join(runs: Iterable[Run]) -> Iterator[Run]:
    """Merge neighbouring runs, given in any order, while the limits allow; cut larger ones.

    Runs that do not follow each other (an overlap, or out of order) are left side by side: each
    becomes a run of its own, in the order given, so that the newest is written last.
    """
    waiting: list[Run] = []
    count = size = 0
    for whole in runs:
        for run in cut(whole):
            fits = (
                waiting
                and run.first > waiting[-1].last
                and count + run.count <= ENTRIES_MAX
                and size + len(run.body) <= BYTES_MAX
                and run.last - waiting[0].first < SPAN_MAX
            )
            if not fits and waiting:
                yield _concatenate(waiting)
                waiting, count, size = [], 0, 0
            waiting.append(run)
            count += run.count
            size += len(run.body)
    if waiting:
        yield _concatenate(waiting)


def _concatenate(runs: list[Run]) -> Run:
    """One run of several that ascend and fit together."""
    if len(runs) == 1:
        return runs[0]
    first, last = runs[0].first, runs[-1].last
    count = sum(run.count for run in runs)
    record_bytes = runs[0].record_bytes
    starts = None
    if not record_bytes or any(run.record_bytes != record_bytes for run in runs):
        record_bytes = 0
        starts = array("I", [0])
        offset = 0
        for run in runs:
            starts.extend(offset + run.start(at) for at in range(1, run.count + 1))
            offset += len(run.body)
    ids = None
    if last - first + 1 != count:
        ids = array("q")
        for run in runs:
            ids.extend(run.entry_ids())
    return Run(
        first=first,
        last=last,
        count=count,
        body=b"".join([run.body for run in runs]),
        record_bytes=record_bytes,
        starts=starts,
        ids=ids,
    )
