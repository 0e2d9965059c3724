"""Adds of many ledgers in one buffer."""

from __future__ import annotations

import pytest

from tests.wire.scan_v2_checks import (
    KEY,
    OTHER_KEY,
    SIZES,
    adds,
    as_frames,
    batch,
    buffer,
    mixed,
)
from wire import build_v2
from wire.errors import Status
from wire.scan_v2 import (
    AddMix,
    AddRun,
    scan_requests,
)
from wire.types import Flag


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("count", [2, 9, 64, 65, 200])
def test_adds_of_many_ledgers_are_one_mix(count: int, sizes: list[int]) -> None:
    stream = mixed(range(count), sizes)
    [mix] = scan_requests(buffer(stream))
    assert isinstance(mix, AddMix)
    assert mix.ledger_ids == list(range(count))
    assert mix.entry_ids == list(range(100, 100 + count))
    assert mix.bounds[-1] == len(stream)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("count", [1, 20, 100])
def test_mix_ends_where_one_ledger_goes_on(count: int, sizes: list[int]) -> None:
    """What follows is a run again, whichever way the mix was found."""
    parts = [mixed(range(count), sizes), adds(range(300), sizes), batch(5), mixed([1, 2], sizes)]
    items = list(scan_requests(buffer(*parts)))
    assert as_frames(items) == [
        frame for part in parts for frame in as_frames(scan_requests(buffer(part)))
    ]
    assert any(isinstance(item, AddRun) and len(item.entry_ids) > 150 for item in items)


@pytest.mark.parametrize("place", [1, 3, 40, 70])
@pytest.mark.parametrize(
    "odd",
    [
        adds([5], [4], flags=Flag.RECOVERY_ADD),
        adds([5], [4], ledger_id=-1),
        adds([-5], [4]),
        build_v2.read_requests([1, 2], ledger_id=3),
    ],
    ids=["flags", "ledger", "entry", "read"],
)
def test_mix_takes_plain_adds_only(odd: bytes, place: int) -> None:
    before, behind = mixed(range(place), [4]), mixed(range(90), [4])
    found = as_frames(scan_requests(buffer(before, odd, behind)))
    alone = [
        frame for part in (before, odd, behind) for frame in as_frames(scan_requests(buffer(part)))
    ]
    assert found == alone


@pytest.mark.parametrize("place", [0, 1, 31, 32, 33, 50, 64])
@pytest.mark.parametrize(
    ("key", "size"), [(OTHER_KEY, 4), (KEY, 9), (OTHER_KEY, 9)], ids=["key", "size", "both"]
)
def test_mix_takes_adds_of_writers_with_keys_and_sizes_of_their_own(
    key: bytes, size: int, place: int
) -> None:
    """Wherever in a row of frames that are read many at a time."""
    other = adds([7], [size], ledger_id=1000, key=key)
    parts = [mixed(range(place), [4]), other, mixed(range(2000, 2090), [4])]
    [mix] = scan_requests(buffer(*parts))
    assert isinstance(mix, AddMix)
    assert as_frames([mix]) == [
        frame for part in parts for frame in as_frames(scan_requests(buffer(part)))
    ]
    assert mix.master_keys[place] == key
    assert mix.master_keys.count(key) == (1 if key == OTHER_KEY else len(mix.master_keys))


def test_answers_to_a_mix_are_those_to_its_adds() -> None:
    ledger_ids, entry_ids = [5, 2**62, 0], [1, 0, 2**62]
    assert build_v2.mixed_add_answers(ledger_ids, entry_ids) == b"".join(
        build_v2.add_answers(Status.OK, ledger_id, [entry_id])
        for ledger_id, entry_id in zip(ledger_ids, entry_ids, strict=True)
    )
