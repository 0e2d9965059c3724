"""Runs: neighbouring entries of one ledger as one piece of bytes.

A run's body is a row of records, `u32 length | entry`, ascending by entry id. The same bytes are a
batch frame's body on the wire, an item of the write cache, a run in an entry log and a batch-read
answer, so an entry is cut out of its neighbours only when somebody asks for it alone. Ordinary adds
stay the frames they came as, and become records when they are written or asked for together.

A run in a log obeys three limits. Look-ups rely on them: whoever seeks entry `e` need only look at
runs whose last entry lies below `e + SPAN_MAX`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Any, Final

from wire.batch import Walk
from wire.scan_v2 import ADD_ENTRY_OFFSET

ENTRIES_MAX: Final = 512
BYTES_MAX: Final = 1024 * 1024
SPAN_MAX: Final = 4096  # last - first stays below it

_LENGTH: Final = Struct(">I")
PREFIX_BYTES: Final = 4  # the length in front of every entry


class Run:
    """Records of one ledger. Immutable by convention; a plain class because there are many.

    `ids` and `starts` are ranges wherever that says it all (ids without gaps, records of one size),
    and then cost nothing.
    """

    __slots__ = ("body", "ids", "starts")

    def __init__(self, ids: Sequence[int], starts: Sequence[int], body: bytes) -> None:
        self.ids = ids  # strictly ascending
        self.starts = starts  # where each record begins in the body, and where the body ends
        self.body = body

    @property
    def first(self) -> int:
        return self.ids[0]

    @property
    def last(self) -> int:
        return self.ids[-1]

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def body_bytes(self) -> int:
        return len(self.body)

    @property
    def borders(self) -> Sequence[int]:
        """Places between the records, at least as far apart as these are long."""
        return self.starts

    @property
    def is_dense(self) -> bool:
        return type(self.ids) is range

    @property
    def record_bytes(self) -> int:
        """The size of every record, 0 when they differ."""
        return self.starts.step if type(self.starts) is range else 0

    def position(self, entry_id: int) -> int:
        """Where `entry_id` stands in the run, or -1."""
        ids = self.ids
        if not ids[0] <= entry_id <= ids[-1]:
            return -1
        if type(ids) is range:
            return entry_id - ids[0]
        at = bisect_left(ids, entry_id)
        return at if ids[at] == entry_id else -1

    def entry_at(self, position: int) -> bytes:
        starts = self.starts
        return self.body[starts[position] + PREFIX_BYTES : starts[position + 1]]

    def entry(self, entry_id: int) -> bytes | None:
        position = self.position(entry_id)
        return None if position < 0 else self.entry_at(position)

    def neighbours(self, position: int) -> int:
        """How many records from `position` on have consecutive ids."""
        ids = self.ids
        if type(ids) is range:
            return len(ids) - position
        # Ids ascend strictly, so `id - index` never falls: equal at the end means equal throughout.
        offset = ids[position] - position
        low, high = position + 1, len(ids)
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
        begin = self.starts[start]
        starts = self.starts[start : end + 1]
        ids = packed_ids(self.ids[start:end])
        return Run(ids, shifted(starts, -begin), self.body[begin : starts[-1]])


#: What an add frame has in front of its entry, less what a record has.
_FRAME_EXTRA: Final = ADD_ENTRY_OFFSET - PREFIX_BYTES
_FRAMES_AT_ONCE: Final = 32
#: Frames that fill less of their buffer than this are copied out of it, or they would keep it all.
_SHARE_MIN: Final = 3 / 4


class FrameRun(Run):
    """Add frames of one ledger where they were received: a run whose body is yet to be made.

    Taking them in costs nothing per entry, and most leave the write cache as part of a bigger run
    without having been anything else. Whoever asks for `body` or `starts` has them made, for good:
    the frames are let go of, so that no entry is held twice. Two threads may do so at once; both
    make the same.
    """

    __slots__ = ("_bounds", "_data")

    def __init__(self, ids: Sequence[int], data: bytes, bounds: Sequence[int]) -> None:
        self.ids = ids
        self._bounds = bounds  # frame i is data[bounds[i] : bounds[i + 1]]
        self._data: bytes | None = data

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is not there: here, a slot that is not filled in.
        if name not in ("body", "starts"):
            raise AttributeError(name)
        data = self._data
        if data is not None:
            made = run_of(self.ids, cut_out(data, self._bounds))
            self.body, self.starts = made.body, made.starts
            self._data = None  # last: who finds it gone finds the others
        return self.body if name == "body" else self.starts

    @property
    def body_bytes(self) -> int:
        return self._bounds[-1] - self._bounds[0] - len(self.ids) * _FRAME_EXTRA

    @property
    def borders(self) -> Sequence[int]:
        return self._bounds

    def entry_at(self, position: int) -> bytes:
        data = self._data
        if data is None:
            return super().entry_at(position)
        bounds = self._bounds
        return data[bounds[position] + ADD_ENTRY_OFFSET : bounds[position + 1]]

    def entries(self) -> list[bytes]:
        data = self._data
        if data is None:
            return [super(FrameRun, self).entry_at(n) for n in range(len(self.ids))]
        return cut_out(data, self._bounds)

    def part(self, start: int, end: int) -> Run:
        assert 0 <= start < end <= self.count
        data = self._data
        if data is None or (start == 0 and end == self.count):
            return super().part(start, end)
        return FrameRun(packed_ids(self.ids[start:end]), data, self._bounds[start : end + 1])


def run_of_frames(ids: Sequence[int], data: bytes, bounds: Sequence[int]) -> FrameRun:
    """Add frames of one ledger, ascending by id; frame i is `data[bounds[i] : bounds[i + 1]]`."""
    begin, end = bounds[0], bounds[-1]
    packed: Sequence[int] = _even(bounds) or array("I", bounds)
    if end - begin < len(data) * _SHARE_MIN:
        data, packed = data[begin:end], shifted(packed, -begin)
    return FrameRun(packed_ids(ids), data, packed)


def entries_of(data: bytes, bounds: Sequence[int]) -> list[bytes]:
    """The entries of add frames of any ledgers; frame i is `data[bounds[i] : bounds[i + 1]]`."""
    return cut_out(data, _even(bounds) or bounds)


def _even(bounds: Sequence[int]) -> range | None:
    """The bounds of frames of one size as a range."""
    even = range(bounds[0], bounds[-1] + 1, bounds[1] - bounds[0])
    return even if list(even) == bounds else None


def cut_out(data: bytes, bounds: Sequence[int]) -> list[bytes]:
    """The entries of add frames; of frames of one size, many at a time: that halves the time."""
    entries: list[bytes] = []
    if type(bounds) is range:
        size = bounds.step
        unpack_from = _many_frames(size)
        step = _FRAMES_AT_ONCE * size
        for start in range(bounds[0], bounds[-1] - step + 1, step):
            entries += unpack_from(data, start)
    rest = bounds[len(entries) :]
    entries += [data[start + ADD_ENTRY_OFFSET : end] for start, end in pairwise(rest)]
    return entries


@lru_cache(maxsize=256)
def _many_frames(size: int) -> Callable[[bytes, int], tuple[bytes, ...]]:
    frame = f"{ADD_ENTRY_OFFSET}x{size - ADD_ENTRY_OFFSET}s"
    return Struct(frame * _FRAMES_AT_ONCE).unpack_from


def run_of(ids: Sequence[int], entries: Sequence[bytes]) -> Run:
    """Join entries, ascending by id, into a run. The limits are the caller's business."""
    count = len(ids)
    lengths = list(map(len, entries))
    length = lengths[0]
    if lengths.count(length) == count:
        # Equal sizes: the prefix is a separator. With many ledgers most runs come this way, each
        # of a few entries, so nothing is called here that is not needed.
        body = length.to_bytes(PREFIX_BYTES, "big").join([b"", *entries])
        starts = range(0, len(body) + 1, length + PREFIX_BYTES)
        first, behind = ids[0], ids[-1] + 1
        return Run(
            range(first, behind) if behind - first == count else packed_ids(ids), starts, body
        )
    pieces: list[bytes] = [b""] * (2 * count)
    pieces[0::2] = map(_LENGTH.pack, lengths)
    pieces[1::2] = entries
    places = array("I", accumulate((n + PREFIX_BYTES for n in lengths), initial=0))
    return Run(packed_ids(ids), places, b"".join(pieces))


