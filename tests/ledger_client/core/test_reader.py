"""Reading against bookies that lie, lack, rot and fall silent: all entries in order, or an error.

The shell here keeps entries as numbers, so that whatever is delivered can be compared with what was
asked for. Bookies hold also what they should not: entries past their fragment and past the end.
"""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_client.core.commands import (
    AskRead,
    Command,
    Deliver,
    Failure,
    FailureKind,
    Outcome,
    ReadAnswer,
    ReadEnded,
    ReadMetadata,
    ReportCorruption,
)
from ledger_client.core.reader import RangeRead, ReadOptions
from ledger_client.core.replicas import Sticky, more_informative
from metadata.model import LedgerMetadata
from tests.ledger_client.core.test_writer import metadata_of
from wire.types import BookieId

SHAPES = [(1, 1, 1), (3, 3, 2), (4, 2, 2), (5, 3, 2), (3, 2, 1)]


class ReadWorld:
    def __init__(self, metadata: LedgerMetadata, seed: int) -> None:
        self.metadata = metadata
        self.chance = Random(seed)
        self.asks: list[AskRead] = []
        self.given: list[int] = []
        self.sizes: list[int] = []
        self.ended: ReadEnded | None = None
        self.reported: set[tuple[int, BookieId]] = set()
        self.rereads = 0
        #: Replicas that fail, by (entry, bookie).
        self.faults: dict[tuple[int, BookieId], Outcome] = {}

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case AskRead():
                    fragment = self.metadata.fragment_of(command.first)
                    assert command.bookie_id == fragment.ensemble[command.slot]
                    for entry_id in command.entry_ids:
                        assert self.metadata.fragment_of(entry_id) is fragment, "clipped"
                    self.asks.append(command)
                case Deliver(first, last, parts):
                    found: list[int] = []
                    for part in parts:
                        assert isinstance(part.data, list)
                        found += part.data[: part.count]
                        assert found[-part.count :] == list(part.entry_ids)
                        self.sizes.append(part.size)
                    assert sorted(found) == list(range(first, last + 1))
                    self.given += range(first, last + 1)
                case ReadEnded():
                    assert self.ended is None
                    self.ended = command
                case ReportCorruption(entry_id, bookie_id):
                    assert self.faults[entry_id, bookie_id] is Outcome.CORRUPT
                    self.reported.add((entry_id, bookie_id))
                case ReadMetadata():
                    self.rereads += 1

    def answer(self, read: RangeRead) -> None:
        ask = self.asks.pop(self.chance.randrange(len(self.asks)))
        good: list[int] = []
        outcome = Outcome.OK
        for entry_id in ask.entry_ids:
            fault = self.faults.get((entry_id, ask.bookie_id))
            if fault is not None:
                outcome = fault
                break
            good.append(entry_id)
            if self.chance.random() < 0.1:
                break  # its limit of bytes
        if outcome is Outcome.NO_SUCH_ENTRY and good:
            outcome = Outcome.OK  # a batch read stops before what it lacks and says nothing
        if outcome is Outcome.OK and len(good) == ask.count and ask.stride == 1:
            good += [good[-1] + 1] * self.chance.randrange(2)  # more than was asked for
        answer = ReadAnswer(
            request_id=ask.request_id, outcome=outcome, good=len(good), size=len(good), data=good
        )
        self.obey(read.on_answers([answer], 0.0))


@settings(max_examples=300)
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**32),
    faults=st.sampled_from([0.0, 0.1, 0.4]),
    sticky=st.booleans(),
)
def test_reader_brings_every_entry_that_one_replica_can_serve(
    shape: tuple[int, int, int], seed: int, faults: float, sticky: bool
) -> None:
    metadata = metadata_of(shape)
    for start in (7, 13):
        metadata = metadata.with_ensemble_change(
            first_entry_id=start, replacements={0: BookieId(f"c{start}")}
        )
    world = ReadWorld(metadata, seed)
    kinds = (Outcome.NO_SUCH_ENTRY, Outcome.CORRUPT, Outcome.TIMEOUT, Outcome.NOT_CONNECTED)
    first = world.chance.randrange(20)
    last = first + world.chance.randrange(30)
    read = RangeRead(
        metadata,
        first=first,
        last=last,
        options=ReadOptions(
            entries_max=world.chance.choice((1, 3, 50)), bytes_max=8, ahead_bytes=40
        ),
        sticky=Sticky(seed, shape[0]) if sticky else None,
    )
    lost = None
    for entry_id in range(first, last + 1):
        ensemble = metadata.fragment_of(entry_id).ensemble
        bad = [slot for slot in range(shape[0]) if world.chance.random() < faults]
        for slot in bad:
            world.faults[entry_id, ensemble[slot]] = world.chance.choice(kinds)
        slots = [(entry_id + i) % shape[0] for i in range(shape[1])]
        if lost is None and set(slots) <= set(bad):
            lost = entry_id
    world.obey(read.start(0.0))
    while world.ended is None:
        if world.asks:
            world.answer(read)
        elif world.sizes:
            world.obey(read.on_consumed(world.sizes.pop(), 0.0))
        else:
            assert world.rereads, "nothing in flight and nothing to wait for"
            world.obey(read.on_metadata(metadata, 0.0))
    if lost is None:
        assert world.ended.failure is None
        assert world.given == list(range(first, last + 1))
    else:
        assert isinstance(world.ended.failure, Failure)
        assert world.given == list(range(first, first + len(world.given)))
        assert len(world.given) <= lost - first


