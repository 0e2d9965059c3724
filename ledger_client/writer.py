"""Writing one ledger, as callers see it. `writing.py` does what they wait for.

Callers put payloads into the batch that is being filled and wait for its end. A payload that meets
nothing else leaves at once, and nobody waits for company.

A caller that is cancelled leaves its payload behind: it may or may not be written, and nothing else
changes for the handle. A `close` or `force` that is cancelled goes on without its caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import trio

from ledger_client.core.commands import Failure, FailureKind
from ledger_client.errors import (
    DuplicateEntryIdError,
    EntryTooLargeError,
    InvalidEntryIdError,
    error_of,
)
from ledger_client.intake import NO_PAYLOADS, Batch, Part, Place, joined
from ledger_client.writing import Force, Writing
from metadata.model import LedgerMetadata
from wire.errors import LedgerError
from wire.types import ID_MAX, NO_ENTRY


class LedgerWriter(Writing):
    """A ledger that was just created, to be filled. Made by `LedgerClient.create`."""

    # ------------------------------------------------------------------ for callers

    @property
    def last_confirmed(self) -> int:
        """The last entry that is written for good; -1 before there is one.

        With deferred sync that is the last one that a force, or the close, has covered.
        """
        return self._core.lac

    @property
    def last_appended(self) -> int:
        """The last entry whose append has ended; above `last_confirmed` under deferred sync."""
        return self._core.confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this handle knows it."""
        return self._record.metadata

    async def append(self, payload: bytes, *, entry_id: int | None = None) -> int:
        """Write one entry; its id, once enough bookies have it on disk.

        `entry_id` is for ledgers made with `given_entry_ids`, and wanted there: the append ends
        when all lower ids are written, too.
        """
        self._check(payload, entry_id)
        while not self._may_put(entry_id):
            await self._intake.wait_room()
        # As `put`, in one frame: thousands of tasks may be waiting here.
        batch, index = self._put(payload, entry_id)
        await batch.wait_over()
        if batch.failure is not None:
            raise error_of(batch.failure)
        return batch.first + index

    def put(self, payload: bytes, *, entry_id: int | None = None) -> Callable[[], Awaitable[int]]:
        """Append without waiting, also for room: await what this returns to get the id.

        For callers that keep an order and a bound of their own; all others want `append`.
        """
        self._check(payload, entry_id)
        return Place(*self._put(payload, entry_id))

    def fills_gap(self, entry_id: int) -> bool:
        """Whether entries with higher ids wait for lower ones, as this one is."""
        held_from = self._core.held_from
        return held_from is not None and entry_id < held_from

    async def append_many(
        self, payloads: Iterable[bytes], *, entry_ids: Iterable[int] | None = None
    ) -> Sequence[int]:
        """Write many entries in this order, as fast as bookies take them; all their ids.

        Ids are consecutive unless other tasks append to the same handle meanwhile. After an error
        any number of them, from the first on, may be written. `entry_ids`, one per payload, is for
        ledgers made with `given_entry_ids`.
        """
        if entry_ids is not None or self._has_given_ids:
            return await self._append_given(payloads, entry_ids or ())
        source = iter(payloads)
        parts: deque[Part] = deque()
        found: list[range] = []
        while True:
            self._refuse_if_over()
            try:
                large = self._intake.fill(source, self._sender.payload_bytes_max, parts)
            finally:
                self._mail.wake()
            if large is not None:
                self._check(large, None)
            if self._intake.has_room:
                break
            await self._intake.wait_room()
            while parts and parts[0][0].is_over:
                batch, index, length = parts.popleft()
                found.append(await batch.wait(index, length))
        while parts:
            batch, index, length = parts.popleft()
            found.append(await batch.wait(index, length))
        return joined(found)

    async def _append_given(
        self, payloads: Iterable[bytes], entry_ids: Iterable[int]
    ) -> Sequence[int]:
        waits: list[Callable[[], Awaitable[int]]] = []
        given = iter(entry_ids)
        for payload in payloads:
            entry_id = next(given, None)
            self._check(payload, entry_id)
            while not self._may_put(entry_id):
                await self._intake.wait_room()
            waits.append(self.put(payload, entry_id=entry_id))
        found = [await wait() for wait in waits]
        return joined([range(entry_id, entry_id + 1) for entry_id in found])

    async def force(self) -> int:
        """Have every append that has ended so far synced by every bookie; the last such entry.

        For ledgers made with `deferred_sync`; anywhere else nothing is left to be done. After an
        error the entries above `last_confirmed` may be lost by a power cut, or are lost already.
        """
        if not self._is_deferred:
            await trio.lowlevel.checkpoint()
            return self.last_confirmed
        if self._end is not None:
            if self._end.failure is not None:
                raise error_of(self._end.failure)
            return self.last_confirmed
        force_id, force = next(self._force_ids), Force()
        self._forces[force_id] = force
        self._post(partial(self._core.force, force_id))
        try:
            await force.done.wait()
        finally:
            self._forces.pop(force_id, None)
        if force.failure is not None:
            raise error_of(force.failure)
        return self.last_confirmed

    async def close(self) -> None:
        """Wait for everything appended so far, then record the end of the ledger. Idempotent.

        Entries behind a gap in caller-chosen ids fail. Unsynced ones are forced first, and if that
        fails the ledger stays open, for a recovery to find what survived.
        """
        self._is_closing = True
        self._mail.wake()
        if self._ended is None:
            self._ended = trio.Event()
        if self._end is not None:
            self._ended.set()
        await self._ended.wait()
        assert self._end is not None
        if self._end.failure is not None:
            raise error_of(self._end.failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        # The caller has an error already, which may be this handle's own; one is enough.
        try:
            await self.close()
        except LedgerError:
            return

    # ------------------------------------------------------------------ payloads

    def _check(self, payload: bytes, entry_id: int | None) -> None:
        if len(payload) > self._sender.payload_bytes_max:
            raise self._about(
                EntryTooLargeError(
                    f"ledger {self.id}: a payload of {len(payload)} bytes, at most "
                    f"{self._sender.payload_bytes_max} fit into a frame: cut it"
                ),
                entry_id,
            )
        if (entry_id is None) == self._has_given_ids:
            what = "every append must name its entry id" if self._has_given_ids else (
                "its entries are numbered in order; make it with given_entry_ids to choose ids"
            )  # fmt: skip
            raise self._about(InvalidEntryIdError(f"ledger {self.id}: {what}"), entry_id)
        if entry_id is not None and not 0 <= entry_id <= ID_MAX:
            what = f"ledger {self.id}: entry id {entry_id} is outside 0..2^63-1"
            raise self._about(InvalidEntryIdError(what), entry_id)

    def _about(self, error: LedgerError, entry_id: int | None) -> LedgerError:
        error.ledger_id, error.entry_id = self.id, entry_id
        return error

    def _may_put(self, entry_id: int | None) -> bool:
        """Whether a payload is taken, or refused, at once."""
        if self._intake.has_room or self._core.failure is not None:
            return True
        # It may not wait for room, which those behind the gap will not make.
        return entry_id is not None and self.fills_gap(entry_id)

    def _put(self, payload: bytes, entry_id: int | None) -> tuple[Batch, int]:
        self._refuse_if_over()
        if entry_id is not None and (self._core.is_taken(entry_id) or self._intake.holds(entry_id)):
            what = f"ledger {self.id}: entry {entry_id} was added before: choose another id"
            raise self._about(DuplicateEntryIdError(what), entry_id)
        if self._sent or self._intake or self._events:
            place = self._intake.put(bytes(payload), entry_id)
            self._mail.wake()
            return place
        # Nothing is on its way that it could wait for in company: it leaves at once.
        now = trio.current_time()
        if entry_id is None and self._sender.has_room(self._core.ensemble):
            batch = Batch(NO_ENTRY, NO_PAYLOADS)
            if self._add_one(batch, bytes(payload), now):
                return batch, 0
        place = self._intake.put(bytes(payload), entry_id)
        self._take_payloads(now)
        self._set_alarm()
        return place

    def _refuse_if_over(self) -> None:
        failure = self._core.failure
        if failure is None and self._is_closing:
            what = f"ledger {self.id}: this handle is being closed"
            failure = Failure(FailureKind.LEDGER_CLOSED, what, ledger_id=self.id)
        if failure is not None:
            raise error_of(failure)
