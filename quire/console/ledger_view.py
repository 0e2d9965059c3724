"""Ledgers for the page: the list by pages, one of them in detail, its entries.

Nothing here fences: an open ledger is read as its writer leaves it. Numbers of ledgers and entries
are text in JSON, since they have 63 bits and a browser's numbers 53.
"""

from __future__ import annotations

import base64
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.ledger_scan import for_each
from ledger_client.environment import Access, check_password
from ledger_client.reader import LedgerReader
from metadata.model import InvalidMetadataError, LedgerMetadata
from metadata.update import LedgerGoneError, VersionedLedger
from wire.errors import LedgerError
from wire.types import DigestType, LedgerId

PAGE_MAX: Final = 100
#: The newest of them; a ledger with more has had a hard life, and the page says so.
FRAGMENTS_SHOWN: Final = 200
CUSTOM_SHOWN: Final = 50
CUSTOM_BYTES_SHOWN: Final = 1024
ENTRIES_MAX: Final = 100
ENTRY_BYTES_SHOWN: Final = 16 << 10
ANSWER_BYTES_MAX: Final = 512 << 10
_WALKS_AT_ONCE: Final = 2
#: Readers of entries at a time; each holds a batch of them in memory.
_BROWSERS_AT_ONCE: Final = 4
_READS_AT_ONCE: Final = 16
_LAC_SECONDS: Final = 2.0
_ENTRIES_SECONDS: Final = 15.0

Json = dict[str, Any]


class SlowReadError(LedgerError):
    """Bookies did not answer in the time that a page waits."""


