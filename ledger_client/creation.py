"""Recording a new ledger so that a caller who gives up half way leaves none behind.

The write happens in a task of the client. If the caller is cancelled meanwhile, the task waits for
the outcome and deletes the ledger that nobody wants any more; if that is not possible either, the
log names it.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from ledger_client.environment import Environment
from ledger_client.errors import ClientClosedError
from metadata.model import LedgerMetadata
from metadata.update import VersionedLedger
from wire.errors import LedgerError
from wire.types import LedgerId

_log = logging.getLogger(__name__)

#: How long a client that is being closed waits for a write of the record to end.
_GRACE_SECONDS: Final = 5.0


class _Creation:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.done = trio.Event()
        self.ledger: VersionedLedger | None = None
        self.error: LedgerError | None = None
        self.is_abandoned = False

    async def run(self, template: LedgerMetadata, ledger_id: LedgerId | None) -> None:
        scope = trio.CancelScope(shield=True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_limit_when_cancelled, scope)
                with scope:
                    await self._create(template, ledger_id)
                nursery.cancel_scope.cancel()
        finally:
            if self.ledger is None and self.error is None:
                name = "a ledger" if ledger_id is None else f"ledger {ledger_id}"
                self.error = ClientClosedError(
                    f"the client was closed while {name} was being created: it may exist"
                )
            self.done.set()

    async def _create(self, template: LedgerMetadata, ledger_id: LedgerId | None) -> None:
        try:
            self.ledger = await self._environment.ledgers.create(template, ledger_id=ledger_id)
        except LedgerError as error:
            self.error = error
        if self.is_abandoned:
            await self.remove()

    async def remove(self) -> None:
        """Delete what was created for nobody, unless somebody has touched it since."""
        if self.ledger is None:
            return
        why: object = "the client was closed"
        with trio.move_on_after(_GRACE_SECONDS, shield=True):
            try:
                await self._environment.ledgers.delete(
                    self.ledger.metadata.ledger_id, version=self.ledger.version
                )
            except LedgerError as error:
                why = error
            else:
                return
        self.name_orphan(why)

    def name_orphan(self, why: object) -> None:
        assert self.ledger is not None
        _log.warning(
            "ledger %d was created for a caller that gave up, and could not be deleted (%s): "
            "delete it by hand", self.ledger.metadata.ledger_id, why,
        )  # fmt: skip


async def _limit_when_cancelled(shielded: trio.CancelScope) -> None:
    """When the client goes away, give the shielded part a while and no longer."""
    try:
        await trio.sleep_forever()
    finally:
        shielded.deadline = trio.current_time() + _GRACE_SECONDS


async def create_record(
    environment: Environment, template: LedgerMetadata, *, ledger_id: LedgerId | None
) -> VersionedLedger:
    """The record of a new ledger. Cancelled or failed, this leaves no ledger behind."""
    creation = _Creation(environment)
    environment.nursery.start_soon(creation.run, template, ledger_id)
    try:
        await creation.done.wait()
    except trio.Cancelled:
        creation.is_abandoned = True
        if creation.done.is_set() and creation.ledger is not None:
            try:
                environment.nursery.start_soon(creation.remove)
            except RuntimeError:  # the client's nursery is closed
                creation.name_orphan("the client was closed")
        raise
    if creation.error is not None:
        raise creation.error
    assert creation.ledger is not None
    return creation.ledger
