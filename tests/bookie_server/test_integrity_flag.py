"""A bookie that may have lost entries says so, start after start, until it was checked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from bookie.server import RunningBookie, run_bookie
from bookie.storage.index_format import NEEDS_INTEGRITY_CHECK_KEY, encode_flag
from tests.bookie_server.service import Site
from wire.errors import LedgerError, Status
from wire.messages import ReadRequest
from wire.types import LedgerId


async def site_with_a_loss() -> Site:
    """As an accepted loss of the journal leaves it: a flag, and ledger 1 in limbo."""
    site = Site()
    await site.initialise()
    async with site.serving() as running:
        client = await site.connect()
        await client.add_v2(1, 0)
        await client.answer_v2()
        running.store.engine.set_limbo(1, True, lambda: None)
        [directory] = running.store.engine.directories
        directory.index.apply([(NEEDS_INTEGRITY_CHECK_KEY, encode_flag(True))])
    return site


def says_so(running: RunningBookie) -> bool:
    return "quire_needs_integrity_check 1" in running.registry.render()


async def test_loss_is_told_at_every_start_until_it_was_checked(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    site = await site_with_a_loss()
    for _ in range(2):
        caplog.clear()
        async with site.serving() as running:
            assert running.store.needs_integrity_check
            assert says_so(running)
            assert "run it with `quire bookie`" in caplog.text
    async with site.serving() as running:
        running.store.engine.set_limbo(1, False, lambda: None)
        running.store.integrity_checked()
        await trio.testing.wait_all_tasks_blocked()
        assert not says_so(running)
    caplog.clear()
    async with site.serving() as running:
        assert not running.store.needs_integrity_check
        assert not says_so(running)
        assert "integrity" not in caplog.text


async def test_ledger_in_limbo_gives_what_it_has_and_denies_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await site_with_a_loss()
    async with site.serving():
        client = await site.connect()
        found = await client.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=0))
        assert found.status is Status.OK
        missing = await client.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=1))
        assert missing.status is Status.IO_ERROR, "v2 has no word for unknown"
        await client.add_v2(1, 1)
        assert (await client.answer_v2()).status is Status.FENCED


async def test_loss_is_not_accepted_by_a_bookie_that_cannot_ask_what_it_has_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of a ledger that was in the lost part alone it would say that it never existed."""
    site = await site_with_a_loss()
    settings = site.settings()
    accepting = replace(settings, storage=replace(settings.storage, accept_loss=True))
    refusal = pytest.RaisesExc(LedgerError, match="only the metadata")
    with pytest.RaisesGroup(refusal, flatten_subgroups=True):
        await run_bookie(accepting, site.shell(), trio.Event())
