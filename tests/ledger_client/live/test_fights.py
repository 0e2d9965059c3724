"""A writer and two clients that want its ledger, a hundred times over."""

from __future__ import annotations

import random

import trio

from ledger_client import FencedError, LedgerClient, LedgerClosedError, LedgerReader
from metadata.model import LedgerMetadata, LedgerState
from tests.ledger_client.live.cluster import LiveCluster

FIGHTS = 100
AT_A_TIME = 20
SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 1)]


class Fight:
    """The writer is never told to stop: only the fence holds it back."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(number)
        self._confirmed: list[int] = []
        self._ends: list[LedgerReader] = []

    async def run(self, clients: tuple[LedgerClient, LedgerClient, LedgerClient]) -> None:
        writing, *others = clients
        ensemble_size, write_quorum, ack_quorum = self._chance.choice(SHAPES)
        ledger = await writing.create(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        appends = self._chance.randrange(40)

        async def write() -> None:
            try:
                while len(self._confirmed) < appends:
                    self._confirmed.append(await ledger.append(b"%d" % len(self._confirmed)))
                await ledger.close()
            except (FencedError, LedgerClosedError):
                return

        async def take_over(client: LedgerClient) -> None:
            await trio.sleep(self._chance.random() * 0.2)
            self._ends.append(await client.open(ledger.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for client in others:
                nursery.start_soon(take_over, client)
        await self._check(await writing.metadata(ledger.id))

    async def _check(self, metadata: LedgerMetadata) -> None:
        (end,) = {(reader.last_confirmed, reader.length) for reader in self._ends}
        assert metadata.state is LedgerState.CLOSED
        assert end == (metadata.last_entry_id, metadata.length)
        assert self._confirmed == list(range(len(self._confirmed)))
        assert end[0] >= len(self._confirmed) - 1
        found = [entry.payload async for entry in self._ends[0].read(0, end[0])]
        assert found == [b"%d" % i for i in range(end[0] + 1)]


async def test_every_fight_has_one_end_with_all_that_was_confirmed_inside(
    cluster: LiveCluster,
) -> None:
    """Both others come at a moment of their own.

    All three must agree on where the ledger ends, and every append that was confirmed must be
    before it, whoever won.
    """
    limit = trio.CapacityLimiter(AT_A_TIME)
    async with (
        LedgerClient(cluster.uri) as writing,
        LedgerClient(cluster.uri) as second,
        LedgerClient(cluster.uri) as third,
        trio.open_nursery() as nursery,
    ):

        async def fight(number: int) -> None:
            async with limit:
                await Fight(number).run((writing, second, third))

        for number in range(FIGHTS):
            nursery.start_soon(fight, number)
