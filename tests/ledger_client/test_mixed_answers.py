"""Entries in copies and in batches, of one writer: whichever is answered last, all count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, permutations
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from ledger_client.alarms import Alarms
from ledger_client.core.commands import Outcome
from ledger_client.environment import Access, Environment
from ledger_client.errors import ClientClosedError
from ledger_client.intake import Batch
from ledger_client.requests import Adds, Answer, Request
from ledger_client.rounds import Rounds
from ledger_client.writer import LedgerWriter
from metadata.model import new_ledger
from metadata.update import VersionedLedger
from wire.types import BookieId, DigestType, LedgerId

BOOKIES = [BookieId("b0"), BookieId("b1"), BookieId("b2")]
LEDGER = LedgerId(7)

#: What a bookie was asked and has not answered.
Asked = tuple[BookieId, Batch | Adds]


class Wire:
    """Takes the place of the pool: keeps what is sent, and answers when told to."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def line_to(self, bookie_id: BookieId) -> Any:
        def add_copy(_key: bytes, copy: Batch) -> None:
            self.asked.append((bookie_id, copy))

        return SimpleNamespace(has_room=True, add_copy=add_copy)

    def ask(self, bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, Adds):  # all else is a LAC that is told
            self.asked.append((bookie_id, request))

    def takes_batches(self, _bookies: Sequence[BookieId]) -> bool:
        return True

    def unlisten(self, _listener: object) -> None:
        """Nobody listened."""

    def answer(self, asked: Asked) -> None:
        self.asked.remove(asked)
        bookie_id, what = asked
        if isinstance(what, Batch):
            what.owner.on_copy(what.entry, bookie_id)
        else:
            what.sink([Answer(what.request_id, Outcome.OK)])


class Desks(Rounds):
    """Makes the rounds when told to."""

    def make(self) -> None:
        while self._due:
            self._due.popleft()()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def rounds() -> Desks:
    return Desks()


@pytest.fixture
def writers(wire: Wire, rounds: Desks) -> Callable[[int], LedgerWriter]:
    def make(size: int) -> LedgerWriter:
        metadata = new_ledger(
            ledger_id=LEDGER, ensemble=BOOKIES[:size], write_quorum=size, ack_quorum=2,
            digest_type=DigestType.CRC32C, password=b"",
        )  # fmt: skip
        environment = SimpleNamespace(
            pool=wire,
            rounds=rounds,
            alarms=Alarms(),
            request_ids=count(1),
            handles=set(),
            explained=lambda failure: failure,
        )
        access = Access.of(LEDGER, DigestType.CRC32C, b"")
        return LedgerWriter(cast("Environment", environment), VersionedLedger(metadata, 0), access)

    return make


async def test_answers_kept_back_count_when_a_copy_fills_the_quorum_before_them(
    wire: Wire, rounds: Desks, writers: Callable[[int], LedgerWriter]
) -> None:
    await trio.lowlevel.checkpoint()
    writer = writers(2)
    writer.put(b"one")
    copies = list(wire.asked)
    writer.put(b"two")
    writer.put(b"three")
    rounds.make()
    batch = wire.asked[2:]
    wire.answer(batch[0])
    writer.put(b"four")  # the writer looks, for another reason
    rounds.make()
    wire.answer(batch[1])  # kept back: the first entry has no copy yet
    for copy in copies:
        wire.answer(copy)
    rounds.make()
    assert writer.last_confirmed == 2


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(60))
async def test_everything_is_confirmed_in_whatever_order_answers_come(
    size: int, seed: int, wire: Wire, rounds: Desks, writers: Callable[[int], LedgerWriter]
) -> None:
    await trio.lowlevel.checkpoint()
    chance, writer = Random(seed), writers(size)
    left = 12
    while left or wire.asked:
        if left and chance.random() < 0.4:
            for _ in range(min(left, chance.choice((1, 1, 2, 4)))):
                writer.put(b"payload")
                left -= 1
        elif wire.asked:
            wire.answer(chance.choice(wire.asked))
        if chance.random() < 0.7:
            rounds.make()
    rounds.make()
    assert writer.last_confirmed == 11


async def test_one_entry_is_confirmed_by_any_two_of_its_copies(
    wire: Wire, rounds: Desks, writers: Callable[[int], LedgerWriter]
) -> None:
    await trio.lowlevel.checkpoint()
    writer = writers(3)
    for number, order in enumerate(permutations(range(3))):
        place = writer.put(b"one")
        copies = [wire.asked[i] for i in order]
        wire.answer(copies[0])
        assert writer.last_confirmed == number - 1
        wire.answer(copies[1])
        assert writer.last_confirmed == number
        assert await place() == number
        wire.answer(copies[2])


async def test_copies_that_are_acknowledged_after_the_client_was_closed_mean_nothing(
    wire: Wire, writers: Callable[[int], LedgerWriter]
) -> None:
    await trio.lowlevel.checkpoint()
    writer = writers(3)
    place = writer.put(b"one")
    writer.on_client_closed()
    for copy in list(wire.asked):
        wire.answer(copy)
    with pytest.raises(ClientClosedError):
        await place()
