"""Bugs of recovery: where the ledger ends, and what is written down about it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from ledger_client.core import commands, recovery_reads
from ledger_client.core.distribution import Distribution
from ledger_client.core.recovery import Recovery
from ledger_client.core.recovery_reads import RecoveryReads
from metadata.model import LedgerMetadata


def count_not_coverage(_right: Callable[..., bool]) -> Any:
    def is_covered(self: Distribution, known: Collection[int]) -> bool:
        return len(known) >= self.ensemble_size - self.ack_quorum

    return is_covered


def any_error_is_missing(_right: property) -> Any:
    return property(lambda self: self not in (commands.Outcome.OK, commands.Outcome.UNAUTHORIZED))


def silence_is_missing(_right: property) -> Any:
    return property(
        lambda self: (
            self
            in (
                commands.Outcome.NO_SUCH_ENTRY,
                commands.Outcome.NO_SUCH_LEDGER,
                commands.Outcome.TIMEOUT,
            )
        )
    )


def advancing_lac(right: Callable[..., Any]) -> Any:
    def push(self: Recovery, found: list[tuple[int, object]], now: float) -> Any:
        package, *sends = right(self, found, now)
        return [replace(package, lac=self._acked), *sends]

    return push


def start_at_lac_always(right: Callable[..., Any]) -> Any:
    def started(self: Recovery, metadata: LedgerMetadata, *, wrote: bool) -> Any:
        return right(self, metadata, wrote=True)

    return started


def no_floor(right: Callable[..., Any]) -> Any:
    def init(self: RecoveryReads, **given: Any) -> None:
        right(self, **{**given, "floor": -1})

    return init


def one_denial_is_enough(right: Callable[..., Any]) -> Any:
    def take(self: RecoveryReads, answer: commands.RecoveryReadAnswer) -> Any:
        entry = self._requests.get(answer.request_id)
        result = right(self, answer)
        if entry is not None and answer.outcome.is_missing and entry.entry_id > self._floor:
            entry.verdict = recovery_reads.Verdict.MISSING
            return []
        return result

    return take


def forget_new_ensembles(_right: Callable[..., Any]) -> Any:
    def finish(self: Recovery, length: int) -> Any:
        return [commands.FinishRecovery(self._pushed, length, ())]

    return finish


def reads_follow_working_ensemble(right: Callable[..., Any]) -> Any:
    """Recovery reads go to bookies that joined during recovery and never had anything."""

    def on_replacements(self: Recovery, chosen: Any, now: float) -> Any:
        result = right(self, chosen, now)
        if self._reads is not None and self._adds is not None:
            self._reads._ensemble = self._adds.ensemble
        return result

    return on_replacements


def length_not_looked_up(_right: Callable[..., Any]) -> Any:
    """Nothing was read, so the length is taken to be nothing."""

    def finish(self: Recovery) -> Any:
        done = self._has_end and not self._adds and self._change is None
        if not done or self._is_finishing:
            return []
        self._is_finishing = True
        return self._finish(self._length or 0)

    return finish


def newcomers_on_record(right: Callable[..., Any]) -> Any:
    """The record of a working ensemble names its first entry as if nothing was written yet."""

    def on_replacements(self: Recovery, chosen: Any, now: float) -> Any:
        result = right(self, chosen, now)
        if self._working:
            self._working[-1] = replace(self._working[-1], first_entry_id=self._pushed + 1)
        return result

    return on_replacements
