"""The ledger record as a value: what it refuses to be, and the changes that it allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.model import (
    Fragment,
    InvalidMetadataError,
    LedgerMetadata,
    LedgerState,
    TransitionError,
    check_bookie_id,
    new_ledger,
)
from wire.errors import LedgerError
from wire.types import ID_MAX, NO_ENTRY, BookieId, DigestType, LedgerId

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)


def ids(*names: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in names)


A, B, C, D, E = ids("a:1", "b:1", "c:1", "d:1", "e:1")


def ledger(*fragments: Fragment, state: LedgerState = LedgerState.OPEN) -> LedgerMetadata:
    """Three bookies, write quorum 3, ack quorum 2; CLOSED means at entry 99."""
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=LedgerId(7),
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=fragments or (Fragment(0, (A, B, C)),),
        state=state,
        last_entry_id=99 if closed else None,
        length=1000 if closed else 0,
        digest_type=DigestType.CRC32C,
        password=b"top secret",
        creator_token=42,
    )


def test_every_metadata_error_is_a_ledger_error() -> None:
    assert issubclass(InvalidMetadataError, LedgerError)
    assert issubclass(TransitionError, InvalidMetadataError)


# ---------------------------------------------------------------------- bookie ids


@pytest.mark.parametrize(
    "text",
    ["h:3181", "127.0.0.1:3181", "bk-alpha", "bk_2.site-a:7", "A", "a;<=>?@[\\]^_b", "readonly2"],
)
def test_bookie_id_is_accepted_where_java_accepts_it(text: str) -> None:
    assert check_bookie_id(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "a/b", "readonly", "ReadOnly", "READONLY", "a b", "a\n", "a,b", "bk\u00e9", "a`b", "a~"],
)
def test_bookie_id_is_refused_where_java_refuses_it(text: str) -> None:
    with pytest.raises(InvalidMetadataError, match="is not valid"):
        check_bookie_id(text)


# ---------------------------------------------------------------------- validity


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ledger_id": -1}, "outside"),
        ({"ledger_id": 2**63}, "outside"),
        ({"ack_quorum": 0}, "ack quorum >= 1"),
        ({"ack_quorum": 4}, "want ensemble size"),
        ({"write_quorum": 4}, "want ensemble size"),
        ({"fragments": ()}, "no fragment"),
        ({"fragments": (Fragment(0, (A, B)),)}, "has 2 bookies"),
        ({"fragments": (Fragment(-1, (A, B, C)),)}, "starts at entry -1"),
        ({"fragments": (Fragment(2**63, (A, B, C)),)}, "beyond"),
        ({"fragments": (Fragment(0, (A, B, C)), Fragment(0, (A, B, D)))}, "want above 0"),
        ({"fragments": (Fragment(5, (A, B, C)), Fragment(3, (A, B, D)))}, "want above 5"),
        ({"fragments": (Fragment(0, (A, B, BookieId("x/y"))),)}, "ledger 7: bookie id"),
        ({"state": LedgerState.CLOSED}, "last entry id belongs"),
        ({"last_entry_id": 5}, "last entry id belongs"),
        ({"length": 5}, "in state OPEN"),
        ({"state": LedgerState.CLOSED, "last_entry_id": -2}, "outside -1"),
        ({"state": LedgerState.CLOSED, "last_entry_id": 2**63}, "outside -1"),
        ({"state": LedgerState.CLOSED, "last_entry_id": 1, "length": -1}, "length -1"),
        ({"digest_type": None}, "no known digest type"),
        ({"format_version": 4}, "format 4"),
        ({"format_version": 0}, "format 0"),
        ({"custom": (("k", b"1"), ("k", b"2"))}, "occurs twice"),
    ],
)
def test_record_that_breaks_a_rule_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidMetadataError, match=message) as caught:
        replace(ledger(), **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_record_may_start_behind_entry_0_because_java_reads_such_ledgers() -> None:
    late = ledger(Fragment(3, (A, B, C)))
    assert late.fragment_of(3) is late.fragments[0]
    with pytest.raises(InvalidMetadataError, match="no fragment holds entry 2"):
        late.fragment_of(2)


def test_password_is_kept_out_of_the_repr() -> None:
    assert "top secret" not in repr(ledger())
    assert "password" not in repr(ledger())


def test_new_ledger_is_open_with_one_fragment_and_keeps_the_order_of_custom_metadata() -> None:
    created = new_ledger(
        ledger_id=LedgerId(1),
        ensemble=[A, B, C],
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
        custom={"zeta": b"1", "alpha": b"2"},
        creator_token=9,
    )
    assert created.state is LedgerState.OPEN
    assert created.fragments == (Fragment(0, (A, B, C)),)
    assert (created.last_entry_id, created.length) == (None, 0)
    assert created.password == b""
    assert created.custom == (("zeta", b"1"), ("alpha", b"2"))
    assert (created.custom_value("alpha"), created.custom_value("beta")) == (b"2", None)
    assert (created.creator_token, created.format_version) == (9, 3)


def test_new_ledger_refuses_one_bookie_in_two_slots() -> None:
    with pytest.raises(InvalidMetadataError, match="twice"):
        new_ledger(
            ledger_id=LedgerId(1),
            ensemble=[A, A],
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"",
        )


# ---------------------------------------------------------------------- looking


@steady
@given(
    starts=st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted),
    entry_id=st.integers(0, 70),
)
def test_fragment_of_is_the_one_with_the_largest_start_not_above(
    starts: list[int], entry_id: int
) -> None:
    value = ledger(*(Fragment(start, (A, B, C)) for start in starts))
    candidates = [fragment for fragment in value.fragments if fragment.first_entry_id <= entry_id]
    if candidates:
        assert value.fragment_of(entry_id) is candidates[-1]
    else:
        with pytest.raises(InvalidMetadataError):
            value.fragment_of(entry_id)
    assert (value.fragment_at(entry_id) is not None) == (entry_id in starts)


def test_ranges_end_before_the_next_fragment_and_stay_open_at_the_end() -> None:
    value = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, B, D)), Fragment(25, (A, E, D)))
    assert [one.last_entry_id for one in value.ranges()] == [9, 24, None]


@pytest.mark.parametrize(
    ("last_entry_id", "ends"),
    [(99, [9, 24, 99]), (24, [9, 24, 24]), (12, [9, 12, 24]), (NO_ENTRY, [-1, 9, 24])],
)
def test_ranges_of_a_closed_ledger_are_cut_off_at_its_end(
    last_entry_id: int, ends: list[int]
) -> None:
    value = replace(
        ledger(
            Fragment(0, (A, B, C)),
            Fragment(10, (A, B, D)),
            Fragment(25, (A, E, D)),
            state=LedgerState.CLOSED,
        ),
        last_entry_id=last_entry_id,
    )
    ranges = list(value.ranges())
    assert [one.last_entry_id for one in ranges] == ends
    covered = [
        entry_id
        for one in ranges
        for entry_id in range(one.fragment.first_entry_id, (one.last_entry_id or 0) + 1)
        if one.last_entry_id is not None
    ]
    assert [entry_id for entry_id in covered if entry_id <= last_entry_id] == list(
        range(last_entry_id + 1)
    )


def test_bookies_are_those_of_all_fragments() -> None:
    value = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, B, D)))
    assert value.bookies() == {A, B, C, D}
    assert value.mentions(C)
    assert not value.mentions(E)


# ---------------------------------------------------------------------- changes


def test_recovery_changes_the_state_and_nothing_else() -> None:
    before = ledger()
    after = before.in_recovery()
    assert after == replace(before, state=LedgerState.IN_RECOVERY, creator_token=0)


def test_writer_closes_at_its_lac_and_leaves_fragments_alone() -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, B, D)))
    after = before.closed_at(last_entry_id=12, length=77)
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 12, 77)
    assert after.fragments == before.fragments
    assert after.is_closed_at(last_entry_id=12, length=77)
    assert not after.is_closed_at(last_entry_id=12, length=78)
    assert not after.is_closed_at(last_entry_id=11, length=77)
    assert not before.is_closed_at(last_entry_id=12, length=77)


def test_empty_ledger_closes_before_its_first_entry() -> None:
    closed = ledger().closed_at(last_entry_id=NO_ENTRY, length=0)
    assert [one.last_entry_id for one in closed.ranges()] == [NO_ENTRY]


def test_ledger_may_end_right_before_its_last_fragment_but_not_earlier() -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, B, D)))
    assert before.closed_at(last_entry_id=9, length=1).last_entry_id == 9
    with pytest.raises(TransitionError, match="cannot end at entry 8"):
        before.closed_at(last_entry_id=8, length=1)
    with pytest.raises(TransitionError, match="cannot end at entry 8"):
        before.in_recovery().closed_by_recovery(last_entry_id=8, length=1)


def test_ensemble_change_appends_a_fragment_when_entries_were_confirmed() -> None:
    before = ledger(Fragment(0, (A, B, C)))
    after = before.with_ensemble_change(first_entry_id=10, replacements={1: D})
    assert after.fragments == (Fragment(0, (A, B, C)), Fragment(10, (A, D, C)))


def test_ensemble_change_overwrites_a_fragment_none_of_whose_entries_is_confirmed() -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, D, C)))
    after = before.with_ensemble_change(first_entry_id=10, replacements={1: E})
    assert after.fragments == (Fragment(0, (A, B, C)), Fragment(10, (A, E, C)))


def test_ensemble_change_keeps_what_rereplication_did_to_earlier_fragments() -> None:
    repaired = ledger(Fragment(0, (E, B, C)), Fragment(10, (A, D, C)))
    after = repaired.with_ensemble_change(first_entry_id=20, replacements={2: B})
    assert after.fragments[:2] == repaired.fragments


@pytest.mark.parametrize(
    ("first_entry_id", "replacements", "message"),
    [
        (9, {1: E}, "would change confirmed"),
        (20, {1: A}, "twice"),
        (20, {3: E}, "outside"),
        (20, {-1: E}, "outside"),
    ],
)
def test_ensemble_change_refuses_what_would_break_the_record(
    first_entry_id: int, replacements: dict[int, BookieId], message: str
) -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, D, C)))
    with pytest.raises(TransitionError, match=message):
        before.with_ensemble_change(first_entry_id=first_entry_id, replacements=replacements)


def test_ensemble_change_is_needed_while_open_and_a_failed_bookie_is_in_its_slot() -> None:
    value = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, D, C)))
    assert value.needs_ensemble_change({1: D})
    assert value.needs_ensemble_change({0: E, 2: C})
    assert value.failed_slots({0: E, 2: C}) == {2: C}
    assert not value.needs_ensemble_change({1: B})  # replaced already, by an earlier attempt
    assert not value.needs_ensemble_change({0: D})  # elsewhere in the ensemble
    assert not value.needs_ensemble_change({9: A})
    assert not value.in_recovery().needs_ensemble_change({1: D})


def test_ensemble_change_is_not_needed_after_itself() -> None:
    """A conditional write whose answer was lost: the next look must find nothing to do."""
    after = ledger().with_ensemble_change(first_entry_id=4, replacements={0: D})
    assert not after.needs_ensemble_change({0: A})


def test_recovery_closes_with_the_ensembles_it_worked_on() -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, D, C))).in_recovery()
    after = before.closed_by_recovery(
        last_entry_id=15,
        length=9,
        fragments=[Fragment(10, (A, E, C)), Fragment(12, (A, E, B))],
    )
    assert after.fragments == (
        Fragment(0, (A, B, C)),
        Fragment(10, (A, E, C)),
        Fragment(12, (A, E, B)),
    )
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 15, 9)


def test_recovery_never_touches_fragments_before_the_last() -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, D, C))).in_recovery()
    with pytest.raises(TransitionError, match="confirmed"):
        before.closed_by_recovery(last_entry_id=15, length=9, fragments=[Fragment(4, (A, E, C))])


def test_rereplication_changes_one_slot_of_one_fragment() -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, B, D)), Fragment(20, (A, B, E)))
    after = before.with_bookie_replaced(first_entry_id=10, slot=1, old=B, new=C)
    assert after.fragments == (
        Fragment(0, (A, B, C)),
        Fragment(10, (A, C, D)),
        Fragment(20, (A, B, E)),
    )
    assert replace(after, fragments=before.fragments, creator_token=42) == before
    assert before.holds(first_entry_id=10, slot=1, bookie_id=B)
    assert not after.holds(first_entry_id=10, slot=1, bookie_id=B)
    assert not before.holds(first_entry_id=11, slot=1, bookie_id=B)
    assert not before.holds(first_entry_id=10, slot=0, bookie_id=B)
    assert not before.holds(first_entry_id=10, slot=3, bookie_id=B)


def test_rereplication_of_a_closed_ledger_may_change_the_last_fragment_and_not_the_end() -> None:
    before = ledger(state=LedgerState.CLOSED)
    after = before.with_bookie_replaced(first_entry_id=0, slot=2, old=C, new=D)
    assert after.last_fragment.ensemble == (A, B, D)
    assert after.is_closed_at(last_entry_id=99, length=1000)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_rereplication_leaves_a_growing_fragment_alone(state: LedgerState) -> None:
    with pytest.raises(TransitionError, match="may still grow"):
        ledger(state=state).with_bookie_replaced(first_entry_id=0, slot=2, old=C, new=D)


@pytest.mark.parametrize(
    ("first_entry_id", "slot", "old", "new"),
    [(0, 1, C, D), (1, 1, B, D), (0, 3, B, D), (0, 1, B, A)],
)
def test_rereplication_refuses_a_change_that_does_not_fit(
    first_entry_id: int, slot: int, old: BookieId, new: BookieId
) -> None:
    with pytest.raises(TransitionError):
        ledger(state=LedgerState.CLOSED).with_bookie_replaced(
            first_entry_id=first_entry_id, slot=slot, old=old, new=new
        )


@pytest.mark.parametrize("state", LedgerState)
def test_rename_reaches_every_fragment_in_every_state(state: LedgerState) -> None:
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (D, E, A)), state=state)
    after = before.with_bookie_renamed(old=A, new=BookieId("new:1"))
    assert after.fragments == (
        Fragment(0, (BookieId("new:1"), B, C)),
        Fragment(10, (D, E, BookieId("new:1"))),
    )
    assert replace(after, fragments=before.fragments, creator_token=42) == before
    assert not after.mentions(A)


def test_rename_refuses_to_merge_two_bookies() -> None:
    with pytest.raises(TransitionError, match="twice"):
        ledger().with_bookie_renamed(old=A, new=B)


CHANGES: dict[str, Callable[[LedgerMetadata], LedgerMetadata]] = {
    "in_recovery": lambda value: value.in_recovery(),
    "closed_at": lambda value: value.closed_at(last_entry_id=99, length=1000),
    "closed_by_recovery": lambda value: value.closed_by_recovery(last_entry_id=99, length=1000),
    "ensemble change": lambda value: value.with_ensemble_change(
        first_entry_id=50, replacements={0: D}
    ),
    "replace": lambda value: value.with_bookie_replaced(first_entry_id=0, slot=0, old=A, new=E),
    "rename": lambda value: value.with_bookie_renamed(old=B, new=E),
}
ALLOWED = {
    LedgerState.OPEN: {"in_recovery", "closed_at", "ensemble change", "replace", "rename"},
    LedgerState.IN_RECOVERY: {"closed_by_recovery", "replace", "rename"},
    LedgerState.CLOSED: {"replace", "rename"},
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("state", LedgerState)
def test_state_decides_which_changes_are_allowed(state: LedgerState, name: str) -> None:
    """Every state with every change. Nothing leaves CLOSED, and no change moves its end."""
    before = ledger(Fragment(0, (A, B, C)), Fragment(10, (A, B, D)), state=state)
    before = replace(before, fragments=(before.fragments[0], Fragment(10, (C, B, A))))
    if name not in ALLOWED[state]:
        with pytest.raises(TransitionError):
            CHANGES[name](before)
        return
    after = CHANGES[name](before)
    assert after.creator_token == 0
    if state is LedgerState.CLOSED:
        assert after.is_closed_at(last_entry_id=99, length=1000)


@steady
@given(
    changes=st.lists(st.sampled_from(sorted(CHANGES)), max_size=6),
    starts=st.lists(st.integers(1, 80), max_size=3, unique=True).map(sorted),
)
def test_any_sequence_of_changes_keeps_the_invariants(
    changes: list[str], starts: list[int]
) -> None:
    value = ledger(*(Fragment(start, (A, B, C)) for start in (0, *starts)))
    for name in changes:
        before = value
        try:
            value = CHANGES[name](value)
        except TransitionError:
            assert value is before
        if before.is_closed:
            assert value.is_closed
            assert (value.last_entry_id, value.length) == (before.last_entry_id, before.length)
    first_ids = [fragment.first_entry_id for fragment in value.fragments]
    assert first_ids[0] == 0
    assert first_ids == sorted(set(first_ids))
    assert all(len(set(fragment.ensemble)) == 3 for fragment in value.fragments)
    if value.last_entry_id is not None:
        assert first_ids[-1] <= value.last_entry_id + 1


def test_largest_ids_fit() -> None:
    value = replace(ledger(), ledger_id=LedgerId(ID_MAX))
    closed = value.closed_at(last_entry_id=ID_MAX, length=ID_MAX)
    assert closed.fragment_of(ID_MAX).first_entry_id == 0
