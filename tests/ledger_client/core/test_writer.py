"""The writer against a dumb model that knows every entry and every slot by itself.

The model keeps one set of slots per entry and walks all of them after every event. The writer must
confirm exactly what the model would, no less and no more, whatever the order of answers, failures
and changes; and at every confirmation the recorded ensembles must hold an ack quorum of copies.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_client.core.adds import AddQueue, Batch
from ledger_client.core.commands import (
    AddAnswer,
    ChangeEnsemble,
    CloseLedger,
    Command,
    Confirm,
    FailAdds,
    FailureKind,
    Outcome,
    Package,
    RefuseAdd,
    SendAdd,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.options import ChangeMode, StormLimits, WriterOptions
from ledger_client.core.writer import Writer
from metadata.model import LedgerMetadata, new_ledger
from wire.types import ID_MAX, BookieId, DigestType, LedgerId

SHAPES = [
    (ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def metadata_of(shape: tuple[int, int, int]) -> LedgerMetadata:
    return new_ledger(
        ledger_id=LedgerId(1),
        ensemble=[BookieId(f"b{i}") for i in range(shape[0])],
        write_quorum=shape[1],
        ack_quorum=shape[2],
        digest_type=DigestType.CRC32C,
        password=b"",
    )


class Model:
    """A writer's world: bookies that store, a store that records, and the dumb bookkeeping."""

    def __init__(self, shape: tuple[int, int, int], mode: ChangeMode, seed: int) -> None:
        self.shape = shape
        self.chance = Random(seed)
        self.metadata = metadata_of(shape)
        self.writer = Writer(
            self.metadata,
            WriterOptions(change_mode=mode, storm=StormLimits(rounds_max=10**6, seconds_max=0.0)),
        )
        self.requests: dict[int, tuple[int, int, BookieId, list[int]]] = {}
        self.answered: list[int] = []
        self.tenures = [0] * shape[0]
        self.ensemble = list(self.metadata.last_fragment.ensemble)
        self.copies: dict[BookieId, set[int]] = {}
        self.acks: list[set[int]] = []
        self.ends: list[int] = []  # last entries of batches
        self.confirmed = -1
        self.change: ChangeEnsemble | None = None
        self.parts: dict[int, set[int]] = {}  # requests answered in part
        self.sent_copies: dict[int, Batch] = {}  # by numbers of our own, below zero

    # ------------------------------------------------------------------ what may happen

    def add(self) -> None:
        count = self.chance.choice((1, 1, 2, 3, 7))
        if count > 1 or self.chance.random() < 0.3 or not self.add_one():
            self.obey(self.writer.add(count=count, size=count, now=0.0))

    def add_one(self) -> bool:
        batch = self.writer.add_one(size=1, now=0.0)
        assert (batch is None) == (self.change is not None or bool(self.writer._late))
        if batch is None:
            return False
        entry_id = len(self.acks)
        assert (batch.first, batch.last, self.writer.length) == (entry_id, entry_id, entry_id + 1)
        self.acks.append(set())
        self.ends.append(entry_id)
        for slot in self.writer.distribution.write_set(entry_id):
            number = -1 - len(self.sent_copies)
            self.sent_copies[number] = batch
            bookie_id = self.writer.ensemble[slot]
            assert bookie_id == self.metadata.last_fragment.ensemble[slot]
            self.requests[number] = (slot, self.tenures[slot], bookie_id, [entry_id])
        return True

    def answer(self, outcome: Outcome = Outcome.OK) -> None:
        if not self.requests:
            return
        request_id = self.chance.choice(list(self.requests))
        slot, tenure, bookie_id, entries = self.requests[request_id]
        chosen = list(entries)
        if outcome is Outcome.OK and self.chance.random() < 0.3:
            chosen = [e for e in entries if self.chance.random() < 0.6] or entries[:1]
            self.parts.setdefault(request_id, set()).update(chosen)
            done = self.parts[request_id] >= set(entries)
        else:
            done = True
        if done:
            del self.requests[request_id]
            self.answered.append(request_id)
        if outcome is Outcome.OK:
            self.copies.setdefault(bookie_id, set()).update(chosen)
            if done and tenure == self.tenures[slot]:
                for entry_id in entries:
                    self.acks[entry_id].add(slot)
        if request_id < 0:
            self.tell_copy(request_id, bookie_id, outcome)
            return
        whole = outcome is not Outcome.OK or (done and self.chance.random() < 0.5)
        answer = AddAnswer(request_id, outcome, None if whole else chosen)
        self.obey(self.writer.on_answers([answer], 0.0))

    def tell_copy(self, number: int, bookie_id: BookieId, outcome: Outcome) -> None:
        batch = self.sent_copies[number]
        if outcome is Outcome.OK:
            self.obey(self.writer.on_copy(batch, bookie_id))
        else:
            self.obey(self.writer.on_copy_failed(batch, bookie_id, outcome, 0.0))

    def answer_again(self) -> None:
        if not self.answered:
            return
        outcome = self.chance.choice((Outcome.OK, Outcome.TIMEOUT))
        request_id = self.chance.choice(self.answered)
        if request_id < 0:
            batch = self.sent_copies[request_id]
            # Any bookie of it, so that some are told twice, and none before its first answer.
            slot = batch.ensemble.index(self.chance.choice(batch.ensemble))
            if not batch.copies >> slot & 1:
                self.tell_copy(request_id, batch.ensemble[slot], outcome)
            return
        self.obey(self.writer.on_answers([AddAnswer(request_id, outcome)], 0.0))

    def end_change(self) -> None:
        if self.change is None:
            return
        failed = self.metadata.failed_slots(self.change.failed)
        spares = [BookieId(f"b{i}") for i in range(self.shape[0] * 2 + 1)]
        self.chance.shuffle(spares)
        replacements: dict[int, BookieId] = {}
        for slot in failed:
            taken = set(self.metadata.last_fragment.ensemble) | set(replacements.values())
            replacements[slot] = next(b for b in spares if b not in taken)
        if len(replacements) > 1 and self.chance.random() < 0.3:
            replacements.popitem()  # a partial change
        self.metadata = self.metadata.with_ensemble_change(
            first_entry_id=self.change.first_entry_id, replacements=replacements
        )
        for slot, bookie_id in replacements.items():
            self.tenures[slot] += 1
            self.ensemble[slot] = bookie_id
            for entry_id in range(self.confirmed + 1, len(self.acks)):
                self.acks[entry_id].discard(slot)
        self.change = None
        self.obey(self.writer.on_ensemble_changed(self.metadata, 0.0))

    # ------------------------------------------------------------------ what must hold

    def obey(self, commands: list[Command]) -> None:
        told = None
        for command in commands:
            match command:
                case Package(first, last, lac, length):
                    assert (first, length) == (len(self.acks), len(self.acks))
                    assert lac == self.confirmed
                    self.acks += (set() for _ in range(first, last + 1))
                    self.ends.append(last)
                case SendAdd(request_id, slot, bookie_id, first, last):
                    assert bookie_id == self.metadata.last_fragment.ensemble[slot]
                    assert told is None, "everything is sent before anything is confirmed"
                    distribution = self.writer.distribution
                    entries = list(distribution.entries_of(slot=slot, first=first, last=last))
                    assert entries
                    self.requests[request_id] = (slot, self.tenures[slot], bookie_id, entries)
                case ChangeEnsemble():
                    assert self.change is None
                    assert command.first_entry_id == self.confirmed + 1
                    self.change = command
                case Confirm(through):
                    told = through
                case _:
                    raise AssertionError(command)
        if self.change is None:
            for end in self.ends:
                due = range(self.confirmed + 1, end + 1)
                if due and all(len(self.acks[e]) >= self.shape[2] for e in due):
                    self.check_copies(due)
                    self.confirmed = end
                elif due:
                    break
        assert self.writer.lac == self.writer.confirmed == self.confirmed
        assert told in (None, self.confirmed)

    def check_copies(self, entries: range) -> None:
        """I2: an ack quorum of the recorded write set holds each entry at this moment."""
        for entry_id in entries:
            ensemble = self.metadata.fragment_of(entry_id).ensemble
            holders = [
                slot
                for slot in self.writer.distribution.write_set(entry_id)
                if entry_id in self.copies.get(ensemble[slot], ())
            ]
            assert len(holders) >= self.shape[2]


