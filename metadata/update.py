"""Changing a ledger's metadata: one compare-and-swap loop around small pure updates.

Nothing is ever merged field by field. An update looks at the record as it is now and answers with
the next record, with None (the goal is reached, or somebody else made it void) or with an error
(the caller must stop). After a conflict it is asked again about the fresh record. Every update is
idempotent in that sense, which also settles the write whose answer was lost: read again, ask again.

The writer, recovery, re-replication and the shell all go through `update_ledger`; they differ in
the update only.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.model import Fragment, LedgerMetadata, LedgerState
from metadata.paths import LedgerPaths
from metadata.store import (
    BadVersionError,
    ConnectionLostError,
    MetadataError,
    MetadataStore,
    NoNodeError,
    SessionExpiredError,
    SessionId,
    StoreUnavailableError,
)
from wire.errors import FencedError, LedgerError, NoSuchLedgerError
from wire.types import BookieId, LedgerId

T = TypeVar("T")


class LedgerGoneError(NoSuchLedgerError):
    """The metadata store has no such ledger: it was deleted, or never created."""


class LedgerClosedError(LedgerError):
    """Somebody else closed the ledger. The writer stops; what it confirmed is in there."""


class MetadataConflictError(MetadataError):
    """Another client decided otherwise, and for good. Read the ledger again before going on."""


# ---------------------------------------------------------------------- patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How often and how patiently to try again. The defaults last for about half a minute."""

    attempts_max: int = 12
    first_seconds: float = 0.05
    seconds_max: float = 5.0

    def seconds(self, failures: int, chance: random.Random) -> float:
        """The pause after this many failures: doubled each time, and spread over its upper half
        so that clients that collided once do not collide again."""
        ceiling = min(self.seconds_max, self.first_seconds * 2 ** min(failures - 1, 30))
        return chance.uniform(ceiling / 2, ceiling)


PATIENT = Backoff()


async def persistently(
    operation: Callable[[], Awaitable[T]], *, chance: random.Random, backoff: Backoff = PATIENT
) -> T:
    """Repeat an idempotent operation while the store is out of reach; give up after a bound.

    An expired session is not a matter of patience: what was bound to it is void.
    """
    for failures in range(1, backoff.attempts_max):
        try:
            return await operation()
        except SessionExpiredError:
            raise
        except StoreUnavailableError:
            await trio.sleep(backoff.seconds(failures, chance))
    return await operation()


# ---------------------------------------------------------------------- the loop


@dataclass(frozen=True, slots=True)
class VersionedLedger:
    """A record and the version of the znode that it was read from or written as."""

    metadata: LedgerMetadata
    version: int
    #: When the znode was made, which counts where the record itself does not say. None just
    #: after our own create, whose answer does not tell.
    created_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Updated:
    ledger: VersionedLedger
    #: Whether the record is the one that this call wrote (or its double, to the byte).
    wrote: bool


class LedgerUpdate(Protocol):
    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        """The record to write, or None to leave `current` as it is. Raises to stop the caller."""


async def read_ledger(
    store: MetadataStore, paths: LedgerPaths, ledger_id: LedgerId
) -> VersionedLedger:
    try:
        node = await store.get(paths.path_of(ledger_id))
    except NoNodeError:
        raise _gone(ledger_id) from None
    return VersionedLedger(
        decode_ledger_metadata(node.data, ledger_id=ledger_id),
        node.stat.version,
        node.stat.created_ms,
    )


async def update_ledger(
    store: MetadataStore,
    paths: LedgerPaths,
    ledger_id: LedgerId,
    update: LedgerUpdate,
    *,
    chance: random.Random,
    known: VersionedLedger | None = None,
    session: SessionId | None = None,
    backoff: Backoff = PATIENT,
) -> Updated:
    """Apply `update` to the ledger's record, conditionally on the version it was decided on.

    `known` is the caller's copy; without it the record is read first. `session` binds the write:
    a repair that has lost its lock with its session cannot commit.
    """
    path = paths.path_of(ledger_id)
    current = known
    unsure: VersionedLedger | None = None  # what may have been written, if an answer was lost
    obstacle: MetadataError | None = None
    for failures in range(backoff.attempts_max):
        if failures > 0:
            await trio.sleep(backoff.seconds(failures, chance))
        try:
            if current is None:
                # A follower that lags would show a record from before a change that we made
                # ourselves, and "nothing is left to do" would be decided on it.
                await store.sync(path)
                current = await read_ledger(store, paths, ledger_id)
            if unsure is not None and _is_same(current, unsure):
                return Updated(current, wrote=True)
            target = update.apply(current.metadata)
            if target is None:
                return Updated(current, wrote=False)
            stat = await store.set(
                path, encode_ledger_metadata(target), version=current.version, session=session
            )
            return Updated(VersionedLedger(target, stat.version, stat.created_ms), wrote=True)
        except BadVersionError as error:
            current, obstacle = None, error
        except NoNodeError:
            raise _gone(ledger_id) from None
        except ConnectionLostError as error:
            assert current is not None
            assert target is not None  # reads do not end this way
            unsure = VersionedLedger(target, current.version + 1)
            current, obstacle = None, error
        except SessionExpiredError:
            raise
        except StoreUnavailableError as error:
            obstacle = error
    assert obstacle is not None
    raise obstacle


