"""The commit protocol on the memory store, which can lose answers and let others go first."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from metadata.faults import Fault, Outcome, Script
from metadata.ledgers import Ledgers
from metadata.memory import MemoryMetadata
from metadata.model import new_ledger
from metadata.paths import LayoutType
from metadata.update import Backoff, LedgerGoneError
from spark.commits import Commits
from spark.core.commits import (
    LEDGERS_MAX,
    CommitConflictError,
    CommitError,
    CommitRecord,
    Identity,
    WrittenLedger,
    WrittenPart,
    identity_of,
    staged_metadata,
)
from spark.core.rollup import RollUp, total
from wire.types import BookieId, DigestType, LedgerId

ROOT = "/ledgers"
JOB = Identity("job-1")
SOON = Backoff(first_seconds=0.0001, seconds_max=0.001)


class World:
    """A store of which the commits use one connection, and the test another."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.metadata = MemoryMetadata(lambda: self.now_ms)
        self.script = Script()
        self.ledgers = self._ledgers(None)
        self.commits = Commits(self._ledgers(self.script), chance=random.Random(1), backoff=SOON)
        self.metadata.tree.create(ROOT, b"", owner=None, sequential=False, open_acl=True)

    def _ledgers(self, faults: Script | None) -> Ledgers:
        store = self.metadata.connect(faults)
        chance = random.Random(2)
        return Ledgers(store, ROOT, LayoutType.HIERARCHICAL, chance=chance, backoff=SOON)

    async def staged(
        self, identity: Identity, *, partition: int = 0, ttl_ms: int = 1000
    ) -> WrittenLedger:
        """A ledger of the sink with one row in it."""
        template = new_ledger(
            ledger_id=LedgerId(0),
            ensemble=[BookieId("a:1")],
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"",
            custom=staged_metadata(identity, partition=partition, attempt=0, ttl_ms=ttl_ms),
            ctime_ms=self.now_ms,
        )
        made = await self.ledgers.create(template)
        return WrittenLedger(made.metadata.ledger_id, RollUp.of([b"row"]))

    async def exists(self, ledger: WrittenLedger) -> bool:
        return not await self.ledgers.is_gone(LedgerId(ledger.ledger_id))


def record_of(identity: Identity, *ledgers: WrittenLedger) -> CommitRecord:
    parts = [WrittenPart(index, (ledger,)) for index, ledger in enumerate(ledgers)]
    return CommitRecord.of(identity, parts)


def test_roll_up_does_not_depend_on_order_or_grouping() -> None:
    rows = [b"a", b"bc", b"", b"d" * 100]
    assert RollUp.of(rows) == total(RollUp.of([row]) for row in reversed(rows))
    assert RollUp.of(rows) != RollUp.of([b"b", b"ac", b"", b"d" * 100])


def test_record_orders_ledgers_by_partition() -> None:
    parts = [
        WrittenPart(2, (WrittenLedger(5, RollUp()),)),
        WrittenPart(0, (WrittenLedger(9, RollUp()), WrittenLedger(3, RollUp()))),
        WrittenPart(1, ()),
    ]
    record = CommitRecord.of(JOB, parts)
    assert record.ledger_ids == (9, 3, 5)
    assert CommitRecord.decode(record.encode(), where="/x") == record


def test_record_refuses_two_attempts_of_one_partition_and_too_many_ledgers() -> None:
    part = WrittenPart(1, (WrittenLedger(5, RollUp()),))
    with pytest.raises(CommitError, match="two attempts"):
        CommitRecord.of(JOB, [part, part])
    many = tuple(WrittenLedger(n, RollUp()) for n in range(LEDGERS_MAX + 1))
    with pytest.raises(CommitError, match="coalesce"):
        CommitRecord.of(JOB, [WrittenPart(0, many)])


def test_largest_record_and_its_checks_fit_into_one_request() -> None:
    rows = RollUp(10**9, 10**12, 2**63 - 1)
    big = tuple(WrittenLedger(2**63 - 1 - n, rows) for n in range(LEDGERS_MAX))
    path_bytes = len("/ledgers/922/3372/0368/5477/L5807") + 4 + 4 + 9  # and the operation's header
    assert len(CommitRecord(JOB, big).encode()) + path_bytes * LEDGERS_MAX < 1_000_000


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"v":2}', b'{"v":1,"ledgers":[[]]}'])
def test_damaged_record_is_named(data: bytes) -> None:
    with pytest.raises(CommitError, match="/there"):
        CommitRecord.decode(data, where="/there")