def run_of_batch(walk: Walk, data: bytes, start: int, end: int) -> Run:
    """The records of a batch frame, which lie at start..end of the buffer, as a run."""
    return Run(packed_ids(walk.entry_ids), shifted(walk.bounds, -start), data[start:end])


def packed_ids(ids: Sequence[int]) -> Sequence[int]:
    """Ascending ids as a range if they have no gaps, else as an array."""
    if ids[-1] - ids[0] + 1 == len(ids):
        return range(ids[0], ids[-1] + 1)
    return ids if type(ids) is array else array("q", ids)


def shifted(starts: Sequence[int], by: int) -> Sequence[int]:
    """Offsets moved by a constant; a range stays one."""
    if type(starts) is range:
        return range(starts.start + by, starts.stop + by, starts.step)
    return array("I", [start + by for start in starts])


def runs_of_entries(entries: Mapping[int, bytes]) -> Iterable[Run]:
    """Sort entries by id and join them into runs within the limits."""
    ids = sorted(entries)
    values = list(map(entries.__getitem__, ids))
    count = len(ids)
    if count <= ENTRIES_MAX and ids[-1] - ids[0] < SPAN_MAX:
        run = run_of(ids, values)
        if len(run.body) <= BYTES_MAX:
            return (run,)  # the usual case when many ledgers share a generation
    return _cut_entries(ids, values)