def _is_same(found: VersionedLedger, written: VersionedLedger) -> bool:
    # As bytes: the older formats do not bring back all that the value held.
    return found.version == written.version and (
        encode_ledger_metadata(found.metadata) == encode_ledger_metadata(written.metadata)
    )


def _gone(ledger_id: LedgerId) -> LedgerGoneError:
    return LedgerGoneError(
        f"ledger {ledger_id} is not in the metadata store: deleted, or never made"
    )


# ---------------------------------------------------------------------- the updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The writer closes its ledger at its LAC.

    A ledger under recovery is left alone. Apache's writer closes over it with its own LAC; but
    the recovering client may have found, and shown to readers, entries beyond that.
    """

    last_entry_id: int
    length: int

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed_at(last_entry_id=self.last_entry_id, length=self.length):
            return None
        if current.is_closed:
            raise MetadataConflictError(
                f"ledger {current.ledger_id} was closed at entry {current.last_entry_id}, length "
                f"{current.length}; this writer wanted {self.last_entry_id}, {self.length}"
            )
        _refuse_in_recovery(current, "close")
        return current.closed_at(last_entry_id=self.last_entry_id, length=self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEnsemble:
    """The writer replaces failed bookies from entry `first_entry_id` (its LAC + 1) on.

    Only slots whose failed bookie is still there are changed, so that a second look, after our
    own success or a partial one, asks for nothing that has happened already.
    """

    first_entry_id: int
    failed: Mapping[int, BookieId]  # slot to the bookie that failed there
    replacements: Mapping[int, BookieId]  # slot to the bookie that takes over

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            raise LedgerClosedError(
                f"ledger {current.ledger_id} was closed at entry {current.last_entry_id} by "
                "another client: this writer stops"
            )
        _refuse_in_recovery(current, "ensemble change")
        still = current.failed_slots(self.failed)
        wanted = {slot: self.replacements[slot] for slot in still if slot in self.replacements}
        if not wanted:
            return None
        return current.with_ensemble_change(first_entry_id=self.first_entry_id, replacements=wanted)


@dataclass(frozen=True, slots=True)
class StartRecovery:
    """OPEN to IN_RECOVERY. Anything else is taken as found: carry on, or nothing to recover."""

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        return current.in_recovery() if current.state is LedgerState.OPEN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRecovery:
    """IN_RECOVERY to CLOSED, with the ensembles recovery worked on.

    The first close wins: a ledger found CLOSED is left as it is, and the caller adopts its end.
    """

    last_entry_id: int
    length: int
    fragments: tuple[Fragment, ...] = ()

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            return None
        return current.closed_by_recovery(
            last_entry_id=self.last_entry_id, length=self.length, fragments=self.fragments
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceBookies:
    """Re-replication commits: every entry these slots must hold is durable on the new bookies."""

    first_entry_id: int
    replacements: Mapping[int, tuple[BookieId, BookieId]]  # slot to (old, new)

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        changed: LedgerMetadata | None = None
        for slot, (old, new) in self.replacements.items():
            if current.holds(first_entry_id=self.first_entry_id, slot=slot, bookie_id=old):
                changed = (changed or current).with_bookie_replaced(
                    first_entry_id=self.first_entry_id, slot=slot, old=old, new=new
                )
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameBookie:
    """A bookie got another id: say so in every fragment (`updateledgers`)."""

    old: BookieId
    new: BookieId

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        if not current.mentions(self.old):
            return None
        return current.with_bookie_renamed(old=self.old, new=self.new)


def _refuse_in_recovery(current: LedgerMetadata, what: str) -> None:
    if current.state is LedgerState.IN_RECOVERY:
        raise FencedError(
            f"ledger {current.ledger_id} is being recovered by another client: no {what}"
        )