@pytest.mark.parametrize("text", ["", "a/b", "a/", "../x", "a b", "x" * 300, "a/-1"])
def test_identity_that_cannot_be_a_node_is_refused(text: str) -> None:
    with pytest.raises(CommitError):
        Identity.parse(text)


def test_ledgers_of_others_are_never_taken_for_ours() -> None:
    ours = staged_metadata(Identity("q", 3), partition=1, attempt=7)
    assert identity_of(ours) == Identity("q", 3)
    for key in ours:
        if "identity" in key or "state" in key:
            assert identity_of({k: v for k, v in ours.items() if k != key}) is None
    assert identity_of({**ours, "quire.spark.identity": b"\xff"}) is None


async def test_commit_is_read_back_beside_the_tree_of_the_cluster() -> None:
    world = World()
    one, two = await world.staged(JOB), await world.staged(JOB, partition=1)
    record = record_of(JOB, one, two)
    assert await world.commits.commit(record) == record
    assert await world.commits.read(JOB) == record
    assert await world.commits.ledger_ids(JOB) == list(record.ledger_ids)
    names, _ = await world.ledgers.store.children("/")
    assert names == ["ledgers", "ledgers-quire"]


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
@pytest.mark.parametrize("identity", [JOB, Identity("query", 0)])
async def test_commit_whose_answer_is_lost_is_made_once(
    outcome: Outcome, identity: Identity
) -> None:
    world = World()
    record = record_of(identity, await world.staged(identity))
    world.script.add(Fault(outcome=outcome), verb="transact")
    assert await world.commits.commit(record) == record
    assert await world.commits.read(identity) == record
    assert await world.exists(record.ledgers[0])


async def test_second_run_of_a_job_leaves_the_first_commit_and_no_ledger_behind() -> None:
    world = World()
    first, again = await world.staged(JOB), await world.staged(JOB)
    await world.commits.commit(record_of(JOB, first))
    stands = await world.commits.commit(record_of(JOB, again))
    assert stands.ledger_ids == (first.ledger_id,)
    assert await world.exists(first)
    assert not await world.exists(again)


async def test_second_run_with_other_rows_is_refused_and_changes_nothing() -> None:
    world = World()
    first, other = await world.staged(JOB), await world.staged(JOB)
    await world.commits.commit(record_of(JOB, first))
    other = WrittenLedger(other.ledger_id, RollUp.of([b"another row"]))
    with pytest.raises(CommitConflictError, match="choose another writeId"):
        await world.commits.commit(record_of(JOB, other))
    assert await world.commits.ledger_ids(JOB) == [first.ledger_id]
    assert await world.commits.discard(JOB, [first.ledger_id, other.ledger_id]) == [other.ledger_id]
    assert await world.exists(first)


async def test_overwrite_swaps_the_list_and_leaves_the_old_ledgers_to_the_sweep() -> None:
    world = World()
    old, new = await world.staged(JOB), await world.staged(JOB)
    await world.commits.commit(record_of(JOB, old))
    world.now_ms = 50_000
    await world.commits.commit(record_of(JOB, new), overwrite=True)
    assert await world.commits.ledger_ids(JOB) == [new.ledger_id]
    assert await world.exists(old)
    # Whoever planned before the swap may still read for as long as the ttl.
    assert await world.commits.sweep(now_ms=50_000 + 9_999, ttl_ms=10_000) == []
    assert await world.commits.sweep(now_ms=50_000 + 10_000, ttl_ms=10_000) == [old.ledger_id]
    assert await world.exists(new)