@settings(max_examples=300)
@given(
    shape=st.sampled_from(SHAPES),
    mode=st.sampled_from([ChangeMode.IMMEDIATE, ChangeMode.DELAYED]),
    seed=st.integers(0, 2**32),
)
def test_writer_confirms_exactly_what_the_dumb_model_does(
    shape: tuple[int, int, int], mode: ChangeMode, seed: int
) -> None:
    model = Model(shape, mode, seed)
    failures = model.chance.choice((0.02, 0.1, 0.3))
    for _ in range(60):
        draw = model.chance.random()
        if draw < failures:
            model.answer(model.chance.choice((Outcome.TIMEOUT, Outcome.READ_ONLY)))
        elif draw < 0.5:
            model.answer()
        elif draw < 0.7:
            model.add()
        elif draw < 0.8:
            model.answer_again()
        else:
            model.end_change()
    # Then the world heals, and everything must be confirmed.
    for _ in range(5000):
        if model.change is not None:
            model.end_change()
        elif model.requests:
            model.answer()
        else:
            break
    assert model.confirmed == model.writer.last_pushed
    assert model.writer.is_idle


def test_copies_on_their_way_to_a_bookie_that_is_replaced_are_sent_to_its_successor() -> None:
    metadata = metadata_of((3, 3, 2))
    writer = Writer(metadata)
    first, second = (writer.add_one(size=1, now=0.0) for _ in range(2))
    assert first is not None
    assert second is not None
    old = metadata.last_fragment.ensemble[0]
    (change,) = writer.on_copy_failed(first, old, Outcome.TIMEOUT, 0.0)
    assert isinstance(change, ChangeEnsemble)
    assert writer.add_one(size=1, now=0.0) is None  # `add` leaves out the slot that failed
    changed = metadata.with_ensemble_change(first_entry_id=0, replacements={0: BookieId("b9")})
    sends = writer.on_ensemble_changed(changed, 0.0)
    assert [(send.bookie_id, send.first) for send in sends if isinstance(send, SendAdd)] == [
        ("b9", 0),
        ("b9", 1),
    ]
    assert writer.on_copy(second, old) == []  # it has left
    assert second.acknowledged == 0
    assert writer.on_copy(second, metadata.last_fragment.ensemble[1]) == []
    writer.on_copy(first, metadata.last_fragment.ensemble[1])
    assert writer.on_copy(first, metadata.last_fragment.ensemble[2]) == [Confirm(0)]


