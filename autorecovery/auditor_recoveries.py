"""Finishing what a client that died left in recovery.

Such a ledger is fenced and has no end: nobody can write to it, readers see only part of it, and
its last fragment cannot be repaired. Whoever opens it would finish it, but perhaps nobody does.
"""

from __future__ import annotations

import trio

from autorecovery.checks_replica import access_of
from autorecovery.context import RecoveryContext
from autorecovery.core.audit_schedule import StaleRecoveries
from autorecovery.statistics import AuditorCounts
from ledger_client.recovery import LedgerRecovery
from metadata.model import LedgerState
from metadata.store import StoreUnavailableError
from metadata.update import LedgerGoneError, VersionedLedger
from runtime import logs
from wire.errors import LedgerError
from wire.types import LedgerId

_log = logs.get("autorecovery.recoveries")


class RecoveryFinisher:
    """Scans tell it what they meet; `run` does the rest, one ledger at a time."""

    def __init__(self, context: RecoveryContext, counts: AuditorCounts) -> None:
        self._context = context
        self._counts = counts
        patience = context.settings.auditor.stale_recovery_seconds
        self._is_wanted = patience > 0
        self._stale = StaleRecoveries(patience)
        self._changed = trio.Event()

    async def on_ledger(self, ledger: VersionedLedger) -> None:
        if ledger.metadata.state is not LedgerState.IN_RECOVERY or not self._is_wanted:
            return
        ledgers = self._context.client.ledgers
        ledger_id = ledger.metadata.ledger_id
        stat = await ledgers.store.exists(ledgers.paths.path_of(ledger_id))
        if stat is None:
            return
        # Two clocks, ours and the store's: if they disagree we come early or late, no worse.
        age = (self._context.now_ms() - stat.modified_ms) / 1000
        self._stale.on_seen(ledger_id, age, trio.current_time())
        self._counts.stale_recoveries = len(self._stale)
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        while True:
            ledger_id = self._stale.take_due(trio.current_time())
            if ledger_id is None:
                due = self._stale.next_due()
                with trio.move_on_at(float("inf") if due is None else due):
                    await self._changed.wait()
                continue
            await self._context.marks.settings.wait_enabled()
            await self._finish(ledger_id)
            self._counts.stale_recoveries = len(self._stale)

    async def _finish(self, ledger_id: LedgerId) -> None:
        try:
            is_ours = await self._recover(ledger_id)
        except LedgerGoneError:
            self._stale.on_settled(ledger_id)
        except StoreUnavailableError:
            self._stale.on_failed(ledger_id, trio.current_time())
            raise
        except LedgerError as error:
            self._counts.recoveries_failed += 1
            self._stale.on_failed(ledger_id, trio.current_time())
            _log.warning("a ledger stays in recovery for now", ledger=ledger_id, error=error)
        else:
            self._stale.on_settled(ledger_id)
            if is_ours:
                self._counts.recoveries_finished += 1

    async def _recover(self, ledger_id: LedgerId) -> bool:
        client = self._context.client
        ledger = await client.ledgers.read(ledger_id)
        if ledger.metadata.state is not LedgerState.IN_RECOVERY:
            return False
        access = access_of(ledger.metadata)
        if access is None:
            raise LedgerError(
                f"ledger {ledger_id} is of a format that does not keep its password: open it with "
                "a client that knows it"
            )
        closed = await LedgerRecovery(client, ledger, access).run()
        _log.info("finished a recovery", ledger=ledger_id, last_entry=closed.metadata.last_entry_id)
        return True
