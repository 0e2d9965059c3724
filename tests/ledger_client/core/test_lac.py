"""The LAC: what counts as an answer, when an idle writer speaks, what a reader believes."""

from __future__ import annotations

from itertools import count, permutations

import pytest

from ledger_client.core.commands import AskLac, FailureKind, LacAnswer, LacReadEnded, Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.core.lac import LacAnnouncer, LacRead
from wire.types import BookieId, LedgerId


def lac_read(shape: tuple[int, int, int]) -> LacRead:
    return LacRead(
        ledger_id=LedgerId(1),
        distribution=Distribution(*shape),
        ensemble=[BookieId(f"b{i}") for i in range(shape[0])],
        request_ids=count(),
    )


def test_lac_in_an_answer_that_failed_is_not_believed() -> None:
    read = lac_read((3, 3, 2))
    read.start()
    read.on_answers([LacAnswer(0, Outcome.CORRUPT, 99), LacAnswer(1, Outcome.NO_SUCH_ENTRY, 98)])
    (ended,) = read.on_answers([LacAnswer(2, Outcome.OK, 5)])
    assert ended == LacReadEnded(5)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2), (5, 3, 2), (2, 2, 1), (6, 3, 3)])
def test_lac_read_ends_with_the_answer_that_covers_every_write_set(
    shape: tuple[int, int, int],
) -> None:
    """Every order of answers, up to 120 of them; the one that completes the cover ends the read."""
    distribution = Distribution(*shape)
    for order in list(permutations(range(shape[0])))[:120]:
        read = lac_read(shape)
        assert all(isinstance(command, AskLac) for command in read.start())
        heard: list[int] = []
        for slot in order:
            ended = read.on_answers([LacAnswer(slot, Outcome.OK, slot)])
            heard.append(slot)
            if distribution.is_covered(heard):
                assert ended == [LacReadEnded(max(heard))]
                break
            assert ended == []


def test_lac_read_reports_the_last_error_when_it_cannot_be_covered() -> None:
    read = lac_read((2, 2, 1))
    read.start()
    read.on_answers([LacAnswer(0, Outcome.OK, 4)])
    (ended,) = read.on_answers([LacAnswer(1, Outcome.IO_ERROR)])
    assert isinstance(ended, LacReadEnded)
    assert ended.failure is not None
    assert ended.failure.kind is FailureKind.NOT_COVERED
    assert ended.failure.outcome is Outcome.IO_ERROR


def test_announcer_waits_for_the_idle_time_after_the_last_append_of_many() -> None:
    announcer = LacAnnouncer(0.01)
    announcer.on_append(lac=-1, now=1.995)
    announcer.on_append(lac=-1, now=2.0)
    assert announcer.deadline(0) == pytest.approx(2.01)
    assert not announcer.is_due(0, 2.005)
    assert announcer.is_due(0, 2.01)
    assert announcer.deadline(0) is None


@pytest.mark.parametrize("before", [None, 1.99])
def test_announcer_tells_of_an_append_after_a_silence_at_once(before: float | None) -> None:
    announcer = LacAnnouncer(0.01)
    if before is not None:
        announcer.on_append(lac=-1, now=before)
    announcer.on_append(lac=-1, now=2.0)
    assert announcer.deadline(-1) is None, "it is not confirmed yet"
    assert announcer.deadline(0) == 2.0
    assert announcer.is_due(0, 2.001)
    announcer.on_append(lac=0, now=2.002)
    assert not announcer.is_due(1, 2.003), "there was a next one"


def test_announcer_does_not_repeat_a_lac_that_an_entry_carried() -> None:
    announcer = LacAnnouncer(0.01)
    announcer.on_append(lac=7, now=1.0)
    assert announcer.deadline(7) is None
    assert announcer.deadline(8) is not None


def test_announcer_is_silent_when_it_is_switched_off() -> None:
    announcer = LacAnnouncer(None)
    assert announcer.deadline(5) is None
    assert not announcer.is_due(5, 1e9)
