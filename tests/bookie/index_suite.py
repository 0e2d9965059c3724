"""What every index must do. `test_index.py` runs it over both forms."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

from bookie.storage.index_format import (
    MARK_KEY,
    JournalPosition,
    LogMark,
    LogState,
    StoredLedgerState,
    StoredLog,
    ledger_key,
    location_of,
    log_key,
    run_key,
)
from bookie.storage.index_interface import (
    PIECE_CHANGES_MAX,
    Change,
    DamagedIndexError,
    Index,
    TransientIndexError,
)
from bookie.storage.indexed_run import RUN_SPAN, mark_damaged
from tests.bookie.index_values import STORE_ID, run_change
from wire.errors import CorruptionError
from wire.types import ID_MAX, NO_ENTRY


class IndexSuite(ABC):
    @abstractmethod
    def open(self, name: str = "index", *, create: bool = False, store: bytes = STORE_ID) -> Index:
        """Open the index of this name; the same name is the same index."""

    @pytest.fixture
    def index(self) -> Iterator[Index]:
        index = self.open(create=True)
        yield index
        index.close()

    def test_index_finds_each_entry_of_a_run_and_none_beside_it(self, index: Index) -> None:
        index.apply([run_change(7, range(100, 200))])
        assert all(index.find_run(7, entry_id) is not None for entry_id in range(100, 200))
        assert index.find_run(7, 99) is None
        assert index.find_run(7, 200) is None
        assert index.find_run(6, 150) is None
        assert index.find_run(8, 150) is None

    def test_index_tells_neighbouring_ledgers_apart(self, index: Index) -> None:
        index.apply([run_change(1, [5]), run_change(2, [5, 6]), run_change(3, [0])])
        assert [index.last_entry_id(ledger_id) for ledger_id in range(5)] == [
            NO_ENTRY, 5, 6, 0, NO_ENTRY,
        ]  # fmt: skip
        assert index.find_run(1, 6) is None
        assert [run.ledger_id for run in index.runs_from(2, 0, count_max=10)] == [2]

    def test_index_finds_the_first_entry_of_a_run_as_wide_as_allowed(self, index: Index) -> None:
        index.apply([run_change(1, [0, RUN_SPAN - 1])])
        assert index.find_run(1, 0) is not None
        assert index.find_run(1, RUN_SPAN - 1) is not None
        assert index.find_run(1, 1) is None

    def test_entry_is_found_behind_runs_that_end_before_its_own_and_lack_it(
        self, index: Index
    ) -> None:
        """The one that holds entry 0 ends last of all, as far away as a run may."""
        lacking = [run_change(1, [n, 4050 + n], offset=n) for n in range(1, 45)]
        index.apply([*lacking, run_change(1, [0, RUN_SPAN - 1], offset=9000)])
        found = index.find_run(1, 0)
        assert found is not None
        assert found.offset == 9000
        assert [run.offset for run in index.find_runs(1, 0)] == [9000]

    def test_index_serves_the_highest_ids_there_are(self, index: Index) -> None:
        index.apply([run_change(ID_MAX, [ID_MAX - 1, ID_MAX])])
        assert index.find_run(ID_MAX, ID_MAX) is not None
        assert index.last_entry_id(ID_MAX) == ID_MAX
        assert len(index.runs_from(ID_MAX, 0, count_max=5)) == 1

    def test_entry_added_once_more_does_not_hide_the_run_it_was_in(self, index: Index) -> None:
        index.apply([run_change(1, range(512))])
        index.apply([run_change(1, [511], offset=9000, sequence=2)])
        assert index.find_run(1, 0) is not None
        assert [run.sequence for run in index.find_runs(1, 511)] == [2, 1]

    def test_index_tries_newer_copies_first_and_damaged_ones_last(self, index: Index) -> None:
        old = run_change(1, [5, 6], sequence=3, offset=5000)
        key, value = run_change(1, [5], sequence=9, offset=6000)
        new = run_change(1, [4, 5], sequence=4, offset=7000)
        index.apply([old, (key, mark_damaged(value)), new])
        assert [run.sequence for run in index.find_runs(1, 5)] == [4, 3, 9]
        found = index.find_run(1, 5)
        assert found is not None
        assert not found.is_damaged

    def test_damaged_run_is_found_when_there_is_no_other(self, index: Index) -> None:
        """NoSuchEntry would be a lie: the entry was here."""
        key, value = run_change(1, [5])
        index.apply([(key, mark_damaged(value))])
        found = index.find_run(1, 5)
        assert found is not None
        assert found.is_damaged

    def test_runs_of_a_ledger_come_in_pages(self, index: Index) -> None:
        index.apply([run_change(3, range(n * 10, n * 10 + 10), offset=n) for n in range(25)])
        index.apply([run_change(4, [0])])
        seen, after = [], b""
        while page := index.runs_from(3, 45, count_max=4, after=after):
            seen += [run.last for run in page]
            after = page[-1].key
            if len(page) < 4:
                break
        assert seen == list(range(49, 250, 10))

    def test_exact_key_says_whether_a_run_is_alive(self, index: Index) -> None:
        key, value = run_change(1, range(10), log_id=5)
        moved = run_key(1, 9, location_of(log_id=6, offset=4096))
        index.apply([(key, value)])
        assert index.contains(key)
        index.apply([(key, None), (moved, value)])
        assert not index.contains(key)
        assert index.contains(moved)
        found = index.find_run(1, 3)
        assert found is not None
        assert found.log_id == 6

    def test_offsets_of_one_log_are_collected_over_all_ledgers(self, index: Index) -> None:
        index.apply(
            [
                run_change(ledger_id, [1], log_id=ledger_id % 3, offset=9000 - ledger_id)
                for ledger_id in range(900)
            ]
        )
        index.apply([run_change(ledger_id, [2], log_id=7) for ledger_id in range(900)])
        assert index.run_offsets(1) == [9000 - n for n in range(898, 0, -3)]

    def test_index_keeps_ledger_states_logs_and_the_mark(self, index: Index) -> None:
        state = StoredLedgerState(master_key=b"k" * 20, fenced=True)
        log = StoredLog(LogState.SEALED, 5000, 300, 17)
        mark = LogMark(9, (JournalPosition(0, 4, 8192, 77),))
        assert index.mark() is None
        assert index.ledger_state(5) is None
        index.apply(
            [(ledger_key(5), state.encode()), (log_key(3), log.encode()), (MARK_KEY, mark.encode())]
        )
        assert index.mark() == mark
        assert index.ledger_state(5) == state
        assert list(index.ledger_states()) == [(5, state)]
        assert list(index.logs()) == [(3, log)]

    def test_ledger_ids_come_in_order_past_a_page_and_past_runs(self, index: Index) -> None:
        state = StoredLedgerState().encode()
        ids = [n * 3 for n in range(2500)]
        for start in range(0, len(ids), PIECE_CHANGES_MAX):
            index.apply([(ledger_key(n), state) for n in ids[start : start + PIECE_CHANGES_MAX]])
        index.apply([run_change(n, [0]) for n in range(50)])
        assert list(index.ledger_ids()) == ids

    def test_scan_survives_deletion_of_what_it_has_seen(self, index: Index) -> None:
        state = StoredLedgerState().encode()
        for start in (0, 1000):
            index.apply([(ledger_key(start + n), state) for n in range(1000)])
        seen = []
        for ledger_id in index.ledger_ids():
            seen.append(ledger_id)
            index.apply([(ledger_key(ledger_id), None)])
        assert seen == list(range(2000))
        assert list(index.ledger_ids()) == []

    def test_piece_beyond_the_limit_is_refused(self, index: Index) -> None:
        piece: list[Change] = [(ledger_key(n), None) for n in range(PIECE_CHANGES_MAX + 1)]
        with pytest.raises(AssertionError):
            index.apply(piece)

    def test_deleting_what_is_not_there_changes_nothing(self, index: Index) -> None:
        index.apply([(run_key(1, 2, 3), None)])
        assert index.last_entry_id(1) == NO_ENTRY

    def test_later_change_of_a_key_wins_within_a_piece(self, index: Index) -> None:
        index.apply([(b"Sx", b"1"), (b"Sx", None), (b"Sx", b"2")])
        assert index.get(b"Sx") == b"2"

    def test_flushed_pieces_are_there_after_reopening(self, index: Index) -> None:
        index.apply([run_change(1, range(10))])
        index.flush()
        index.reopen()
        assert index.find_run(1, 9) is not None

    def test_closed_index_keeps_everything(self) -> None:
        index = self.open(create=True)
        index.apply([run_change(1, range(10))])
        index.close()
        index.close()
        again = self.open()
        assert again.find_run(1, 9) is not None
        again.close()

    def test_compaction_of_a_span_keeps_what_is_alive(self, index: Index) -> None:
        index.apply([run_change(ledger_id, range(10)) for ledger_id in range(100)])
        index.flush()
        index.apply([(run_change(ledger_id, range(10))[0], None) for ledger_id in range(10, 90)])
        index.flush()
        index.compact(first_ledger=10, last_ledger=89)
        alive = [n for n in range(100) if index.last_entry_id(n) != NO_ENTRY]
        assert alive == [*range(10), *range(90, 100)]

    def test_missing_index_is_not_an_empty_one(self) -> None:
        with pytest.raises(DamagedIndexError, match="missing"):
            self.open("other")

    def test_index_is_not_created_twice(self) -> None:
        self.open(create=True).close()
        with pytest.raises(DamagedIndexError, match="exists already"):
            self.open(create=True)

    def test_index_of_another_store_is_refused(self) -> None:
        self.open(create=True).close()
        with pytest.raises(DamagedIndexError, match="belongs to store 000102"):
            self.open(store=b"x" * 16)
        self.open().close()

    def test_index_is_open_once_only(self, index: Index) -> None:
        with pytest.raises(TransientIndexError, match="open elsewhere"):
            self.open()

    def test_value_that_is_no_run_is_corruption_and_never_absence(self, index: Index) -> None:
        key, value = run_change(1, range(10))
        index.apply([(key, value[:-1])])
        for look_up in index.find_run, index.find_runs:
            with pytest.raises(CorruptionError):
                look_up(1, 5)
        with pytest.raises(CorruptionError):
            index.runs_from(1, 0, count_max=1)

    def test_statistics_count_keys(self, index: Index) -> None:
        before = index.statistics().keys
        index.apply([run_change(1, [n], offset=n) for n in range(100)])
        index.flush()
        assert index.statistics().keys == before + 100
        assert index.statistics().disk_bytes > 100

    @pytest.mark.parametrize("seed", range(4))
    def test_look_ups_agree_with_a_naive_model(self, index: Index, seed: int) -> None:
        """Random overlapping, sparse, relocated, damaged and deleted runs of a few ledgers."""
        rng = random.Random(seed)
        model: dict[bytes, tuple[int, frozenset[int], int, bool]] = {}
        location = 4096
        for _ in range(40):
            piece: list[Change] = []
            for _ in range(rng.randrange(1, 12)):
                known = rng.choice(list(model)) if model else None
                choice = rng.random()
                if known is not None and choice < 0.2:
                    piece.append((known, None))
                    del model[known]
                    continue
                if known is not None and choice < 0.35:  # compaction moves a run
                    ledger_id, ids, sequence, damaged = model.pop(known)
                    piece.append((known, None))
                else:
                    ledger_id = rng.randrange(4)
                    ids, sequence = _random_ids(rng), rng.randrange(50)
                    damaged = rng.random() < 0.1
                location += 100
                key, value = run_change(ledger_id, ids, offset=location, sequence=sequence)
                piece.append((key, mark_damaged(value) if damaged else value))
                model[key] = ledger_id, ids, sequence, damaged
            index.apply(piece)
            if rng.random() < 0.2:
                index.flush()
            for _ in range(25):
                self._compare(index, model, rng.randrange(5), _random_entry(rng))

    def _compare(
        self,
        index: Index,
        model: dict[bytes, tuple[int, frozenset[int], int, bool]],
        ledger_id: int,
        entry_id: int,
    ) -> None:
        own = {key: run for key, run in model.items() if run[0] == ledger_id}
        holding = {key: run for key, run in own.items() if entry_id in run[1]}
        found = index.find_runs(ledger_id, entry_id)
        assert {run.key for run in found} == set(holding)
        order = [(run.is_damaged, -run.sequence) for run in found]
        assert order == sorted(order)
        one = index.find_run(ledger_id, entry_id)
        if not holding:
            assert one is None
        else:
            assert one is not None
            assert one.key in holding
            assert one.is_damaged == all(damaged for *_, damaged in holding.values())
            position = sorted(holding[one.key][1]).index(entry_id)
            assert one.locate(entry_id) == (one.body_offset + position * 36 + 4, 32)
        last = max((max(ids) for _, ids, _, _ in own.values()), default=NO_ENTRY)
        assert index.last_entry_id(ledger_id) == last
        behind = index.runs_from(ledger_id, entry_id, count_max=10_000)
        assert [run.key for run in behind] == sorted(
            key for key, (_, ids, _, _) in own.items() if max(ids) >= entry_id
        )


def _random_entry(rng: random.Random) -> int:
    return rng.randrange(12_000)


def _random_ids(rng: random.Random) -> frozenset[int]:
    first = _random_entry(rng)
    if rng.random() < 0.4:
        return frozenset(range(first, first + rng.randrange(1, 300)))
    return frozenset(first + rng.randrange(RUN_SPAN) for _ in range(rng.randrange(1, 60))) | {first}