def _cut_entries(ids: list[int], values: list[bytes]) -> Iterator[Run]:
    start, count = 0, len(ids)
    while start < count:
        end = min(start + ENTRIES_MAX, count)
        if ids[end - 1] - ids[start] >= SPAN_MAX:
            end = bisect_left(ids, ids[start] + SPAN_MAX, start, end)
        sizes = list(accumulate(len(value) + PREFIX_BYTES for value in values[start:end]))
        if sizes[-1] > BYTES_MAX:
            # An entry beyond the limit is a run by itself.
            end = start + max(1, bisect_left(sizes, BYTES_MAX + 1))
        yield run_of(ids[start:end], values[start:end])
        start = end


def cut(run: Run) -> Iterator[Run]:
    """Cut a run at record borders so that every piece is within the limits."""
    ids, borders = run.ids, run.borders
    start, count = 0, len(ids)
    size = borders[-1] - borders[0]
    if count <= ENTRIES_MAX and ids[-1] - ids[0] < SPAN_MAX and size <= BYTES_MAX:
        yield run
        return
    while start < count:
        end = min(start + ENTRIES_MAX, count)
        if ids[end - 1] - ids[start] >= SPAN_MAX:
            end = bisect_left(ids, ids[start] + SPAN_MAX, start, end)
        if borders[end] - borders[start] > BYTES_MAX:
            # The last border within the limit; an entry beyond it is a run by itself.
            border = bisect_right(borders, borders[start] + BYTES_MAX, start, end + 1) - 1
            end = max(start + 1, border)
        yield run.part(start, end)
        start = end


def join(runs: Iterable[Run]) -> Iterator[Run]:
    """Merge neighbouring runs while the limits allow; cut larger ones.

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
                and size + run.body_bytes <= BYTES_MAX
                and run.last - waiting[0].first < SPAN_MAX
            )
            if not fits and waiting:
                yield _concatenate(waiting)
                waiting, count, size = [], 0, 0
            waiting.append(run)
            count += run.count
            size += run.body_bytes
    if waiting:
        yield _concatenate(waiting)


def _concatenate(runs: list[Run]) -> Run:
    """One run of several that ascend and fit together."""
    if len(runs) == 1:
        return runs[0]
    frames = [run for run in runs if type(run) is FrameRun]
    if len(frames) == len(runs):
        entries = list(chain.from_iterable(run.entries() for run in frames))
        return run_of(list(chain.from_iterable(run.ids for run in frames)), entries)
    body = b"".join([run.body for run in runs])
    record_bytes = runs[0].record_bytes
    starts: Sequence[int]
    if record_bytes and all(run.record_bytes == record_bytes for run in runs):
        starts = range(0, len(body) + 1, record_bytes)
    else:
        starts = array("I", [0])
        for run in runs:
            starts.extend(shifted(run.starts, starts[-1])[1:])
    if runs[-1].last - runs[0].first + 1 == sum(run.count for run in runs):
        return Run(range(runs[0].first, runs[-1].last + 1), starts, body)
    ids = array("q")
    for run in runs:
        ids.extend(run.ids)
    return Run(ids, starts, body)