def test_reader_never_holds_more_than_its_bound_in_bytes() -> None:
    """Short answers included; one request more, if everything held waits for what it will bring."""
    metadata = metadata_of((3, 3, 2))
    options = ReadOptions(entries_max=10, bytes_max=10, ahead_bytes=30)
    read = RangeRead(metadata, first=0, last=999, options=options)
    world = ReadWorld(metadata, 1)
    world.obey(read.start(0.0))
    for _ in range(50):
        while world.asks:
            assert len(world.asks) * 10 + sum(world.sizes) <= 30 + 10
            world.answer(read)
        world.obey(read.on_consumed(world.sizes.pop(0), 0.0))
    assert world.ended is None


def test_reader_asks_for_no_more_while_its_caller_takes_nothing() -> None:
    """The first entry was small, so many were asked for; the others turn out to be large."""
    metadata = metadata_of((3, 3, 2))
    options = ReadOptions(entries_max=1000, bytes_max=10, ahead_bytes=30)
    read = RangeRead(metadata, first=0, last=999, options=options)
    asks = [c for c in read.start(0.0) if isinstance(c, AskRead)]
    brought = 0
    while asks:
        ask = asks.pop(0)
        answer = ReadAnswer(request_id=ask.request_id, good=1, size=10, data=None)
        brought += 10
        asks += [c for c in read.on_answers([answer], 0.0) if isinstance(c, AskRead)]
    assert brought <= 40
    (more,) = read.on_consumed(10, 0.0)
    assert isinstance(more, AskRead)


def test_reader_accepts_answers_in_any_order() -> None:
    for order in permutations(range(3)):
        metadata = metadata_of((3, 2, 2))
        read = RangeRead(metadata, first=0, last=8)
        world = ReadWorld(metadata, 1)
        world.obey(read.start(0.0))
        asks, world.asks = world.asks, []
        for at in order:
            ask = asks[at]
            answer = ReadAnswer(request_id=ask.request_id, good=ask.count, data=list(ask.entry_ids))
            world.obey(read.on_answers([answer], 0.0))
        assert world.given == list(range(9))


@pytest.mark.parametrize(
    ("answers", "kind", "outcome"),
    [
        ("NNN", FailureKind.NO_SUCH_ENTRY, Outcome.NO_SUCH_ENTRY),
        ("NTN", FailureKind.NOT_READ, Outcome.TIMEOUT),
        ("TNN", FailureKind.NOT_READ, Outcome.TIMEOUT),
        ("CNN", FailureKind.NOT_READ, Outcome.NOT_CONNECTED),
        ("CNT", FailureKind.NOT_READ, Outcome.TIMEOUT),
        ("NCN", FailureKind.NOT_READ, Outcome.NOT_CONNECTED),
        ("TCI", FailureKind.NOT_READ, Outcome.TIMEOUT),
        ("CIT", FailureKind.NOT_READ, Outcome.IO_ERROR),
    ],
)
def test_reader_reports_the_first_informative_error(
    answers: str, kind: FailureKind, outcome: Outcome
) -> None:
    letters = {
        "N": Outcome.NO_SUCH_ENTRY,
        "T": Outcome.TIMEOUT,
        "C": Outcome.NOT_CONNECTED,
        "I": Outcome.IO_ERROR,
    }
    error = None
    for letter in answers:
        error = more_informative(error, letters[letter])
    assert error is outcome

    metadata = metadata_of((3, 3, 2))
    read = RangeRead(metadata, first=0, last=0)
    read.start(0.0)
    for request_id, letter in enumerate(answers, 1):
        read.on_answers([ReadAnswer(request_id=request_id, outcome=letters[letter])], 0.0)
    (ended,) = read.on_metadata(metadata, 0.0)
    assert isinstance(ended, ReadEnded)
    assert ended.failure is not None
    assert (ended.failure.kind, ended.failure.outcome) == (kind, outcome)


def test_reader_shows_the_highest_lac_that_answers_brought() -> None:
    read = RangeRead(metadata_of((3, 3, 2)), first=0, last=40)
    read.start(0.0)
    read.on_answers([ReadAnswer(request_id=1, good=16, lac=44)], 0.0)
    read.on_answers([ReadAnswer(request_id=2, good=16, lac=43)], 0.0)
    assert read.lac == 44