def test_failure_of_a_copy_behind_the_quorum_has_the_bookie_replaced_by_the_next_add() -> None:
    writer = Writer(metadata_of((3, 3, 2)))
    batch = writer.add_one(size=1, now=0.0)
    assert batch is not None
    assert writer.on_copy(batch, BookieId("b0")) == []
    assert writer.on_copy(batch, BookieId("b1")) == [Confirm(0)]
    assert writer.on_copy_failed(batch, BookieId("b2"), Outcome.TIMEOUT, 0.0) == []
    assert writer.add_one(size=1, now=0.0) is None
    change, *_ = writer.add(count=1, size=1, now=0.0)
    assert isinstance(change, ChangeEnsemble)
    assert change.failed == {2: "b2"}


def test_copies_mean_nothing_after_the_end_of_the_handle() -> None:
    writer = Writer(metadata_of((3, 3, 2)))
    batch = writer.add_one(size=1, now=0.0)
    assert batch is not None
    failed, *_ = writer.on_copy_failed(batch, BookieId("b0"), Outcome.FENCED, 0.0)
    assert isinstance(failed, FailAdds)
    assert writer.on_copy(batch, BookieId("b1")) == []
    assert writer.on_copy(batch, BookieId("b2")) == []
    assert writer.on_copy_failed(batch, BookieId("b1"), Outcome.TIMEOUT, 0.0) == []
    assert writer.add_one(size=1, now=0.0) is None


