"""Verdicts, their records, and ranges of lost entries."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from autorecovery.core.parking import (
    Parked,
    Reason,
    Verdict,
    decode_parked,
    encode_parked,
    joined,
    ranges_text,
)
from metadata.model import InvalidMetadataError
from wire.types import BookieId

A = BookieId("bk1:3181")


@pytest.mark.parametrize("reason", list(Reason))
def test_a_record_brings_the_verdict_back(reason: Reason) -> None:
    verdict = Verdict(reason=reason, detail="why", lost=((1, 2), (9, 9)), waits_for=(A,))
    parked = Parked(verdict=verdict, time_ms=12, is_accepted=True)
    assert decode_parked(encode_parked(parked)) == parked


FIELDS: dict[str, object] = {
    "reason": "no source",
    "detail": "",
    "lost": [],
    "waitsFor": [],
    "timeMs": 1,
    "accepted": True,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "tired"},
        {"detail": 1},
        {"lost": [[2, 1]]},
        {"lost": [[1]]},
        {"lost": [[-1, 1]]},
        {"lost": 5},
        {"waitsFor": ["a/b"]},
        {"waitsFor": [7]},
        {"timeMs": "now"},
        {"accepted": 1},
    ],
)
def test_a_verdict_with_a_wrong_field_is_refused(changes: dict[str, object]) -> None:
    decode_parked(json.dumps(FIELDS).encode())
    with pytest.raises(InvalidMetadataError, match="parked is no verdict"):
        decode_parked(json.dumps(FIELDS | changes).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000])
def test_what_is_no_verdict_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError, match="parked is no verdict"):
        decode_parked(data)


def test_ranges_that_touch_or_overlap_are_joined() -> None:
    assert joined([(5, 6), (0, 1), (2, 3), (3, 4), (9, 9)]) == ((0, 6), (9, 9))


@pytest.mark.parametrize("seed", range(50))
def test_too_many_ranges_are_joined_over_their_smallest_gaps(seed: int) -> None:
    chance = random.Random(seed)
    bounds = sorted(chance.sample(range(1000), 60))
    ranges = [(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
    exact = joined(ranges)
    few = joined(ranges, count_max=7)
    assert len(few) <= 7
    for first, last in exact:
        assert any(a <= first and last <= b for a, b in few), "an entry went missing"
    kept = {b[0] - a[1] for a, b in pairwise(few)}
    gaps = sorted((b[0] - a[1] for a, b in pairwise(exact)), reverse=True)
    assert min(kept) >= gaps[len(few) - 2]


def test_a_record_stays_small_whatever_was_lost() -> None:
    lost = tuple((i * 10, i * 10) for i in range(100_000))
    parked = Parked(verdict=Verdict(reason=Reason.LOST, detail="x" * 10_000, lost=lost), time_ms=1)
    assert len(encode_parked(parked)) < 50_000


def test_a_verdict_of_loss_names_the_entries() -> None:
    verdict = Verdict(reason=Reason.LOST, lost=((3, 3), (7, 9)))
    assert verdict.text == "unrecoverable: these entries are lost: 3, 7-9"


def test_a_verdict_of_absence_names_whom_to_start() -> None:
    verdict = Verdict(reason=Reason.NO_SOURCE, waits_for=(A,), detail="entries 0-9")
    assert verdict.text == "no source: waiting for bk1:3181: entries 0-9"


def test_many_ranges_are_abridged_for_people() -> None:
    assert ranges_text([(i, i) for i in range(12)]).endswith("8, 9, and 2 more ranges")
    assert ranges_text([]) == "none named"
