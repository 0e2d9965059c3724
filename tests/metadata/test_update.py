"""The compare-and-swap loop: conflicts, lost answers, and what each update makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio.testing

from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.faults import Fault, Outcome, Script
from metadata.memory import MemoryMetadata
from metadata.model import Fragment, LedgerMetadata, LedgerState, TransitionError, new_ledger
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    SessionExpiredError,
    StoreUnavailableError,
)
from metadata.update import (
    Backoff,
    ChangeEnsemble,
    Close,
    FinishRecovery,
    LedgerClosedError,
    LedgerGoneError,
    LedgerUpdate,
    MetadataConflictError,
    RenameBookie,
    ReplaceBookies,
    StartRecovery,
    Updated,
    VersionedLedger,
    persistently,
    read_ledger,
    update_ledger,
)
from wire.errors import FencedError, NoSuchLedgerError
from wire.types import BookieId, DigestType, LedgerId

A, B, C, D, E = (BookieId(f"bk{number}:3181") for number in range(1, 6))
PATHS = LedgerPaths("/ledgers", LayoutType.HIERARCHICAL)
LEDGER = LedgerId(7)
PATH = PATHS.path_of(LEDGER)

OPEN = new_ledger(
    ledger_id=LEDGER,
    ensemble=(A, B, C),
    write_quorum=3,
    ack_quorum=2,
    digest_type=DigestType.CRC32C,
    password=b"pw",
    creator_token=99,
)
RECOVERING = OPEN.in_recovery()
CLOSED = OPEN.closed_at(last_entry_id=9, length=90)

CLOSE = Close(last_entry_id=9, length=90)
CHANGE = ChangeEnsemble(first_entry_id=5, failed={1: B}, replacements={1: D})
FINISH = FinishRecovery(last_entry_id=9, length=90, fragments=(Fragment(5, (A, D, C)),))
REPLACE = ReplaceBookies(first_entry_id=0, replacements={1: (B, D)})


class World:
    """One ledger on a store that can misbehave, and a second client to interfere."""

    def __init__(self, first: LedgerMetadata = OPEN) -> None:
        self.metadata = MemoryMetadata()
        self.script = Script()
        self.store = self.metadata.connect(self.script)
        path = ""
        for name in PATH.split("/")[1:-1]:
            path += f"/{name}"
            self.metadata.tree.create(path, b"")
        self.metadata.tree.create(PATH, encode_ledger_metadata(first))
        self.metadata.publish()

    @property
    def stored(self) -> LedgerMetadata:
        return decode_ledger_metadata(self.metadata.tree.get(PATH).data, ledger_id=LEDGER)

    @property
    def version(self) -> int:
        return self.metadata.tree.get(PATH).version

    def meanwhile(self, other: LedgerMetadata) -> Fault:
        return self.metadata.conflict(PATH, encode_ledger_metadata(other))

    async def update(
        self, update: LedgerUpdate, known: VersionedLedger | None = None, **kwargs: object
    ) -> Updated:
        chance = random.Random(1)
        return await update_ledger(
            self.store,
            PATHS,
            LEDGER,
            update,
            known=known,
            chance=chance,
            **kwargs,  # type: ignore[arg-type]
        )


async def test_update_writes_the_bytes_of_the_next_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    updated = await world.update(CLOSE)
    assert updated.wrote
    assert updated.ledger.version == 1
    assert updated.ledger.metadata == CLOSED
    assert world.metadata.tree.get(PATH).data == encode_ledger_metadata(CLOSED)
    assert await read_ledger(world.store, PATHS, LEDGER) == updated.ledger


async def test_update_starts_from_the_known_record_without_reading(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="get")
    updated = await world.update(CLOSE, known=VersionedLedger(OPEN, 0))
    assert updated.ledger.metadata == CLOSED
    assert not world.script.is_played_out, "a read would have met the fault"


async def test_update_applies_again_to_the_fresh_record_after_a_conflict(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Re-replication changes an old fragment while the writer changes the last one."""
    first = OPEN.with_ensemble_change(first_entry_id=3, replacements={0: E})
    repaired = first.with_bookie_replaced(first_entry_id=0, slot=2, old=C, new=D)
    world = World(first)
    world.script.add(world.meanwhile(repaired), verb="set")
    updated = await world.update(CHANGE)
    assert world.script.is_played_out
    assert updated.wrote
    assert updated.ledger.version == 2
    assert updated.ledger.metadata.fragments == (
        Fragment(0, (A, B, D)),
        Fragment(3, (E, B, C)),
        Fragment(5, (E, D, C)),
    )


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
@pytest.mark.parametrize(
    ("first", "update"),
    [
        (OPEN, CLOSE),
        (OPEN, CHANGE),
        (OPEN, StartRecovery()),
        (RECOVERING, FINISH),
        (CLOSED, REPLACE),
        (OPEN, RenameBookie(old=A, new=E)),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_update_whose_answer_was_lost_is_recognised_as_ours(
    outcome: Outcome,
    first: LedgerMetadata,
    update: LedgerUpdate,
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(first)
    world.script.add(Fault(outcome=outcome), verb="set")
    updated = await world.update(update)
    assert world.script.is_played_out
    assert updated.wrote
    assert updated.ledger.version == world.version == 1, "written once, applied once"
    assert updated.ledger.metadata == world.stored == update.apply(first)


async def test_update_in_format_1_recognises_its_lost_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Format 1 does not bring back password and digest, so values differ where bytes agree."""
    first = replace(OPEN, format_version=1, ack_quorum=3, creator_token=0)
    world = World(first)
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="set")
    updated = await world.update(CLOSE, known=VersionedLedger(first, 0))
    assert updated.wrote


async def test_update_that_lost_its_answer_to_a_later_writer_is_not_ours(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Our IN_RECOVERY was written, then somebody closed: the loop adopts, and claims nothing."""
    world = World()
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="set")
    closed = RECOVERING.closed_by_recovery(last_entry_id=3, length=30)
    world.script.add(world.meanwhile(closed), verb="sync")
    updated = await world.update(StartRecovery(), known=VersionedLedger(OPEN, 0))
    assert updated == Updated(VersionedLedger(closed, 2, updated.ledger.created_ms), wrote=False)


async def test_update_reads_past_a_lagging_follower_after_a_lost_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    stale = await read_ledger(world.store, PATHS, LEDGER)
    world.store.lag()
    other = world.metadata.connect()
    await other.set(PATH, encode_ledger_metadata(RECOVERING), version=0)
    world.script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="set")
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="set")
    updated = await world.update(StartRecovery(), known=stale)
    assert not world.script.is_played_out, "a second write would have met the fault"
    assert updated.ledger.metadata.state is LedgerState.IN_RECOVERY
    assert updated.ledger.version == 1


