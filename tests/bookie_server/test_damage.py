"""Damaged runs: counted once each, told, and past a limit a reason to take no more entries."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.bookie_server.service import Site
from wire.errors import Status
from wire.messages import ReadRequest
from wire.types import LedgerId

LIMIT = 3


async def site_with_damage(runs: int) -> Site:
    """Ledgers 1 to `runs` have one entry each, and a bit of each has rotted in the entry log."""
    site = Site()
    await site.initialise()
    async with site.serving():
        client = await site.connect()
        for ledger_id in range(1, runs + 1):
            await client.add_v2(ledger_id, 0)
            await client.answer_v2()
    [log] = [path for path in site.files.list_directory("/disk/ledgers/current") if ".log" in path]
    path = f"/disk/ledgers/current/{log}"
    data = site.files.open(path, read_only=True).read(1 << 20, 0)
    for ledger_id in range(1, runs + 1):
        # Inside the record: ledger and entry id where the index says that they are.
        site.files.flip(path, data.index(ledger_id.to_bytes(8, "big") + bytes(8) + b"\xff" * 8) + 7)
    return site


@pytest.mark.parametrize("runs", [LIMIT, LIMIT + 1])
async def test_too_much_damage_makes_the_bookie_read_only(
    runs: int, autojump_clock: trio.testing.MockClock
) -> None:
    site = await site_with_damage(runs)
    is_too_much = runs > LIMIT
    async with site.serving(damaged_runs_max=LIMIT) as running:
        client = await site.connect()
        for _ in range(2):  # the same damage again is no more damage
            for ledger_id in range(1, runs + 1):
                found = await client.ask_v2(ReadRequest(ledger_id=LedgerId(ledger_id), entry_id=0))
                assert found.status is Status.IO_ERROR
        assert sorted(running.bookie.damaged.values()) == list(range(1, runs + 1))
        assert f"quire_damaged_runs {runs}" in running.registry.render()
        await trio.sleep(1)
        assert running.mode.read_only == is_too_much
        assert ("check the disks" in running.mode.reason) == is_too_much
        assert await site.is_listed(readonly=is_too_much)
        await client.add_v2(99, 0)
        taken = (await client.answer_v2()).status
        assert taken is (Status.READ_ONLY if is_too_much else Status.OK)