async def test_batches_of_a_query_are_committed_in_order_and_replays_change_nothing() -> None:
    world = World()
    committed: list[int] = []
    for batch in range(3):
        identity = Identity("query", batch)
        first, replay = await world.staged(identity), await world.staged(identity)
        await world.commits.commit(record_of(identity, first))
        stands = await world.commits.commit(record_of(identity, replay))
        assert stands.ledger_ids == (first.ledger_id,)
        assert not await world.exists(replay)
        committed.append(first.ledger_id)
    assert await world.commits.last_batch("query") == 2
    assert await world.commits.ledger_ids(Identity("query")) == committed
    assert await world.commits.ledger_ids(Identity("query", 1)) == committed[1:2]


async def test_batch_without_rows_moves_the_head_and_its_replay_is_dropped() -> None:
    world = World()
    identity = Identity("query", 1000)
    await world.commits.commit(record_of(identity))
    assert await world.commits.last_batch("query") == 1000
    assert await world.commits.ledger_ids(identity) == []
    late = await world.staged(Identity("query", 999))
    await world.commits.commit(record_of(Identity("query", 999), late))
    assert not await world.exists(late)


async def test_identity_without_a_commit_is_an_error() -> None:
    world = World()
    for text in ("job", "query/7"):
        with pytest.raises(CommitError, match=f"nothing is committed as {text}"):
            await world.commits.ledger_ids(Identity.parse(text))


async def test_abort_after_a_commit_that_had_won_deletes_nothing() -> None:
    world = World()
    record = record_of(JOB, await world.staged(JOB))
    await world.commits.commit(record)
    assert await world.commits.discard(JOB, record.ledger_ids) == []
    assert await world.exists(record.ledgers[0])


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_abort_deletes_ledgers_though_an_answer_is_lost(outcome: Outcome) -> None:
    world = World()
    ledger = await world.staged(JOB)
    world.script.add(Fault(outcome=outcome), verb="transact")
    await world.commits.discard(JOB, [ledger.ledger_id])
    assert not await world.exists(ledger)
    assert await world.commits.read(JOB) is None


async def test_abort_that_races_with_a_commit_loses() -> None:
    """The commit lands between the look of the abort and its delete: the ledger must stay."""
    world = World()
    record = record_of(JOB, await world.staged(JOB))
    await world.commits.discard(JOB, [999])  # makes the directory
    path = "/ledgers-quire/commits/jobs/job-1"

    def land() -> None:
        world.metadata.tree.create(path, record.encode(), owner=None, sequential=False)

    world.script.add(Fault(meanwhile=land), verb="transact")
    assert await world.commits.discard(JOB, record.ledger_ids) == []
    assert await world.exists(record.ledgers[0])


async def test_commit_of_a_ledger_that_was_swept_fails_and_says_which() -> None:
    world = World()
    kept, swept = await world.staged(JOB), await world.staged(JOB)
    await world.ledgers.delete(LedgerId(swept.ledger_id))
    with pytest.raises(LedgerGoneError, match="orphanTtl") as caught:
        await world.commits.commit(record_of(JOB, kept, swept))
    assert caught.value.ledger_id == swept.ledger_id
    assert await world.commits.read(JOB) is None


async def test_sweep_deletes_old_leftovers_and_nothing_else() -> None:
    world = World()
    listed, double = await world.staged(JOB), await world.staged(JOB)
    query = await world.staged(Identity("query", 4))
    await world.commits.commit(record_of(JOB, listed))
    stranger = await world.ledgers.create(
        new_ledger(
            ledger_id=LedgerId(0),
            ensemble=[BookieId("a:1")],
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"",
            custom={},
            ctime_ms=1,
        )
    )
    world.now_ms = 100_000
    young = await world.staged(JOB)
    left: Sequence[int] = [double.ledger_id, query.ledger_id]
    assert await world.commits.sweep(now_ms=world.now_ms, ttl_ms=10_000) == sorted(left)
    assert await world.exists(listed)
    assert await world.exists(young)
    assert not await world.ledgers.is_gone(stranger.metadata.ledger_id)
    assert await world.commits.sweep(now_ms=world.now_ms, ttl_ms=10_000) == []


async def test_sweep_keeps_to_what_the_job_said_about_its_leftovers() -> None:
    world = World()
    ledger = await world.staged(JOB, ttl_ms=5000)
    made = world.now_ms
    assert await world.commits.sweep(now_ms=made + 4999) == []
    assert await world.commits.sweep(now_ms=made + 5000) == [ledger.ledger_id]