async def test_update_never_decides_on_a_record_that_a_lagging_follower_shows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """E took over from A, which the follower has not heard of: D must still replace E."""
    world = World()
    world.store.lag()
    other = world.metadata.connect()
    moved = OPEN.with_ensemble_change(first_entry_id=0, replacements={0: E})
    await other.set(PATH, encode_ledger_metadata(moved), version=0)
    change = ChangeEnsemble(first_entry_id=5, failed={0: E}, replacements={0: D})
    updated = await world.update(change)
    assert updated.wrote
    assert updated.ledger.metadata.last_fragment.ensemble == (D, B, C)


async def test_update_of_a_deleted_ledger_says_so(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.metadata.tree.delete(PATH, ANY_VERSION)
    with pytest.raises(LedgerGoneError, match="ledger 7") as caught:
        await world.update(CLOSE)
    assert isinstance(caught.value, NoSuchLedgerError)
    with pytest.raises(LedgerGoneError):
        await world.update(CLOSE, known=VersionedLedger(OPEN, 0))


async def test_update_waits_while_the_store_is_out_of_reach(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="set", times=3)
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="get", times=2)
    assert (await world.update(CLOSE)).wrote
    assert world.script.is_played_out


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda world: Fault(outcome=Outcome.UNAVAILABLE), StoreUnavailableError),
        (lambda world: world.metadata.conflict(PATH), BadVersionError),
    ],
)
async def test_update_gives_up_after_a_bound(
    fault: Callable[[World], Fault],
    error: type[Exception],
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(fault(world), verb="set", times=100)
    with pytest.raises(error):
        await world.update(CLOSE, backoff=Backoff(attempts_max=5))
    assert world.stored.state is LedgerState.OPEN


async def test_update_bound_to_a_lost_session_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A re-replicator whose lock went with its session must not commit (F34)."""
    world = World(CLOSED)
    session = await world.store.require_session()
    world.script.add(Fault(expires="before"), verb="set")
    with pytest.raises(SessionExpiredError):
        await world.update(REPLACE, session=session)
    assert world.stored == replace(CLOSED, creator_token=0)
    assert world.version == 0


async def test_update_bound_to_a_session_that_ends_with_the_answer_is_not_repeated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Applied while the session lived, and the next look finds it there: nothing to repeat."""
    world = World(CLOSED)
    session = await world.store.require_session()
    world.script.add(Fault(expires="after"), verb="set")
    updated = await world.update(REPLACE, session=session)
    assert updated.wrote
    assert world.version == 1


# ---------------------------------------------------------------------- results after a conflict


async def test_close_finds_the_same_end(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.script.add(world.meanwhile(CLOSED), verb="set")
    updated = await world.update(CLOSE)
    assert not updated.wrote
    assert updated.ledger.metadata.is_closed_at(last_entry_id=9, length=90)


async def test_close_finds_another_end(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.script.add(world.meanwhile(OPEN.closed_at(last_entry_id=10, length=100)), verb="set")
    with pytest.raises(MetadataConflictError, match="entry 10"):
        await world.update(CLOSE)


async def test_close_never_closes_a_ledger_under_recovery(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(world.meanwhile(RECOVERING), verb="set")
    with pytest.raises(FencedError, match="recovered"):
        await world.update(CLOSE)
    assert world.stored.state is LedgerState.IN_RECOVERY


async def test_close_keeps_what_re_replication_changed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first = OPEN.with_ensemble_change(first_entry_id=3, replacements={0: E})
    world = World(first)
    repaired = first.with_bookie_replaced(first_entry_id=0, slot=0, old=A, new=D)
    world.script.add(world.meanwhile(repaired), verb="set")
    updated = await world.update(CLOSE)
    assert updated.ledger.metadata.fragments[0] == Fragment(0, (D, B, C))
    assert updated.ledger.metadata.is_closed


@pytest.mark.parametrize(
    ("found", "error"), [(CLOSED, LedgerClosedError), (RECOVERING, FencedError)]
)
async def test_ensemble_change_stops_when_the_ledger_is_taken_over(
    found: LedgerMetadata, error: type[Exception], autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    world.script.add(world.meanwhile(found), verb="set")
    with pytest.raises(error):
        await world.update(CHANGE)
    assert world.stored.fragments == OPEN.fragments


async def test_ensemble_change_leaves_a_slot_that_was_changed_already(
    autojump_clock: trio.testing.MockClock,
) -> None:
    changed = OPEN.with_ensemble_change(first_entry_id=5, replacements={1: D})
    world = World(changed)
    updated = await world.update(CHANGE)
    assert not updated.wrote
    assert world.version == 0


def test_ensemble_change_replaces_only_what_is_still_failed() -> None:
    changed = OPEN.with_ensemble_change(first_entry_id=5, replacements={1: D})
    both = ChangeEnsemble(first_entry_id=5, failed={1: B, 2: C}, replacements={1: D, 2: E})
    target = both.apply(changed)
    assert target is not None
    assert target.last_fragment == Fragment(5, (A, D, E))


def test_ensemble_change_of_part_of_the_failed_slots_is_made() -> None:
    partial = ChangeEnsemble(first_entry_id=5, failed={1: B, 2: C}, replacements={2: E})
    target = partial.apply(OPEN)
    assert target is not None
    assert target.last_fragment == Fragment(5, (A, B, E))
    assert partial.apply(target) is None


@pytest.mark.parametrize("found", [CLOSED, RECOVERING])
async def test_recovery_starts_from_what_others_did(
    found: LedgerMetadata, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    world.script.add(world.meanwhile(found), verb="set")
    updated = await world.update(StartRecovery())
    assert not updated.wrote
    assert updated.ledger.metadata == replace(found, creator_token=0)


async def test_recovery_adopts_the_end_of_whoever_closed_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also the end that Apache's writer puts on a ledger under recovery (S8)."""
    world = World(RECOVERING)
    theirs = RECOVERING.closed_by_recovery(last_entry_id=4, length=40)
    world.script.add(world.meanwhile(theirs), verb="set")
    updated = await world.update(FINISH)
    assert not updated.wrote
    assert updated.ledger.metadata == theirs


async def test_recovery_close_is_applied_again_while_still_in_recovery(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(RECOVERING)
    world.script.add(world.metadata.conflict(PATH), verb="set")
    updated = await world.update(FINISH)
    assert updated.wrote
    assert updated.ledger.metadata.fragments == (
        Fragment(0, (A, B, C)),
        Fragment(5, (A, D, C)),
    )


def test_recovery_never_closes_an_open_ledger() -> None:
    with pytest.raises(TransitionError):
        FINISH.apply(OPEN)


def test_replacing_bookies_changes_the_named_slots_of_one_fragment() -> None:
    both = ReplaceBookies(first_entry_id=0, replacements={0: (A, D), 2: (C, E)})
    target = both.apply(CLOSED)
    assert target is not None
    assert target.fragments == (Fragment(0, (D, B, E)),)
    assert both.apply(target) is None, "a second look asks for nothing"


def test_replacing_bookies_skips_a_slot_that_another_worker_changed() -> None:
    both = ReplaceBookies(first_entry_id=0, replacements={0: (A, D), 1: (B, E)})
    by_other = CLOSED.with_bookie_replaced(first_entry_id=0, slot=1, old=B, new=BookieId("x:1"))
    target = both.apply(by_other)
    assert target is not None
    assert target.fragments == (Fragment(0, (D, BookieId("x:1"), C)),)


def test_replacing_bookies_in_a_fragment_that_may_still_grow_is_refused() -> None:
    with pytest.raises(TransitionError, match="may still grow"):
        REPLACE.apply(OPEN)


def test_renaming_a_bookie_touches_only_ledgers_that_name_it() -> None:
    assert RenameBookie(old=D, new=E).apply(CLOSED) is None
    target = RenameBookie(old=A, new=E).apply(CLOSED)
    assert target is not None
    assert target.fragments == (Fragment(0, (E, B, C)),)


# ---------------------------------------------------------------------- patience


def test_backoff_doubles_up_to_its_ceiling_and_spreads() -> None:
    backoff = Backoff(first_seconds=1.0, seconds_max=4.0)
    chance = random.Random(3)
    for failures, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (400, 4.0)):
        drawn = {backoff.seconds(failures, chance) for _ in range(20)}
        assert all(ceiling / 2 <= seconds <= ceiling for seconds in drawn)
        assert len(drawn) > 1


async def test_persistence_ends_with_the_last_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise StoreUnavailableError(f"attempt {tries}")

    with pytest.raises(StoreUnavailableError, match="attempt 4"):
        await persistently(fail, chance=random.Random(1), backoff=Backoff(attempts_max=4))


async def test_persistence_does_not_outlive_a_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise SessionExpiredError("over")

    with pytest.raises(SessionExpiredError):
        await persistently(fail, chance=random.Random(1))
    assert tries == 1