def test_writer_spends_a_bounded_number_of_objects_per_batch() -> None:
    """A batch of ten thousand entries is one package and one sending per slot."""
    writer = Writer(metadata_of((5, 3, 2)))
    commands = writer.add(count=10_000, size=10_000, now=0.0)
    assert len(commands) == 1 + 5


def test_writer_stops_when_the_record_was_changed_by_somebody_else() -> None:
    """A fragment above LAC + 1 means that another client re-homed entries that we never sent."""
    metadata = metadata_of((3, 3, 2))
    writer = Writer(metadata)
    writer.add(count=1, size=1, now=0.0)
    writer.on_answers([AddAnswer(1, Outcome.TIMEOUT)], 0.0)
    foreign = metadata.with_ensemble_change(first_entry_id=5, replacements={0: BookieId("b9")})
    (failed,) = writer.on_ensemble_changed(foreign, 0.0)
    assert isinstance(failed, FailAdds)
    assert failed.failure.kind is FailureKind.METADATA_CONFLICT


def test_writer_takes_the_ensemble_of_the_moment_an_add_is_queued() -> None:
    """F13: whatever held an add up, it is never sent to, or counted for, an older ensemble."""
    metadata = metadata_of((3, 3, 2))
    writer = Writer(metadata)
    writer.add(count=1, size=1, now=0.0)
    writer.on_answers([AddAnswer(1, Outcome.TIMEOUT)], 0.0)
    changed = metadata.with_ensemble_change(first_entry_id=0, replacements={0: BookieId("b9")})
    writer.on_ensemble_changed(changed, 0.0)
    sends = [c for c in writer.add(count=1, size=1, now=0.0) if isinstance(c, SendAdd)]
    assert [send.bookie_id for send in sends] == ["b9", "b1", "b2"]


def test_writer_recognises_a_change_whose_answer_was_lost() -> None:
    """F15: the record already has the change, which the loop found without writing again."""
    metadata = metadata_of((3, 3, 2))
    writer = Writer(metadata)
    writer.add(count=1, size=1, now=0.0)
    writer.on_answers([AddAnswer(1, Outcome.TIMEOUT)], 0.0)
    changed = metadata.with_ensemble_change(first_entry_id=0, replacements={0: BookieId("b9")})
    assert not changed.needs_ensemble_change({0: BookieId("b0")})
    (send,) = writer.on_ensemble_changed(changed, 0.0)
    assert isinstance(send, SendAdd)
    assert (send.slot, send.bookie_id) == (0, "b9")


def test_writer_refuses_an_add_beyond_the_last_entry_id() -> None:
    writer = Writer(metadata_of((1, 1, 1)))
    writer.add_given([ID_MAX], [1], now=0.0)
    (refused,) = writer.add(count=1, size=1, now=0.0)
    assert isinstance(refused, RefuseAdd)
    assert refused.failure.kind is FailureKind.BAD_ENTRY_ID


@pytest.mark.parametrize("entry_id", [2**31 - 1, 2**31, 2**32, ID_MAX])
def test_writer_stripes_large_ids_as_the_reader_looks_for_them(entry_id: int) -> None:
    """F59."""
    writer = Writer(metadata_of((5, 3, 2)))
    commands = writer.add_given([entry_id], [1], now=0.0)
    slots = {command.slot for command in commands if isinstance(command, SendAdd)}
    assert slots == set(writer.distribution.write_set(entry_id))


