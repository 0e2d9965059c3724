"""Bugs of the shells and of the storage engine, for the outer ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookie.collector import Collector
from bookie.connection import Connection
from bookie.core.ledger import Ledger
from bookie.operations import Operations
from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.journal_files import JournalFile
from bookie.storage.journal_writer import Journal
from bookie.storage.ledgers import Ledgers
from ledger_client.question_connection import QuestionConnection
from wire.errors import LedgerError, Status
from wire.types import LedgerId


def write_without_sync(right: Callable[..., Any]) -> Any:
    def write(
        self: JournalFile, block: Sequence[bytes | memoryview], offset: int, *, durable: bool
    ) -> None:
        right(self, block, offset, durable=False)

    return write


def mark_without_sync(_right: Callable[..., Any]) -> Any:
    def sync(self: EntryLogWriter) -> None:
        self.write_chunk()

    return sync


def answer_at_once(right: Callable[..., Any]) -> Any:
    def accept(self: Connection, answers: bytes, count: int, size: int) -> None:
        right(self, b"", count, size)
        self.outbox.put(answers)

    return accept


def fence_at_once(right: Callable[..., Any]) -> Any:
    def fence(
        self: Operations, ledger_id: int, key: bytes | None, done: Callable[[Status], None]
    ) -> None:
        right(self, ledger_id, key, lambda status: None)
        done(Status.OK)

    return fence


def error_is_absence(_right: Callable[..., Any]) -> Any:
    def guarded(self: Operations, ask: Callable[[], Any]) -> Any:
        try:
            found = ask()
        except (LedgerError, OSError):
            return Status.NO_ENTRY
        return Status.NO_ENTRY if found is Status.IO_ERROR else found

    return guarded


def fence_is_not_pinned(_right: Any) -> Any:
    def is_pinned(self: Ledger) -> bool:
        return bool(self.active or self.sealed or self.waiters or self.loads)

    return property(is_pinned)


def newcomers_may_go(_right: Callable[..., Any]) -> Any:
    """As it was: among pinned ledgers the one just loaded was forgotten before its first use."""

    def get(self: Ledgers, ledger_id: int) -> Ledger:
        ledger = self._objects.get(ledger_id)
        if ledger is None:
            ledger = self._objects[ledger_id] = self._load(LedgerId(ledger_id))
            if len(self._objects) > self._count_max:
                self._forget_some()
        ledger.touched = True
        return ledger

    return get


def parked_adds_are_judged_already(right: Callable[..., Any]) -> Any:
    """What was not fenced when an add came is not fenced for that add."""

    async def wait_admission(self: Connection) -> bool:
        engine = self.bookie.engine
        before = [ledger for ledger in engine.in_memory() if not ledger.fenced]
        admitted: bool = await right(self)
        fenced = [ledger for ledger in before if ledger.fenced]
        if admitted and fenced:
            any_connection: Any = self
            commit = Connection.commit

            def commit_and_fence() -> None:
                for ledger in fenced:
                    ledger.fenced = True
                any_connection.__dict__.pop("commit", None)
                commit(self)

            for ledger in fenced:
                ledger.fenced = False
            any_connection.commit = commit_and_fence
        return admitted

    return wait_admission


def released_too_early(right: Callable[..., Any]) -> Any:
    def release(self: Journal, below_file_id: int) -> None:
        right(self, below_file_id + 1)

    return release


def fences_are_not_replayed(right: Callable[..., Any]) -> Any:
    def apply_state(self: Any, *args: Any) -> None:
        right(self, *args)
        for ledger in self._ledgers.in_memory():
            ledger.fenced = False

    return apply_state


def loss_is_told_to_nobody(_right: Callable[..., Any]) -> Any:
    def on_lost(self: QuestionConnection) -> None:
        self._asked.clear()

    return on_lost


def only_the_last_fragment_counts(_right: Callable[..., Any]) -> Any:
    def is_surplus(self: Collector, record: Any) -> bool:
        return bool(
            record is not None
            and record.is_closed
            and self._bookie_id not in record.last_fragment.ensemble
        )

    return is_surplus
