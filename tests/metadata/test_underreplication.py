"""Marks of ledgers that lack copies: what is written, merged, renewed and listed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing

from metadata.faults import Fault, Outcome, Script
from metadata.memory import MemoryMetadata
from metadata.model import InvalidMetadataError
from metadata.paths import ClusterPaths
from metadata.records import decode_mark
from metadata.store import ANY_VERSION, NoNodeError
from tests.metadata.marks_world import (
    CAPTURED,
    NOW,
    PATHS,
    ROOT,
    A,
    B,
    C,
    World,
    manager,
    take,
)
from tests.metadata.places import Place, dump, place, planted
from wire.types import BookieId, LedgerId

__all__ = ["place"]


async def test_opening_makes_what_java_makes(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        under = manager(store, place.root)
        await under.open()
        await under.open()
        base = f"{place.root}/underreplication"
        assert await dump(store, base) == {
            base: b"",
            f"{base}/LAYOUT": b'type: "BASIC"\nversion: 1\n',
            f"{base}/ledgers": b"",
            f"{base}/locks": b"",
        }


async def test_opening_refuses_another_layout() -> None:
    metadata = MemoryMetadata()
    planted(metadata, [PATHS.underreplication_layout], b'type: "FANCY"\nversion: 1\n')
    with pytest.raises(InvalidMetadataError, match="FANCY"):
        await manager(metadata.connect()).open()


async def test_opening_survives_races_and_lost_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata = MemoryMetadata()
    planted(metadata, [ROOT])
    script = Script()
    for skip in range(4):
        script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create", skip=skip)
    await manager(metadata.connect(script)).open()
    assert script.is_played_out
    assert sorted(metadata.tree.get(PATHS.underreplication).children) == [
        "LAYOUT", "ledgers", "locks",
    ]  # fmt: skip


async def test_nothing_is_made_without_a_cluster() -> None:
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError, match="not initialised"):
        await manager(metadata.connect()).open()
    assert metadata.tree.find(ROOT) is None


# ---------------------------------------------------------------------- marking


async def test_marks_have_the_bytes_and_places_of_java(place: Place) -> None:
    """Every captured mark, made anew: first with its first replica, then extended."""
    async with place.connected() as store:
        await store.create(place.root)
        nodes = [n for n in CAPTURED["nodes"] if n["kind"] == "UnderreplicatedLedgerFormat"]
        assert nodes
        for node in nodes:
            ledger_id = LedgerId(int(node["path"].rpartition("urL")[2]))
            content = decode_mark(bytes.fromhex(node["data_hex"]))
            under = manager(store, place.root, now_ms=content.ctime_ms or 0)
            path = ClusterPaths(place.root).mark(ledger_id)
            assert path.removeprefix(place.root) == "/" + node["path"].split("/", 2)[2]
            for replica in content.replicas:
                await under.mark(ledger_id, [replica])
            found = await store.get(path)
            assert found.data.hex() == node["data_hex"]
            assert found.stat.version == len(content.replicas) - 1
            await store.delete(path, version=ANY_VERSION)


async def test_a_mark_is_extended_and_not_repeated() -> None:
    world = World()
    ledger = LedgerId(5)
    await world.mine.mark(ledger, [A])
    await world.mine.mark(ledger, [B, A])
    mark = await world.mine.read_mark(ledger)
    assert mark is not None
    assert (mark.content.replicas, mark.version) == ((A, B), 1)
    await world.other.mark(ledger, [A])
    await world.other.mark(ledger, [B, A])
    again = await world.mine.read_mark(ledger)
    assert again == mark, "no write, or a worker about to delete it would fail for nothing"


async def test_a_mark_is_renewed_while_somebody_works_on_it() -> None:
    """The worker may have looked before this loss, and must not delete the mark.

    Re-marking with the same replica would not stop it otherwise: nothing would change.
    """
    world = World()
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    await manager(world.other_store, now_ms=NOW + 1).mark(LedgerId(5), [A])
    assert not await world.mine.finish(lock)
    found = world.mark_of(5)
    assert found is not None
    assert decode_mark(found).replicas == (A,)
    assert decode_mark(found).ctime_ms == NOW + 1
    assert not world.is_locked(5)


async def test_marks_may_go_without_a_time_or_without_names() -> None:
    world = World()
    await manager(world.store, stores_mark_time=False).mark(LedgerId(5), [A])
    assert world.mark_of(5) == b'replica: "bk1:3181"\n'
    await world.mine.mark(LedgerId(6), [])
    assert world.mark_of(6) == f"ctime: {NOW}\n".encode()


async def test_marking_refuses_what_is_no_bookie_id() -> None:
    world = World()
    with pytest.raises(InvalidMetadataError):
        await world.mine.mark(LedgerId(5), [BookieId("a/b")])
    assert world.mark_of(5) is None


async def test_markers_that_collide_both_get_their_say() -> None:
    world = World()
    path = PATHS.mark(LedgerId(5))
    await world.other.mark(LedgerId(5), [A])
    theirs = f'replica: "{A}"\nreplica: "{C}"\n'.encode()
    world.script.add(world.metadata.conflict(path, theirs), verb="set", path=path)
    await world.mine.mark(LedgerId(5), [B])
    assert world.script.is_played_out
    mark = await world.mine.read_mark(LedgerId(5))
    assert mark is not None
    assert mark.content.replicas == (A, C, B)


async def test_a_mark_that_is_deleted_while_being_extended_is_made_again() -> None:
    world = World()
    path = PATHS.mark(LedgerId(5))
    await world.other.mark(LedgerId(5), [A])

    def vanish() -> None:
        world.metadata.tree.delete(path, ANY_VERSION)
        world.metadata.publish()

    for verb in ("get", "set"):
        world.script.add(Fault(meanwhile=vanish), verb=verb, path=path)
    await world.mine.mark(LedgerId(5), [B])
    mark = await world.mine.read_mark(LedgerId(5))
    assert mark is not None
    assert mark.content.replicas == (B,)


@pytest.mark.parametrize("verb", ["create", "set"])
@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_marking_survives_a_lost_answer(
    verb: Any, outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    path = PATHS.mark(LedgerId(5))
    if verb == "set":
        await world.other.mark(LedgerId(5), [A])
    world.script.add(Fault(outcome=outcome), verb=verb, path=path)
    await world.mine.mark(LedgerId(5), [B])
    assert world.script.is_played_out
    mark = await world.mine.read_mark(LedgerId(5))
    assert mark is not None
    assert mark.content.replicas == ((A, B) if verb == "set" else (B,))


async def test_an_unreadable_mark_still_marks(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    planted(world.metadata, [PATHS.mark(LedgerId(5))], b"\x00 junk")
    lock = await take(world.mine)
    assert lock.mark is not None
    assert lock.mark.content.replicas == ()
    assert "urL0000000005" in caplog.text
    await world.mine.release(lock)
    await world.mine.mark(LedgerId(5), [B])
    mark = await world.mine.read_mark(LedgerId(5))
    assert mark is not None
    assert mark.content.replicas == (B,)


async def test_marked_ledgers_are_listed_in_order(place: Place) -> None:
    numbers = [0, 1, 65535, 65536, 2**31, 4294967296, 12884901895, 2**63 - 1]
    async with place.connected() as store:
        await store.create(place.root)
        under = manager(store, place.root)
        await under.open()
        assert await under.marked() == []
        for number in random.Random(1).sample(numbers, len(numbers)):
            await under.mark(LedgerId(number), [A])
        base = f"{place.root}/underreplication/ledgers"
        await store.create(f"{base}/0000/0000/0000/0007")  # a mark that is only just coming
        await store.create(f"{base}/zzzz")
        assert await under.marked() == numbers
        assert await under.read_mark(LedgerId(7)) is None
