"""Whether one bookie takes entries and gives them back: a small ledger on it alone."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import trio

from ledger_client import LedgerClient, Security
from ledger_client.core.placement import Cluster, DefaultPolicy
from wire.errors import LedgerError
from wire.types import BookieId


class _OneBookie(DefaultPolicy):
    """Only this bookie: a ledger that tests it must not end up elsewhere."""

    def __init__(self, bookie_id: BookieId) -> None:
        self._bookie_id = bookie_id

    def new_ensemble(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        candidates: Collection[BookieId],
        cluster: Cluster,
        chance: Random,
    ) -> tuple[BookieId, ...] | None:
        return (self._bookie_id,) if self._bookie_id in candidates else None


async def try_bookie(
    uri: str,
    bookie_id: BookieId,
    *,
    count: int = 10,
    seconds: float,
    security: Security | None = None,
) -> int:
    """Write `count` entries to the bookie, read them back, delete the ledger; its id.

    A LedgerError says what went wrong.
    """
    with trio.move_on_after(seconds):
        return await _write_and_read(uri, bookie_id, count, security or Security())
    raise LedgerError(f"bookie {bookie_id} did not pass within {seconds:g} s: look at its log")


async def _write_and_read(uri: str, bookie_id: BookieId, count: int, security: Security) -> int:
    payloads = [f"sanity {number}".encode() for number in range(count)]
    async with LedgerClient(uri, policy=_OneBookie(bookie_id), **security) as client:
        registered = client.bookies()
        if bookie_id not in registered.writable:
            how = "read-only" if bookie_id in registered.read_only else "not registered"
            raise LedgerError(f"bookie {bookie_id} is {how}: it cannot be written to")
        ledger = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        try:
            await ledger.append_many(payloads)
            await ledger.close()
            reader = await client.open(ledger.id)
            found = [entry.payload async for entry in reader.read(0, reader.last_confirmed)]
        finally:
            with trio.move_on_after(5, shield=True):
                await client.delete(ledger.id)
    if found != payloads:
        raise LedgerError(f"bookie {bookie_id} gave back other entries than it was given")
    return ledger.id