def test_writer_survives_a_failure_between_an_answer_and_the_confirmation() -> None:
    """F11: one receive buffer brings the quorum and a failure of another batch, in either order."""
    for answers in (
        [AddAnswer(1), AddAnswer(2), AddAnswer(4, Outcome.TIMEOUT)],
        [AddAnswer(4, Outcome.TIMEOUT), AddAnswer(1), AddAnswer(2)],
        [AddAnswer(1), AddAnswer(4, Outcome.TIMEOUT), AddAnswer(2)],
    ):
        writer = Writer(metadata_of((3, 3, 2)))
        writer.add(count=1, size=1, now=0.0)
        writer.add(count=1, size=1, now=0.0)
        (change,) = writer.on_answers(answers, 0.0)
        assert isinstance(change, ChangeEnsemble)
        assert (change.first_entry_id, writer.lac) == (0, -1)


def test_fatal_error_in_the_middle_of_a_buffer_silences_the_rest_of_it() -> None:
    writer = Writer(metadata_of((3, 3, 2)))
    writer.add(count=1, size=1, now=0.0)
    answers = [AddAnswer(1), AddAnswer(2, Outcome.FENCED), AddAnswer(3)]
    commands = writer.on_answers(answers, 0.0)
    assert [type(command) for command in commands] == [FailAdds, CloseLedger]


def test_queue_finds_entries_in_the_middle_and_at_the_edges_of_batches() -> None:
    queue = AddQueue(Distribution(1, 1, 1), [BookieId("b0")], iter(range(9)))
    for first, last in ((5, 7), (0, 1), (3, 3)):
        queue.push(Batch(first, last, 1, 0.0))
    assert [e for e in range(-1, 10) if queue.holds(e)] == [0, 1, 3, 5, 6, 7]
    assert [batch.first for batch in queue] == [0, 3, 5]


def test_entry_answers_in_any_order_count_when_all_are_there() -> None:
    """A row that begins and ends like a run but is none must not pass for one."""
    queue = AddQueue(Distribution(1, 1, 1), [BookieId("b0")], iter(range(9)))
    batch = Batch(0, 4, 1, 0.0)
    queue.push(batch)
    for entry_ids in ([0, 4, 2], [0, 0, 2], [3, 3], range(4, 5), [-1, 0, 1], [4, 5, 6]):
        queue.take(AddAnswer(0, entry_ids=entry_ids))
    assert queue.is_achieved(batch)

    short = AddQueue(Distribution(1, 1, 1), [BookieId("b0")], iter(range(9)))
    batch = Batch(0, 2, 1, 0.0)
    short.push(batch)
    short.take(AddAnswer(0, entry_ids=[0, 7, 2]))
    assert not short.is_achieved(batch)


@given(
    shape=st.sampled_from(SHAPES),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_answers_kept_back_never_hide_a_confirmation(
    shape: tuple[int, int, int], counts: list[int], seed: int
) -> None:
    """Good answers are seen when there are as many as `answers_wanted`, or with the next thing."""
    prompt, lazy = Writer(metadata_of(shape)), Writer(metadata_of(shape))
    sends: list[SendAdd] = []
    for n in counts:
        commands = prompt.add(count=n, size=n, now=0.0)
        assert lazy.add(count=n, size=n, now=0.0) == commands
        sends += [command for command in commands if isinstance(command, SendAdd)]
    Random(seed).shuffle(sends)
    kept: list[AddAnswer] = []
    for send in sends:
        answer = AddAnswer(send.request_id, Outcome.OK, None)
        prompt.on_answers([answer], 0.0)
        kept.append(answer)
        if len(kept) >= lazy.answers_wanted:
            lazy.on_answers(kept, 0.0)
            kept = []
        assert lazy.confirmed == prompt.confirmed
    lazy.on_answers(kept, 0.0)
    assert lazy.confirmed == prompt.confirmed == sum(counts) - 1