@dataclass(frozen=True, slots=True, eq=False)
class LedgerView:
    context: RecoveryContext
    _walks: trio.CapacityLimiter
    _reads: trio.CapacityLimiter

    @classmethod
    def of(cls, context: RecoveryContext) -> LedgerView:
        limits = (_WALKS_AT_ONCE, _BROWSERS_AT_ONCE)
        return cls(context, *map(trio.CapacityLimiter, limits))

    # ------------------------------------------------------------------ the list

    async def page(self, *, before: int | None, count: int) -> Json:
        """The ledgers below `before`, the newest first, and how many there are in all.

        The tree has no index from its end, so this walks over all ids; in memory are one directory
        of them and the page.
        """
        wanted: deque[LedgerId] = deque(maxlen=count)
        total = older = 0
        async with self._walks:
            async for found in self.context.client.ledgers.ranges():
                total += len(found.ids)
                if before is None or found.last < before:
                    chosen = found.ids
                else:
                    chosen = tuple(ledger_id for ledger_id in found.ids if ledger_id < before)
                older += len(chosen)
                wanted.extend(chosen[-count:])
        rows: dict[LedgerId, Json] = {}

        async def one(ledger_id: LedgerId) -> None:
            with suppress(LedgerGoneError):
                try:
                    rows[ledger_id] = _row((await self._read(ledger_id)).metadata)
                except InvalidMetadataError as error:
                    rows[ledger_id] = {"id": str(ledger_id), "error": str(error)}

        await for_each(wanted, one, at_once=_READS_AT_ONCE)
        return {
            "total": total,
            "ledgers": [rows[ledger_id] for ledger_id in reversed(wanted) if ledger_id in rows],
            "next": str(wanted[0]) if older > len(wanted) else None,
        }

    # ------------------------------------------------------------------ one ledger

    async def detail(self, ledger_id: int) -> Json:
        """The record, and how far an open ledger is confirmed now. LedgerGoneError if none."""
        ledger = await self._read(ledger_id)
        metadata = ledger.metadata
        fragments = [
            {
                "first": str(found.fragment.first_entry_id),
                "last": None if found.last_entry_id is None else str(found.last_entry_id),
                "ensemble": list(found.fragment.ensemble),
            }
            for found in metadata.ranges()
        ]
        lac, problem = await self._lac(ledger)
        return {
            **_row(metadata),
            "digest": None if metadata.digest_type is None else metadata.digest_type.name,
            "hasPassword": bool(metadata.password),
            "formatVersion": metadata.format_version,
            "lac": None if lac is None else str(lac),
            "lacProblem": problem,
            "custom": [[key, _short(value)] for key, value in metadata.custom[:CUSTOM_SHOWN]],
            "customCount": len(metadata.custom),
            "fragments": fragments[-FRAGMENTS_SHOWN:],
        }

    async def _lac(self, ledger: VersionedLedger) -> tuple[int | None, str | None]:
        metadata = ledger.metadata
        if metadata.last_entry_id is not None:
            return metadata.last_entry_id, None
        # How far a ledger is says nothing of what is in it: the record's own password will do.
        access = _access(metadata, metadata.password or b"")
        try:
            with trio.fail_after(_LAC_SECONDS):
                reader = LedgerReader(self.context.client, ledger, access)
                return await reader.read_last_confirmed(), None
        except trio.TooSlowError:
            return None, f"no answer from enough bookies within {_LAC_SECONDS:g} s"
        except LedgerError as error:
            return None, str(error)

    # ------------------------------------------------------------------ entries

    async def entries(self, ledger_id: int, *, password: bytes, first: int, count: int) -> Json:
        """Entries from `first` on, as many as asked for, or as fit into an answer.

        UnauthorizedError if the password is another. Payloads travel as base64: what they are
        shown as is decided by whoever shows them, who must take care of what is in them.
        """
        ledger = await self._read(ledger_id)
        metadata = ledger.metadata
        check_password(metadata.ledger_id, metadata.password, password)
        try:
            with trio.fail_after(_ENTRIES_SECONDS):
                async with self._reads:
                    return await self._entries(ledger, password, first, count)
        except trio.TooSlowError:
            raise SlowReadError(
                f"ledger {ledger_id}: entries did not arrive within {_ENTRIES_SECONDS:g} s: see "
                "which of its bookies are away, and try again"
            ) from None

    async def _entries(
        self, ledger: VersionedLedger, password: bytes, first: int, count: int
    ) -> Json:
        access = _access(ledger.metadata, password)
        reader = LedgerReader(self.context.client, ledger, access)
        confirmed = await reader.read_last_confirmed()
        last = min(confirmed, first + count - 1)
        rows: list[Json] = []
        size = 0
        if last >= first:
            entries = reader.read(first, last)
            while size < ANSWER_BYTES_MAX and (batch := await entries.next_batch()):
                for entry in batch:
                    shown = entry.payload[:ENTRY_BYTES_SHOWN]
                    size += len(shown)
                    rows.append(
                        {
                            "id": str(entry.id),
                            "bytes": len(entry.payload),
                            "payload": base64.b64encode(shown).decode(),
                        }
                    )
                    if size >= ANSWER_BYTES_MAX:
                        break
        return {
            "ledgerId": str(ledger.metadata.ledger_id),
            "lastConfirmed": str(confirmed),
            "entries": rows,
        }

    async def _read(self, ledger_id: int) -> VersionedLedger:
        return await self.context.client.ledgers.read(LedgerId(ledger_id))


def _access(metadata: LedgerMetadata, password: bytes) -> Access:
    # The oldest records do not say; their clients used this one.
    return Access.of(metadata.ledger_id, metadata.digest_type or DigestType.CRC32, password)


def _row(metadata: LedgerMetadata) -> Json:
    last = metadata.last_entry_id
    return {
        "id": str(metadata.ledger_id),
        "state": metadata.state.name,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "lastEntryId": None if last is None else str(last),
        "bytes": metadata.length if metadata.is_closed else None,
        "createdMs": metadata.ctime_ms,
        "fragmentCount": len(metadata.fragments),
        "ensemble": list(metadata.last_fragment.ensemble),
    }


def _short(value: bytes) -> str:
    shown = value[:CUSTOM_BYTES_SHOWN].decode(errors="backslashreplace")
    return shown if len(value) <= CUSTOM_BYTES_SHOWN else f"{shown}…"
