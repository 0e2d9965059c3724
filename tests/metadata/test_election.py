"""Electing the auditor: one at a time, the oldest vote wins, and nobody waits for himself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metadata.election import Election, current_auditor
from metadata.faults import NEVER, Fault, Outcome, Request, Script
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.paths import ClusterPaths
from metadata.store import ANY_VERSION, MetadataStore, NoNodeError
from metadata.underreplication import open_underreplication
from tests.metadata.places import Place, place, planted, until
from wire.types import BookieId

__all__ = ["place"]

ROOT = "/ledgers"
PATHS = ClusterPaths(ROOT)
A, B, C = (BookieId(f"127.0.0.1:{port}") for port in (33812, 33813, 33814))
CAPTURED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "underreplication.json").read_text()
)


def election_of(store: MetadataStore, bookie_id: BookieId, root: str = ROOT) -> Election:
    return Election(store, root, bookie_id, chance=random.Random(1))


class Candidate:
    """A process that stands: its store, its election, and how often it took office."""

    def __init__(
        self,
        metadata: MemoryMetadata,
        bookie_id: BookieId,
        faults: Callable[[Request], Fault | None] | None = None,
    ) -> None:
        self.metadata = metadata
        self.script = Script()
        self.writes: list[tuple[str, str]] = []
        self._faults = faults or self.script
        self.store: MemoryStore = metadata.connect(self._hook)
        self.election = election_of(self.store, bookie_id)
        self.terms = 0
        self.scope = trio.CancelScope()

    def _hook(self, request: Request) -> Fault | None:
        if request.writes:
            self.writes.append((request.verb, request.path))
        return self._faults(request)

    async def audit(self) -> None:
        self.terms += 1
        await trio.sleep_forever()

    async def run(self) -> None:
        with self.scope:
            await self.election.run(self.audit)

    def expire(self, *, silently: bool = False) -> None:
        assert self.store.session is not None
        self.metadata.expire(self.store.session, silently=silently)


def cluster() -> MemoryMetadata:
    metadata = MemoryMetadata()
    planted(metadata, [PATHS.underreplication])
    return metadata


def votes(metadata: MemoryMetadata) -> list[str]:
    znode = metadata.tree.find(PATHS.election)
    return [] if znode is None else sorted(znode.children)


async def test_the_oldest_vote_wins_and_the_next_takes_over(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        first, second = election_of(one, A, place.root), election_of(two, B, place.root)
        assert await current_auditor(one, place.root) is None
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def run_first() -> None:
                with scope:
                    await first.run(trio.sleep_forever)

            nursery.start_soon(run_first)
            await until(lambda: first.is_elected)
            nursery.start_soon(second.run, trio.sleep_forever)
            assert await current_auditor(two, place.root) == A
            await trio.sleep(0.2)
            assert not second.is_elected
            scope.cancel()
            await until(lambda: second.is_elected)
            assert not first.is_elected
            assert await current_auditor(one, place.root) == B
            nursery.cancel_scope.cancel()
        assert await current_auditor(one, place.root) is None


async def test_votes_are_those_of_java() -> None:
    """The captured run: one process, a second one, the first killed and started again."""
    sequence = next(s for s in CAPTURED["sequences"] if s["name"].startswith("first and second"))
    part = "/underreplication/auditorelection"
    expected = [
        (op["op"], part + op["path"].partition(part)[2], op.get("data_hex", ""))
        for op in sequence["ops"]
        if op["op"] in ("create", "set") and part in op["path"]
    ]
    metadata = MemoryMetadata()
    planted(metadata, [ROOT])
    await open_underreplication(metadata.connect(), ROOT)
    written: list[tuple[str, str, str]] = []

    def record(verb: str, path: str) -> None:
        written.append((verb, path.removeprefix(ROOT), metadata.tree.get(path).data.hex()))

    async with trio.open_nursery() as nursery:
        first, second = Candidate(metadata, A), Candidate(metadata, B)
        nursery.start_soon(first.run)
        await trio.testing.wait_all_tasks_blocked()
        written.append(("create", part, ""))
        record("create", f"{PATHS.election}/V_0000000000")
        record("set", PATHS.election)
        nursery.start_soon(second.run)
        await trio.testing.wait_all_tasks_blocked()
        record("create", f"{PATHS.election}/V_0000000001")
        await first.store.close()
        first.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        record("set", PATHS.election)
        third = Candidate(metadata, A)
        nursery.start_soon(third.run)
        await trio.testing.wait_all_tasks_blocked()
        record("create", f"{PATHS.election}/V_0000000002")
        assert written == expected
        assert [candidate.terms for candidate in (first, second, third)] == [1, 1, 0]
        nursery.cancel_scope.cancel()


async def test_each_candidate_wakes_only_its_successor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    candidates = [Candidate(metadata, BookieId(f"bk{n}:1")) for n in range(4)]
    async with trio.open_nursery() as nursery:
        for candidate in candidates:
            nursery.start_soon(candidate.run)
            await trio.testing.wait_all_tasks_blocked()
        candidates[1].scope.cancel()  # in the middle: nobody is elected by that
        await trio.testing.wait_all_tasks_blocked()
        assert [candidate.terms for candidate in candidates] == [1, 0, 0, 0]
        candidates[0].scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert [candidate.terms for candidate in candidates] == [1, 0, 1, 0]
        nursery.cancel_scope.cancel()
    assert votes(metadata) == []


async def test_a_clean_stop_withdraws_the_vote(autojump_clock: trio.testing.MockClock) -> None:
    metadata = cluster()
    candidate = Candidate(metadata, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await trio.testing.wait_all_tasks_blocked()
        assert votes(metadata) == ["V_0000000000"]
        candidate.scope.cancel()
    assert votes(metadata) == []
    assert candidate.store.session is not None
    named = metadata.tree.get(PATHS.election).data
    assert named == b'bookieId: "127.0.0.1:33812"\n', "the last one elected stays named"


async def test_a_stop_does_not_hang_on_a_store_that_is_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    candidate = Candidate(metadata, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await trio.testing.wait_all_tasks_blocked()
        candidate.script.add(Fault(request_seconds=1000), verb="delete")
        candidate.scope.cancel()
        started = trio.current_time()
    assert trio.current_time() - started <= 5


# ---------------------------------------------------------------------- sessions


async def test_a_lost_session_passes_the_office_on(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        first, second = election_of(one, A, place.root), election_of(two, B, place.root)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run, trio.sleep_forever)
            await until(lambda: first.is_elected)
            nursery.start_soon(second.run, trio.sleep_forever)
            await place.expire(one)
            await until(lambda: second.is_elected)
            await until(lambda: not first.is_elected)
            assert await current_auditor(two, place.root) == B
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("silently", [False, True])
async def test_an_auditor_that_loses_its_session_stops_and_stands_again(
    silently: bool, autojump_clock: trio.testing.MockClock
) -> None:
    metadata = cluster()
    first, second = Candidate(metadata, A), Candidate(metadata, B)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(second.run)
        await trio.testing.wait_all_tasks_blocked()
        first.expire(silently=silently)
        await until(lambda: second.election.is_elected)
        await until(lambda: not first.election.is_elected)
        await until(lambda: votes(metadata) == ["V_0000000001", "V_0000000002"])
        second.scope.cancel()
        await until(lambda: first.election.is_elected)
        assert [first.terms, second.terms] == [2, 1]
        nursery.cancel_scope.cancel()


async def test_an_auditor_whose_session_is_over_leaves_office_also_without_a_store(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    candidate = Candidate(metadata, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await trio.testing.wait_all_tasks_blocked()
        metadata.available = False
        candidate.expire()
        await trio.testing.wait_all_tasks_blocked()
        assert not candidate.election.is_elected
        nursery.cancel_scope.cancel()


async def test_an_auditor_stays_in_office_while_disconnected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    candidate = Candidate(metadata, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await trio.testing.wait_all_tasks_blocked()
        metadata.available = False
        await trio.sleep(3600)
        metadata.available = True
        await trio.sleep(3600)
        assert candidate.election.is_elected
        assert candidate.terms == 1
        nursery.cancel_scope.cancel()


async def test_a_vote_removed_by_hand_ends_the_term(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    first, second = Candidate(metadata, A), Candidate(metadata, B)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(second.run)
        await trio.testing.wait_all_tasks_blocked()
        await metadata.connect().delete(f"{PATHS.election}/V_0000000000", version=ANY_VERSION)
        await until(lambda: second.election.is_elected)
        assert not first.election.is_elected
        await until(lambda: votes(metadata) == ["V_0000000001", "V_0000000002"])
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_vote_whose_answer_was_lost_is_found_again(
    outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    """A second vote would wait for the first, our own, for ever."""
    metadata = cluster()
    planted(metadata, [PATHS.election])
    candidate = Candidate(metadata, A)
    candidate.script.add(Fault(outcome=outcome), verb="create", path=PATHS.vote_prefix)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await until(lambda: candidate.election.is_elected)
        assert candidate.script.is_played_out
        assert len(votes(metadata)) == 1
        nursery.cancel_scope.cancel()


async def test_surplus_votes_of_our_own_are_removed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    candidate = Candidate(metadata, A)
    payload = b'bookieId: "127.0.0.1:33812"\n'
    for _ in range(3):
        await candidate.store.create(
            PATHS.vote_prefix, payload, ephemeral=True, sequential=True, parents=True
        )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await until(lambda: candidate.election.is_elected)
        assert votes(metadata) == ["V_0000000000"]
        nursery.cancel_scope.cancel()


async def test_candidates_on_one_store_are_told_apart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    store = metadata.connect()
    first, second = election_of(store, A), election_of(store, B)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(second.run, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        assert (first.is_elected, second.is_elected) == (True, False)
        assert len(votes(metadata)) == 2
        nursery.cancel_scope.cancel()


async def test_a_lost_watch_on_the_predecessor_is_made_up_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    first, second = Candidate(metadata, A), Candidate(metadata, B)
    second.script.add(Fault(watch_seconds=NEVER), verb="exists")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(second.run)
        await trio.testing.wait_all_tasks_blocked()
        assert second.script.is_played_out
        first.scope.cancel()
        await until(lambda: second.election.is_elected)
        nursery.cancel_scope.cancel()


async def test_other_names_among_the_votes_are_passed_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    planted(metadata, [f"{PATHS.election}/A_strange", f"{PATHS.election}/V_x"])
    candidate = Candidate(metadata, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await until(lambda: candidate.election.is_elected)
        assert await current_auditor(metadata.connect(), ROOT) == A
        nursery.cancel_scope.cancel()


async def test_standing_waits_for_a_store_that_is_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    metadata.available = False
    candidate = Candidate(metadata, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.run)
        await trio.sleep(100)
        metadata.available = True
        await until(lambda: candidate.election.is_elected)
        nursery.cancel_scope.cancel()


async def test_standing_without_a_cluster_is_an_error() -> None:
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError, match="not initialised"):
        await election_of(metadata.connect(), A).run(trio.sleep_forever)
    assert metadata.tree.find(ROOT) is None


async def test_an_audit_that_fails_ends_the_candidacy_with_its_own_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()

    async def fail() -> None:
        raise RuntimeError("cannot audit")

    with pytest.raises(RuntimeError, match="cannot audit"):
        await election_of(metadata.connect(), A).run(fail)
    assert votes(metadata) == [], "so that somebody else may try"


async def test_an_audit_that_returns_ends_the_candidacy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = cluster()
    await election_of(metadata.connect(), A).run(trio.lowlevel.checkpoint)
    assert votes(metadata) == []


async def test_there_is_one_auditor_in_the_end_on_a_bad_network(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Lost answers, late watches, expiring sessions; when it calms down exactly one is left."""
    for seed in range(10):
        chance = random.Random(seed)
        is_rough = True

        def fault(_: Request, chance: random.Random = chance) -> Fault:
            if not is_rough:  # noqa: B023
                return Fault(request_seconds=0.001)
            return Fault(
                outcome=chance.choice([Outcome.ANSWERED] * 4 + [Outcome.ANSWER_LOST]),
                request_seconds=chance.random() / 20,
                watch_seconds=chance.random(),
            )

        metadata = cluster()
        candidates = [Candidate(metadata, BookieId(f"bk{n}:1"), fault) for n in range(3)]
        async with trio.open_nursery() as nursery:
            for candidate in candidates:
                nursery.start_soon(candidate.run)
            for _ in range(15):
                await trio.sleep(chance.random() * 2)
                victim = chance.choice(candidates)
                if victim.store.session is not None:
                    victim.expire(silently=chance.random() < 0.5)
            is_rough = False
            await trio.sleep(200)
            assert sum(candidate.election.is_elected for candidate in candidates) == 1
            assert len(votes(metadata)) == 3
            nursery.cancel_scope.cancel()
