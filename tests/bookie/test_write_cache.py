"""What one generation holds of a ledger, against a plain dictionary, however the entries came."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import pytest

from bookie.core.ledger import Ledger
from bookie.core.runs import FrameRun, Run, cut, join, run_of, run_of_frames
from bookie.core.write_cache import FRAMES_MIN, Part, WriteCache
from wire.build_v2 import add_requests
from wire.framing import FrameBuffer
from wire.scan_v2 import AddRun, scan_requests
from wire.types import LedgerId

KEY = bytes(range(20))


def entry(entry_id: int, payload: bytes) -> bytes:
    return b"".join(n.to_bytes(8, "big") for n in (7, entry_id, 0, 0)) + payload


def received(entries: dict[int, bytes], *, behind: bytes = b"") -> AddRun:
    """Adds of ascending ids as a server's scanner finds them in a receive buffer."""
    frames = FrameBuffer()
    frames.feed(add_requests(list(entries.values()), master_key=KEY) + behind)
    item = next(scan_requests(frames))
    assert isinstance(item, AddRun)
    assert list(item.entry_ids) == list(entries)
    return item


def framed(entries: dict[int, bytes], *, behind: bytes = b"") -> FrameRun:
    run = received(entries, behind=behind)
    return run_of_frames(run.entry_ids, run.data, run.bounds)


def new_part() -> Part:
    return Part(Ledger(LedgerId(7), home=0, journal=0, is_new=True), 1)


def contents(runs: Sequence[Run]) -> dict[int, bytes]:
    return {entry_id: run.entry_at(n) for run in runs for n, entry_id in enumerate(run.ids)}


def some_entries(rng: random.Random, first: int, count: int) -> dict[int, bytes]:
    ids = range(first, first + count) if rng.random() < 0.6 else sorted(
        rng.sample(range(first, first + 3 * count), count)
    )  # fmt: skip
    size = rng.choice((0, 40, None))
    return {n: entry(n, rng.randbytes(rng.randrange(60) if size is None else size)) for n in ids}


@pytest.mark.parametrize("seed", range(60))
def test_part_holds_the_newest_of_whatever_came_alone_in_frames_or_in_batches(seed: int) -> None:
    rng = random.Random(seed)
    part, model = new_part(), dict[int, bytes]()
    following = 0
    for _ in range(rng.randrange(1, 12)):
        first = following if rng.random() < 0.7 else rng.randrange(following + 1)
        entries = some_entries(rng, first, rng.choice((1, 3, FRAMES_MIN, 40, 700)))
        ids = list(entries)
        way = rng.choice(("frames", "frames", "batch", "v3"))
        if way == "frames":
            add = received(entries)
            part.add_frames(add.entry_ids, add.data, add.bounds)
        elif way == "batch":
            part.add_run(run_of(ids, list(entries.values())))
        else:
            part.add_entries(ids, entries.values())
        model |= entries
        following = max(model) + 1
        probe = rng.choice(ids)
        assert part.find(probe) == model[probe]
        if rng.random() < 0.3 and (run := part.find_run(probe)) is not None:
            assert run.body  # a batch read had the records made
    assert {n: part.find(n) for n in range(-1, following + 1) if part.find(n)} == model
    assert part.low == min(model)
    assert part.last_entry == max(model)
    assert set(part.entry_ids()) == set(model)
    assert contents(list(part.runs_to_write())) == model


@pytest.mark.parametrize("seed", range(30))
def test_frames_become_the_same_records_as_their_entries(seed: int) -> None:
    rng = random.Random(seed)
    entries = some_entries(rng, rng.randrange(2**40), rng.randrange(1, 200))
    plain = run_of(list(entries), list(entries.values()))
    run = framed(entries)
    assert run.body_bytes == len(plain.body)
    assert run.entries() == list(entries.values())
    start = rng.randrange(len(entries))
    end = rng.randrange(start, len(entries)) + 1
    assert run.part(start, end).body == plain.part(start, end).body
    assert (run.body, list(run.starts)) == (plain.body, list(plain.starts))
    assert type(run.starts) is type(plain.starts)
    assert run.entries() == list(entries.values())  # the frames are gone, the entries are not
    assert run.part(start, end).body == plain.part(start, end).body
    assert run.entry_at(start) == plain.entry_at(start)


def test_neighbouring_frames_are_joined_within_the_limits_of_a_run() -> None:
    frames = [framed(some_entries(random.Random(n), n * 4000, 300)) for n in range(4)]
    assert [run.count for run in join(frames)] == [300] * 4  # too far apart
    dense = [framed({i: entry(i, b"p") for i in range(n, n + 200)}) for n in (0, 200, 400)]
    assert [run.count for run in join(dense)] == [400, 200]
    big = framed({n: entry(n, bytes(1000)) for n in range(1200)})
    assert [run.count for run in cut(big)] == [512, 512, 176]


def test_frames_do_not_keep_a_buffer_that_others_fill() -> None:
    entries = {n: entry(n, bytes(100)) for n in range(FRAMES_MIN)}
    alone, among = framed(entries), framed(entries, behind=bytes(100_000))
    assert alone._data is not None
    assert among._data == alone._data
    assert sys.getsizeof(among._data) < 2000


def test_few_adds_before_many_are_written_together_with_them() -> None:
    part = new_part()
    for ids in (range(3), range(3, 40), range(40, 42)):
        add = received({n: entry(n, b"x") for n in ids})
        part.add_frames(add.entry_ids, add.data, add.bounds)
    (run,) = part.runs_to_write()
    assert list(run.ids) == list(range(42))


def test_dropped_runs_and_entries_are_freed_a_few_at_a_time() -> None:
    cache = WriteCache(first_generation=1, now=0.0)
    ledger = Ledger(LedgerId(7), home=0, journal=0, is_new=True)
    part = cache.part(ledger)
    for n in range(100, 200):
        part.add_run(run_of([n], [entry(n, b"")]))
    part.add_entries(range(50), [entry(n, b"") for n in range(50)])
    cache.drop(cache.seal(1.0))
    left = []
    while cache.free_some(20):
        left.append(len(part.runs) + len(part.entries))
    assert left == [130, 110, 90, 70, 50, 30, 10]
