"""The copy of a job, played against bookies that are dictionaries, in any order of answers."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorecovery.core.copying import BUSY_MAX, AddPiece, Command, Copy, ReadPiece
from autorecovery.core.copying_pace import WINDOW_BYTES_FIRST, WINDOW_BYTES_MIN, Pace, Rate
from autorecovery.core.fragments import CopyJob, Run
from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from metadata.model import Fragment
from wire.types import BookieId

NAMES = tuple(BookieId(f"bk{number}:3181") for number in range(6))
NEW = BookieId("new:3181")
CORRUPT = b"?"
UNREADABLE = b"disk"
BAD = {CORRUPT: Outcome.CORRUPT, UNREADABLE: Outcome.IO_ERROR}


class Bookies:
    """What each bookie holds. An absent bookie does not know the ledger; a mute one times out."""

    def __init__(self) -> None:
        self.held: dict[BookieId, dict[int, bytes]] = {}
        self.mute: set[BookieId] = set()
        self.refusing: dict[BookieId, Outcome] = {}
        self.busy: dict[BookieId, int] = {}
        self.reads = 0

    def answer(self, copy: Copy, command: Command, *, short: int) -> list[Command]:
        if isinstance(command, ReadPiece):
            return self._read(copy, command, short)
        return self._add(copy, command)

    def _read(self, copy: Copy, command: ReadPiece, short: int) -> list[Command]:
        self.reads += 1
        bookie_id = command.bookie_id
        if bookie_id in self.mute:
            return copy.on_read(command.request_id, Outcome.TIMEOUT)
        held = self.held.get(bookie_id)
        if held is None:
            return copy.on_read(command.request_id, Outcome.NO_SUCH_LEDGER)
        bodies, outcome = [], Outcome.OK
        for entry_id in command.entry_ids[:short]:
            body = held.get(entry_id)
            if body is None or body in BAD:
                outcome = Outcome.NO_SUCH_ENTRY if body is None else BAD[body]
                break
            bodies.append(body)
        return copy.on_read(command.request_id, outcome, good=len(bodies), records=b"".join(bodies))

    def _add(self, copy: Copy, command: AddPiece) -> list[Command]:
        bookie_id = command.bookie_id
        if self.busy.get(bookie_id, 0) > 0:
            self.busy[bookie_id] -= 1
            return copy.on_add(command.request_id, Outcome.TOO_MANY_REQUESTS)
        if bookie_id in self.refusing:
            return copy.on_add(command.request_id, self.refusing[bookie_id])
        bodies = [command.records[at : at + 4] for at in range(0, len(command.records), 4)]
        assert BAD.keys().isdisjoint(bodies)
        self.held.setdefault(bookie_id, {}).update(zip(command.entry_ids, bodies, strict=True))
        half = len(bodies) // 2
        if half and len(bodies) % 2:  # as bookies answer that take entries one by one
            copy.on_add(command.request_id, Outcome.OK, confirmed=half)
            return copy.on_add(command.request_id, Outcome.OK, confirmed=len(bodies) - half)
        return copy.on_add(command.request_id, Outcome.OK)


def body(entry_id: int) -> bytes:
    return entry_id.to_bytes(4, "big")


def play(copy: Copy, bookies: Bookies, chance: Random, *, window: int = 4) -> None:
    open_commands: list[Command] = []
    for _ in range(100_000):
        while copy.has_more and len(open_commands) < window:
            open_commands += copy.begin()
        if not open_commands:
            break
        command = open_commands.pop(chance.randrange(len(open_commands)))
        open_commands += bookies.answer(copy, command, short=chance.choice([1, 3, 1000]))
    assert copy.is_over
    assert not copy.in_flight


def full(shape: Distribution, entries: int) -> Bookies:
    bookies = Bookies()
    for slot in range(shape.ensemble_size):
        bookies.held[NAMES[slot]] = {
            entry_id: body(entry_id)
            for entry_id in range(entries)
            if shape.holds(slot=slot, entry_id=entry_id)
        }
    return bookies


def job_of(shape: Distribution, entries: int, bad: dict[int, BookieId]) -> CopyJob:
    ensemble = NAMES[: shape.ensemble_size]
    sources = tuple(slot for slot in range(shape.ensemble_size) if slot not in bad)
    return CopyJob(shape, Fragment(0, ensemble), ((0, entries - 1),), bad, sources)


def started(job: CopyJob, *, accepted: tuple[Run, ...] = ()) -> Copy:
    return Copy(job, request_ids=itertools.count(), entry_bytes=40_000, accepted=accepted)


shapes = st.integers(2, 5).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(1, size)).map(
        lambda pair: Distribution(pair[0], pair[1], 1)
    )
)


@given(
    shape=shapes,
    entries=st.integers(1, 60),
    holes=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 59)), max_size=60),
    rotten=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 59)), max_size=10),
    wiped=st.sets(st.integers(0, 4), max_size=1),
    mute=st.sets(st.integers(0, 4), max_size=1),
    seed=st.integers(0, 1000),
)
def test_copy_is_complete_exactly_if_every_entry_has_a_source(
    shape: Distribution,
    entries: int,
    holes: set[tuple[int, int]],
    rotten: set[tuple[int, int]],
    wiped: set[int],
    mute: set[int],
    seed: int,
) -> None:
    """F30, F46, F47: holes and rot at the sources, one that lost all, one that does not answer."""
    bookies = full(shape, entries)
    for slot, entry_id in holes:
        bookies.held.get(NAMES[slot], {}).pop(entry_id, None)
    for slot, entry_id in rotten:
        if entry_id in bookies.held.get(NAMES[slot], {}):
            bookies.held[NAMES[slot]][entry_id] = CORRUPT
    for slot in wiped:
        bookies.held.pop(NAMES[slot], None)
    bookies.mute = {NAMES[slot] for slot in mute}
    before = {bookie: dict(held) for bookie, held in bookies.held.items()}
    copy = started(job_of(shape, entries, {0: NEW}))

    play(copy, bookies, Random(seed))

    lost, unread = 0, 0
    for entry_id in range(entries):
        slots = shape.write_set(entry_id)
        if 0 not in slots:
            continue
        others = [NAMES[slot] for slot in slots if slot != 0]
        good = [b for b in others if before.get(b, {}).get(entry_id) == body(entry_id)]
        if any(b not in bookies.mute for b in good):
            continue
        if any(b in bookies.mute for b in others):
            unread += 1
        else:
            lost += 1
    assert (copy.lost.count, copy.unread.count) == (lost, unread)
    assert copy.is_complete == (lost == unread == 0)
    if copy.is_complete:
        must = {e: body(e) for e in range(entries) if shape.holds(slot=0, entry_id=e)}
        assert bookies.held.get(NEW, {}) == must
        assert copy.entries_copied == len(must)
    assert CORRUPT not in bookies.held.get(NEW, {}).values()


def test_hole_at_a_source_is_filled_on_the_way() -> None:
    """F46: acknowledged by two of three, the third lacks it, and one of the two is lost."""
    shape = Distribution(3, 3, 2)
    bookies = full(shape, 40)
    del bookies.held[NAMES[1]][17]
    bookies.held[NAMES[1]][30] = CORRUPT
    copy = started(job_of(shape, 40, {0: NEW}))
    play(copy, bookies, Random(1))
    assert copy.is_complete
    assert bookies.held[NAMES[1]] == bookies.held[NEW] == {e: body(e) for e in range(40)}
    assert (copy.filled, copy.unfilled) == ({NAMES[1]}, set())


def test_source_that_lost_the_ledger_gets_it_back_whole() -> None:
    shape = Distribution(3, 3, 2)
    bookies = full(shape, 40)
    del bookies.held[NAMES[1]]
    copy = started(job_of(shape, 40, {0: NEW}))
    play(copy, bookies, Random(1))
    assert copy.is_complete
    assert bookies.held[NAMES[1]] == {e: body(e) for e in range(40)}


def test_source_that_will_not_be_filled_does_not_spoil_the_copy() -> None:
    shape = Distribution(3, 3, 2)
    bookies = full(shape, 10)
    del bookies.held[NAMES[1]][4]
    bookies.refusing[NAMES[1]] = Outcome.READ_ONLY
    copy = started(job_of(shape, 10, {0: NEW}))
    play(copy, bookies, Random(1))
    assert copy.is_complete
    assert copy.unfilled == {NAMES[1]}


def test_source_in_trouble_is_asked_last_from_then_on() -> None:
    shape = Distribution(3, 3, 2)
    bookies = full(shape, 400)
    bookies.mute = {NAMES[1]}
    copy = started(job_of(shape, 400, {0: NEW}))
    play(copy, bookies, Random(1), window=1)
    assert copy.is_complete
    assert copy.troubles == {NAMES[1]: Outcome.TIMEOUT}


def test_failed_target_ends_the_copy() -> None:
    shape = Distribution(3, 3, 2)
    bookies = full(shape, 400)
    bookies.refusing[NEW] = Outcome.NOT_CONNECTED
    copy = started(job_of(shape, 400, {0: NEW}))
    play(copy, bookies, Random(1))
    assert copy.failed == {NEW: Outcome.NOT_CONNECTED}
    assert not copy.is_complete
    assert bookies.reads < 20


def test_busy_target_is_asked_again_a_few_times() -> None:
    shape = Distribution(3, 3, 2)
    for times, is_complete in ((BUSY_MAX, True), (BUSY_MAX + 1, False)):
        bookies = full(shape, 3)
        bookies.busy[NEW] = times
        copy = started(job_of(shape, 3, {0: NEW}))
        play(copy, bookies, Random(1), window=1)
        assert copy.is_complete == is_complete


def test_two_slots_are_filled_from_one_reading() -> None:
    shape = Distribution(4, 3, 2)
    other = BookieId("other:3181")
    bookies = full(shape, 100)
    copy = started(job_of(shape, 100, {0: NEW, 2: other}))
    play(copy, bookies, Random(3))
    assert copy.is_complete
    for slot, bookie in ((0, NEW), (2, other)):
        assert bookies.held[bookie] == {
            e: body(e) for e in range(100) if shape.holds(slot=slot, entry_id=e)
        }


def test_quorum_of_one_without_its_bookie_is_lost_at_once() -> None:
    bookies = full(Distribution(2, 1, 1), 50)
    copy = started(job_of(Distribution(2, 1, 1), 50, {0: NEW}))
    play(copy, bookies, Random(1))
    assert copy.lost.count == 25
    assert copy.lost.runs[:2] == ((0, 0), (2, 2))
    assert bookies.reads == 0


def test_accepted_loss_leaves_out_what_is_lost_and_nothing_else() -> None:
    shape = Distribution(2, 2, 1)
    bookies = full(shape, 20)
    del bookies.held[NAMES[1]][5]
    copy = started(job_of(shape, 20, {0: NEW}), accepted=((4, 6),))
    play(copy, bookies, Random(1))
    assert copy.is_complete
    assert (copy.lost.runs, copy.given_up.runs) == ((), ((5, 5),))
    assert bookies.held[NEW] == {e: body(e) for e in range(20) if e != 5}


def test_loss_beyond_what_was_accepted_is_a_loss() -> None:
    shape = Distribution(2, 2, 1)
    bookies = full(shape, 20)
    del bookies.held[NAMES[1]][5], bookies.held[NAMES[1]][9]
    copy = started(job_of(shape, 20, {0: NEW}), accepted=((4, 6),))
    play(copy, bookies, Random(1))
    assert not copy.is_complete
    assert copy.lost.runs == ((9, 9),)


def test_verifying_reads_every_copy_of_a_bookie_and_makes_bad_ones_good() -> None:
    """F30: a copy whose digest is wrong is replaced where it is."""
    shape = Distribution(4, 3, 2)
    bookies = full(shape, 60)
    whole = dict(bookies.held[NAMES[2]])
    rotten, missing, unreadable = sorted(whole)[10], sorted(whole)[20], sorted(whole)[30]
    bookies.held[NAMES[2]][rotten] = CORRUPT
    bookies.held[NAMES[2]][unreadable] = UNREADABLE
    del bookies.held[NAMES[2]][missing]
    job = CopyJob(shape, Fragment(0, NAMES[:4]), ((0, 59),), {}, (2, 0, 1, 3), verified=2)
    copy = started(job)
    play(copy, bookies, Random(1))
    assert copy.is_complete
    assert bookies.held[NAMES[2]] == whole
    assert copy.filled == {NAMES[2]}


def test_an_entry_that_a_disk_cannot_read_and_nobody_else_has_is_not_lost() -> None:
    shape = Distribution(2, 2, 1)
    bookies = full(shape, 10)
    bookies.held[NAMES[1]][4] = UNREADABLE
    del bookies.held[NAMES[0]][4]
    job = CopyJob(shape, Fragment(0, NAMES[:2]), ((0, 9),), {}, (1, 0), verified=1)
    copy = started(job)
    play(copy, bookies, Random(1))
    assert not copy.lost.count
    assert copy.unread.runs == ((4, 4),)


# ---------------------------------------------------------------------- pace


def answer(pace: Pace, seconds: float, moments: range) -> None:
    """A piece at each of these moments, which took so long."""
    for moment in moments:
        pace.sent(200_000)
        pace.answered(200_000, seconds=seconds, now=float(moment))


def test_window_grows_while_answers_are_prompt_and_shrinks_when_they_are_late() -> None:
    pace = Pace()
    answer(pace, 0.002, range(1000))
    grown = pace.window_bytes
    assert grown > 2_000_000
    answer(pace, 0.5, range(1000, 1070))
    assert pace.window_bytes < grown / 4
    answer(pace, 0.5, range(1070, 1110))
    assert pace.window_bytes == WINDOW_BYTES_MIN
    answer(pace, 0.5, range(1110, 3000))
    assert pace.window_bytes > grown / 4, "a bookie that is slow for good is not late for ever"
    assert pace.in_flight_bytes == 0


@pytest.mark.parametrize(("prompt", "grows"), [(3, False), (7, True)])
def test_window_stands_where_one_answer_of_six_is_late(prompt: int, grows: bool) -> None:
    pace = Pace()
    answer(pace, 0.002, range(3))
    answer(pace, 0.05, range(3, 4))
    before = pace.window_bytes
    for moment in range(4, 4 + 10 * (prompt + 1), prompt + 1):
        answer(pace, 0.002, range(moment, moment + prompt))
        answer(pace, 0.05, range(moment + prompt, moment + prompt + 1))
    assert (pace.window_bytes > before) is grows


def test_nothing_is_taken_from_writers_before_it_is_known_what_the_target_bears() -> None:
    """The first window is a part of a piece, and not known to be late it grows by a quarter."""
    pace = Pace()
    assert pace.window_bytes < 200_000
    answer(pace, 0.02, range(1))
    assert pace.window_bytes <= WINDOW_BYTES_FIRST * 5 // 4
    answer(pace, 0.002, range(1, 30))
    assert pace.window_bytes > 1_000_000, "nobody else was there"


def test_one_piece_is_always_let_through() -> None:
    pace = Pace()
    assert pace.has_room(10**9, 0.0)
    pace.sent(10**9)
    assert not pace.has_room(1, 0.0)
    pace.forgotten(10**9)
    assert pace.has_room(1, 0.0)


def test_window_smaller_than_a_piece_is_a_pause_behind_each() -> None:
    pace = Pace()
    answer(pace, 0.002, range(10))
    answer(pace, 0.02, range(10, 40))
    pace.sent(4 * WINDOW_BYTES_MIN)
    pace.answered(4 * WINDOW_BYTES_MIN, seconds=0.05, now=40.0)
    assert not pace.has_room(1, 40.1)
    assert pace.has_room(1, 40.151), "a quarter of the time, one piece: on average, the window"
    pace.sent(4 * WINDOW_BYTES_MIN)
    pace.answered(4 * WINDOW_BYTES_MIN, seconds=60.0, now=200.0)
    assert pace.has_room(1, 200.251), "however busy a bookie is, copies go on"


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=60),
    per_second=st.integers(100, 10_000),
)
def test_rate_is_kept_over_any_sequence_of_pieces(sizes: list[int], per_second: int) -> None:
    rate, now, spent = Rate(per_second, now=0.0), 0.0, 0
    for size in sizes:
        now += rate.wait_seconds(now)
        # One second's worth is saved up at first, and the last piece may still be unpaid.
        assert spent <= per_second * (now + 1) * (1 + 1e-9)
        rate.spend(size, now=now)
        spent += size


def test_no_rate_is_no_wait() -> None:
    rate = Rate(-1, now=0.0)
    rate.spend(10**12, now=0.0)
    assert rate.wait_seconds(0.0) == 0.0
