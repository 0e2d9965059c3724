"""Those who read, follow, recover and delete what others write."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Final, Protocol
from zlib import crc32

import trio

from ledger_client import (
    CorruptEntryError,
    InvalidEntryIdError,
    LedgerClient,
    LedgerEntry,
    LedgerError,
    LedgerGoneError,
    LedgerReader,
    NoSuchEntryError,
)
from tests.chaos.history import History
from tests.chaos.writers import PASSWORD

LEDGERS_MAX: Final = 60
_FOLLOW_SECONDS: Final = 60.0


class Listed(Protocol):
    known: list[int]


class Reading:
    def __init__(self, client: LedgerClient, history: History, listed: Listed, name: str) -> None:
        self._client = client
        self._history = history
        self._listed = listed
        self._name = name
        self._handles = itertools.count(1)

    def _pick(self, chance: random.Random, *, newest: int | None = None) -> int | None:
        known = self._listed.known
        if newest is not None:
            known = known[-newest:]
        return chance.choice(known) if known else None

    def _new_handle(self) -> str:
        return f"{self._name}.{next(self._handles)}"

    # ------------------------------------------------------------------ roles

    async def follow(self, chance: random.Random) -> None:
        """Tail one of the newest ledgers, from some entry on."""
        ledger_id = self._pick(chance, newest=12)
        if ledger_id is None:
            await trio.sleep(0.5)
            return
        handle, begun = self._new_handle(), time.monotonic()
        first = chance.choice((0, 0, 0, 5))
        try:
            async with await self._client.tail(ledger_id, password=PASSWORD, first=first) as tail:
                with trio.move_on_after(_FOLLOW_SECONDS):
                    while batch := await tail.next_batch():
                        self._note_entries(ledger_id, handle, batch)
                        self._history.note("lac", ledger_id, h=handle, lac=tail.last_confirmed)
                    self._history.note("end seen", ledger_id, h=handle, last=tail.last_confirmed)
        except LedgerError as error:
            self._note_failure(ledger_id, handle, begun, error, first=first)
            await trio.sleep(0.2)

    async def recover(self, chance: random.Random) -> None:
        """Open one of the ledgers, which fences its writer if there is one, and read all of it."""
        await trio.sleep(chance.uniform(1.0, 4.0))
        ledger_id = self._pick(chance, newest=chance.choice((8, None)))
        if ledger_id is not None:
            await self.open_and_read(ledger_id)

    async def open_and_read(self, ledger_id: int) -> bool:
        """Whether everything up to its end could be read."""
        handle, begun = self._new_handle(), time.monotonic()
        try:
            reader = await self._client.open(ledger_id, password=PASSWORD)
        except LedgerError as error:
            self._note_failure(ledger_id, handle, begun, error)
            return False
        facts = {"last": reader.last_confirmed, "length": reader.length}
        self._history.note("opened", ledger_id, h=handle, t0=begun, **facts)
        return await self._read(reader, handle, 0, reader.last_confirmed)

    async def read_again(self, chance: random.Random) -> None:
        """Look at a ledger without disturbing anybody: its LAC, and some of its entries."""
        await trio.sleep(chance.uniform(0.1, 0.6))
        ledger_id = self._pick(chance)
        if ledger_id is None:
            return
        handle, begun = self._new_handle(), time.monotonic()
        try:
            reader = await self._client.open_no_recovery(ledger_id, password=PASSWORD)
        except LedgerError as error:
            self._note_failure(ledger_id, handle, begun, error)
            return
        for _ in range(3):
            lac = reader.last_confirmed
            self._history.note("lac", ledger_id, h=handle, lac=lac, t0=begun)
            if reader.is_closed:
                facts = {"last": reader.metadata.last_entry_id, "length": reader.length}
                self._history.note("opened", ledger_id, h=handle, t0=begun, **facts)
            if lac < 0:
                break
            first = chance.randint(0, lac)
            last = min(lac, first + chance.randint(0, 200))
            if not await self._read(reader, handle, first, last) or reader.is_closed:
                break
            try:
                await reader.read_last_confirmed()
            except LedgerError as error:
                self._note_failure(ledger_id, handle, begun, error)
                break

    async def delete(self, chance: random.Random) -> None:
        """Keep the number of ledgers bounded; and see whether what was deleted stays so."""
        await trio.sleep(chance.uniform(0.2, 1.0))
        known = self._listed.known
        if len(known) <= LEDGERS_MAX:
            return
        ledger_id = chance.choice(known[: len(known) // 2])
        self._history.note("delete begun", ledger_id)
        await self._client.delete(ledger_id)
        self._history.note("deleted", ledger_id)
        begun = time.monotonic()
        if await self._client.exists(ledger_id):
            self._history.note("exists", ledger_id, t0=begun)

    # ------------------------------------------------------------------ what was seen

    async def _read(self, reader: LedgerReader, handle: str, first: int, last: int) -> bool:
        begun = time.monotonic()
        if last < first:
            return True
        entries = reader.read(first, last)
        following = first
        try:
            while batch := await entries.next_batch():
                self._note_entries(reader.id, handle, batch)
                following = batch[-1].id + 1
        except LedgerError as error:
            self._note_failure(reader.id, handle, begun, error, first=following, last=last)
            return False
        if following != last + 1:
            self._history.note("short read", reader.id, h=handle, next=following, last=last)
        return True

    def _note_entries(self, ledger_id: int, handle: str, batch: Sequence[LedgerEntry]) -> None:
        self._history.note(
            "read",
            ledger_id,
            h=handle,
            first=batch[0].id,
            last=batch[-1].id,
            crcs=[crc32(entry.payload) for entry in batch],
        )

    def _note_failure(
        self,
        ledger_id: int,
        handle: str,
        begun: float,
        error: LedgerError,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        match error:
            case LedgerGoneError():
                self._history.note("gone", ledger_id, h=handle, t0=begun)
            case NoSuchEntryError() | InvalidEntryIdError() | CorruptEntryError():
                self._history.note(
                    "denied",
                    ledger_id,
                    h=handle,
                    t0=begun,
                    error=type(error).__name__,
                    entry=error.entry_id,
                    first=first,
                    last=last,
                    text=str(error),
                )
            case _:
                self._history.note("unreadable", ledger_id, h=handle, error=type(error).__name__)
