"""A bookie that may have lost entries says so, start after start, until it was checked."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.server import LostBookie, RunningBookie, run_bookie
from bookie.storage.index_format import FORGOTTEN_KEY, NEEDS_INTEGRITY_CHECK_KEY, encode_flag
from tests.bookie_server.service import Site
from wire.errors import LedgerError, Status
from wire.messages import ReadRequest
from wire.types import LedgerId


async def site_with_a_loss(*, forgotten: bool = False) -> Site:
    """As an accepted loss of the journal leaves it: a flag, and ledger 1 in limbo.

    `forgotten`: and nobody has asked the metadata yet what else was lost.
    """
    site = Site()
    await site.initialise()
    async with site.serving() as running:
        client = await site.connect()
        await client.add_v2(1, 0)
        await client.answer_v2()
        running.store.engine.set_limbo(1, True, lambda: None)
        [directory] = running.store.engine.directories
        directory.index.apply([(NEEDS_INTEGRITY_CHECK_KEY, encode_flag(True))])
        directory.index.apply([(FORGOTTEN_KEY, encode_flag(forgotten))])
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


async def test_bookie_that_cannot_ask_what_it_has_forgotten_does_not_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of a ledger that was in the lost part alone it would say that it never existed."""
    site = await site_with_a_loss(forgotten=True)
    refusal = pytest.RaisesExc(LedgerError, match="only the metadata")
    for _ in range(2):
        with pytest.RaisesGroup(refusal, flatten_subgroups=True):
            await run_bookie(site.settings(), site.shell(), trio.Event())


async def test_metadata_is_asked_once_and_until_it_has_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A second time would take ledgers that were made since, and have no entry yet, for lost."""
    site = await site_with_a_loss(forgotten=True)
    asked: list[LostBookie] = []
    unavailable = LedgerError("the metadata cannot be asked")

    async def fail(lost: LostBookie) -> None:
        raise unavailable

    async def ask(lost: LostBookie) -> None:
        asked.append(lost)

    with pytest.RaisesGroup(pytest.RaisesExc(LedgerError), flatten_subgroups=True):
        await run_bookie(site.settings(), site.shell(), trio.Event(), prepare=fail)
    for _ in range(2):
        async with site.serving(prepare=ask) as running:
            assert running.store.needs_integrity_check
            await trio.testing.wait_all_tasks_blocked()
    assert len(asked) == 1
