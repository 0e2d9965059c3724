"""The table of ledgers: loaded once, forgotten when nothing but memory would be lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bookie.core.ledger import NOT_DIRTY, Ledger, Tombstone
from bookie.core.write_cache import Part
from bookie.storage.index_format import StoredLedgerState, ledger_key
from bookie.storage.ledgers import Ledgers
from bookie.storage.memory_index import MemoryIndex, MemoryIndexes
from tests.bookie.machine import KEY, Machine
from wire.errors import Status
from wire.types import LedgerId

MAX = 10


def indexes(count: int = 1) -> list[MemoryIndex]:
    disk = MemoryIndexes()
    return [disk.open(f"/index{n}", store_id=bytes(16), create=True) for n in range(count)]


def table(opened: list[MemoryIndex], count_max: int = MAX) -> Ledgers:
    return Ledgers(opened, journal_count=1, count_max=count_max)


def fill(ledgers: Ledgers, count: int = 100) -> None:
    for ledger_id in range(1000, 1000 + count):
        ledgers.get(ledger_id)


def test_ledger_has_one_object_as_long_as_it_is_in_memory() -> None:
    ledgers = table(indexes())
    assert ledgers.get(1) is ledgers.get(1)


def test_table_does_not_grow_beyond_its_size() -> None:
    ledgers = table(indexes())
    fill(ledgers)
    assert len(ledgers) <= MAX + 1


def test_ledger_just_asked_for_is_never_the_one_that_goes() -> None:
    for count_max in range(1, 12):
        ledgers = table(indexes(), count_max)
        for ledger_id in range(50):
            ledger = ledgers.get(ledger_id)
            assert ledgers.get(ledger_id) is ledger


def test_ledger_just_asked_for_stays_also_when_no_other_can_go() -> None:
    """Or it would have two objects: entries in one, and the next reader asking the other."""
    for count_max in range(1, 12):
        ledgers = table(indexes(), count_max)
        for ledger_id in range(count_max):
            ledgers.get(ledger_id).dirty = 0
        ledger = ledgers.get(1000)
        assert ledgers.get(1000) is ledger


def test_ledger_in_use_outlives_idle_ones() -> None:
    ledgers = table(indexes())
    favourite = ledgers.get(1)
    for ledger_id in range(1000, 1100):
        ledgers.get(ledger_id)
        ledgers.get(1)
    assert ledgers.get(1) is favourite


def set_active(ledger: Ledger) -> None:
    ledger.active = Part(ledger, 1)


def set_sealed(ledger: Ledger) -> None:
    ledger.sealed.append(Part(ledger, 1))


def set_dirty(ledger: Ledger) -> None:
    ledger.dirty = 0


def set_waiters(ledger: Ledger) -> None:
    ledger.waiters = 1


def set_loads(ledger: Ledger) -> None:
    ledger.loads = 1


@pytest.mark.parametrize("pin", [set_active, set_sealed, set_dirty, set_waiters, set_loads])
def test_ledger_that_only_memory_knows_is_never_forgotten(pin: Callable[[Ledger], None]) -> None:
    ledgers = table(indexes())
    ledger = ledgers.get(1)
    pin(ledger)
    fill(ledgers)
    assert ledgers.get(1) is ledger


def test_table_full_of_pinned_ledgers_grows_and_costs_little() -> None:
    ledgers = table(indexes())
    pinned = []
    for ledger_id in range(200):
        pinned.append(ledgers.get(ledger_id))
        pinned[-1].dirty = 0
    fill(ledgers)
    assert all(ledgers.get(ledger.id) is ledger for ledger in pinned)
    for ledger in pinned:
        ledger.dirty = NOT_DIRTY
    fill(ledgers, 500)
    assert len(ledgers) <= MAX + 1


def test_stored_state_is_what_comes_back() -> None:
    [index] = opened = indexes()
    state = StoredLedgerState(
        master_key=KEY, fenced=True, limbo=True, explicit_lac=b"lac", tombstone=None,
        journal_file_id=0, journal_offset=0,
    )  # fmt: skip
    index.apply([(ledger_key(1), state.encode())])
    ledger = table(opened).get(1)
    assert (ledger.master_key, ledger.fenced, ledger.limbo) == (KEY, True, True)
    assert ledger.explicit_lac == b"lac"
    assert not ledger.loaded


def test_home_is_where_the_state_is_and_stays_there_when_directories_are_added() -> None:
    opened = indexes(5)
    before = {n: table(opened[:3]).get(n).home for n in range(100)}
    state = StoredLedgerState(master_key=KEY)
    for ledger_id, home in before.items():
        opened[home].apply([(ledger_key(ledger_id), state.encode())])
    after = table(opened)
    assert {n: after.get(n).home for n in range(100)} == before
    assert {after.get(n).home for n in range(1000, 1200)} == set(range(5))


def test_ledgers_spread_evenly_over_directories() -> None:
    ledgers = table(indexes(4), 10_000)
    homes = [ledgers.get(ledger_id).home for ledger_id in range(4000)]
    assert all(800 < homes.count(home) < 1200 for home in range(4))


def test_forgotten_ledger_comes_back_as_it_was() -> None:
    machine = Machine()
    machine.start()
    for ledger_id in range(40):
        machine.add(ledger_id, [(0, b"%d" % ledger_id)], None)
        if ledger_id % 2:
            machine.engine.fence(ledger_id, KEY, None)
    machine.engine.checkpoint()
    machine.settle()
    for ledger_id in range(100, 200):
        machine.engine.ledger(ledger_id)
    assert machine.engine.statistics().ledgers_in_memory < 20
    for ledger_id in range(40):
        assert machine.read(ledger_id, 0) == b"%d" % ledger_id
        added = machine.add(ledger_id, [(1, b"more")], None)
        assert added == [Status.FENCED if ledger_id % 2 else Status.OK]


def ledger(**changes: object) -> Ledger:
    made = Ledger(LedgerId(1), home=0, journal=0, is_new=True)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


OTHER = bytes(20)[:19] + b"x"
TOMBSTONE = Tombstone(0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_key_that_opens_the_short_way_follows_every_change_of_state(seed: int) -> None:
    """Whoever forgets one lets adds pass a fence."""
    rng = random.Random(seed)
    choices = {
        "master_key": (None, KEY, OTHER),
        "fenced": (False, True),
        "limbo": (False, True),
        "tombstone": (None, TOMBSTONE),
    }
    made = ledger()
    assert made.plain_key is None
    for _ in range(50):
        name = rng.choice(list(choices))
        setattr(made, name, rng.choice(choices[name]))
        assert made.plain_key == (None if made.is_special else made.master_key)


@pytest.mark.parametrize(
    ("state", "key", "ordinary", "recovery"),
    [
        ({}, KEY, "OK", "OK"),
        ({"master_key": KEY}, KEY, "OK", "OK"),
        ({"master_key": KEY}, OTHER, "UNAUTHORIZED", "UNAUTHORIZED"),
        ({"master_key": KEY, "fenced": True}, KEY, "FENCED", "OK"),
        ({"master_key": KEY, "fenced": True}, OTHER, "UNAUTHORIZED", "UNAUTHORIZED"),
        ({"master_key": KEY, "limbo": True}, KEY, "UNAUTHORIZED", "OK"),
        ({"master_key": KEY, "limbo": True, "fenced": True}, KEY, "FENCED", "OK"),
        ({"master_key": KEY, "tombstone": TOMBSTONE}, KEY, "FENCED", "OK"),
        ({"master_key": KEY, "tombstone": TOMBSTONE}, OTHER, "FENCED", "OK"),
    ],
)
def test_adds_are_judged_by_the_state(
    state: dict[str, object], key: bytes, ordinary: str, recovery: str
) -> None:
    made = ledger(**state)
    assert made.admit_add(key, recovery=False).name == ordinary
    assert made.admit_add(key, recovery=True).name == recovery


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ({}, Status.NO_LEDGER),
        ({"master_key": KEY}, Status.NO_ENTRY),
        ({"master_key": b""}, Status.NO_ENTRY),
        ({"limbo": True}, Status.UNKNOWN_LEDGER_STATE),
        ({"master_key": KEY, "limbo": True}, Status.UNKNOWN_LEDGER_STATE),
        ({"master_key": KEY, "tombstone": TOMBSTONE}, Status.NO_LEDGER),
    ],
)
def test_absence_is_told_by_the_state(state: dict[str, object], answer: Status) -> None:
    assert ledger(**state).absent() is answer


def test_known_lac_only_rises() -> None:
    made = ledger()
    assert made.raise_lac(5)
    assert not made.raise_lac(5)
    assert not made.raise_lac(3)
    assert made.lac == 5
