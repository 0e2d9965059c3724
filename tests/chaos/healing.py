"""Is everything whole again? Asked of ZooKeeper and, copy by copy, of the bookies themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from autorecovery.checks_replica import ReplicaCheck, ReplicaState, replicas_of
from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.daemon import opened_context
from ledger_client import LedgerClient, LedgerError
from metadata.connect import open_store
from metadata.model import LedgerMetadata
from metadata.update import LedgerGoneError
from metadata.uri import parse_metadata_uri
from tests.chaos.checker import JUDGE
from tests.chaos.history import History
from tests.chaos.readers import Reading
from tests.chaos.writers import PASSWORD
from wire.types import BookieId, LedgerId

#: Writers get so long to close by themselves what was open when something was destroyed.
_PATIENCE_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.5
#: One look at everything; a bookie that hangs must not hold up the verdict for ever.
_LOOK_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Whole:
    """What became of the wait: None if everything is there."""

    missing: str | None
    seconds: float


def ledgers_now(uri: str) -> set[int]:
    async def ask() -> set[int]:
        async with LedgerClient(uri) as client:
            return {ledger_id async for ledger_id in client.list()}

    return trio.run(ask)


def wait_whole(uri: str, bookies: int, wanted: Collection[int], within_seconds: float) -> Whole:
    """Until each of these ledgers is closed, and every bookie that it names has its copies.

    Whatever is still open after a while is recovered, as an operator would do it: nobody else can
    say what the last entries of an open ledger are, and whether they have all their copies.
    """
    begun = time.monotonic()
    missing: str | None = "nothing was looked at"
    left = set(wanted)
    while time.monotonic() - begun < within_seconds:
        try:
            missing = trio.run(_look, uri, bookies, left, time.monotonic() - begun)
        except (LedgerError, OSError, trio.TooSlowError) as error:
            missing = f"{type(error).__name__}: {error}"
        if missing is None:
            break
        time.sleep(_PAUSE_SECONDS)
    return Whole(missing, time.monotonic() - begun)


@asynccontextmanager
async def opened_judge(uri: str) -> AsyncIterator[RecoveryContext]:
    """A connection to everything, as the commands of operators have it."""
    parsed = parse_metadata_uri(uri)
    settings = RecoverySettings(auditor=AuditorConfig(), worker=WorkerConfig())
    async with opened_context(
        lambda: open_store(parsed), parsed, bookie_id=BookieId(JUDGE), settings=settings
    ) as context:
        yield context


async def _look(uri: str, bookies: int, left: set[int], waited: float) -> str | None:
    """What is not whole yet, in words; ledgers that are leave the set."""
    with trio.fail_after(_LOOK_SECONDS):
        async with opened_judge(uri) as context, LedgerClient(uri) as client:
            count = len(client.bookies().all)
            if count < bookies:
                return f"only {count} of {bookies} bookies are registered"
            for number in sorted(left):
                found = await _look_at(context, client, LedgerId(number), waited)
                if found is not None:
                    return f"ledger {number}: {found}"
                left.discard(number)
            return None


async def _look_at(
    context: RecoveryContext, client: LedgerClient, ledger_id: LedgerId, waited: float
) -> str | None:
    try:
        metadata = await client.metadata(ledger_id)
        if not metadata.is_closed and waited > _PATIENCE_SECONDS:
            await client.open(ledger_id, password=PASSWORD)
            metadata = await client.metadata(ledger_id)
        if not metadata.is_closed:
            return f"it is {metadata.state.name}"
        return await _bad_copy(context, metadata)
    except LedgerGoneError:
        return None


async def _bad_copy(context: RecoveryContext, metadata: LedgerMetadata) -> str | None:
    check = ReplicaCheck(context.client)
    for found in metadata.ranges():
        for replica in replicas_of(metadata, found):
            finding = await check.check(replica)
            if finding.state is not ReplicaState.GOOD:
                outcome = finding.outcome.name if finding.outcome else "?"
                return f"entry {finding.entry_id} on {replica.bookie_id} is {outcome}"
    return None


def judge(uri: str, folder: Path, within_seconds: float) -> list[int]:
    """Open and read every ledger, for the history; those that could not be read to the end."""

    async def read_all() -> list[int]:
        history = History(folder / "history", f"{JUDGE}-1")
        async with LedgerClient(uri) as client:
            known = [ledger_id async for ledger_id in client.list()]
            reading = Reading(client, history, _Known(list(known)), JUDGE)
            # Everything is tried once, however long that takes; then again until time is up.
            left = [number for number in known if not await reading.open_and_read(number)]
            with trio.move_on_after(within_seconds):
                while left:
                    await trio.sleep(_PAUSE_SECONDS)
                    left = [number for number in left if not await reading.open_and_read(number)]
            return [int(number) for number in left]

    return trio.run(read_all)


@dataclass(slots=True)
class _Known:
    known: list[int]
