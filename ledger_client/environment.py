"""What every handle of a client uses: connections, records, bookies to choose from."""

from __future__ import annotations

import hmac
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from weakref import WeakSet

import trio

from ledger_client.alarms import Alarms
from ledger_client.core.commands import Failure, FailureKind
from ledger_client.core.placement import (
    Cluster,
    PlacementPolicy,
    choose_ensemble,
    choose_replacements,
)
from ledger_client.errors import NotEnoughBookiesError, WrongDigestTypeError
from ledger_client.health import CorruptCopy
from ledger_client.pool import Pool
from ledger_client.requests import Mailbox
from ledger_client.rounds import Rounds
from metadata.discovery import Bookies
from metadata.ledgers import Ledgers
from wire.digest import Digest, digest_for, master_key
from wire.errors import UnauthorizedError
from wire.types import BookieId, DigestType, LedgerId

#: Failures that a bookie which did not let us in may be the reason for.
_FOR_WANT_OF_BOOKIES: Final = frozenset(
    {
        FailureKind.BOOKIE_FAILED,
        FailureKind.NOT_COVERED,
        FailureKind.NOT_ENOUGH_BOOKIES,
        FailureKind.NOT_READ,
        FailureKind.QUORUM_TIMEOUT,
        FailureKind.TOO_MANY_CHANGES,
    }
)
_REASONS_MAX: Final = 3


class Handle(Protocol):
    """Something that callers may be waiting on."""

    def on_client_closed(self) -> None:
        """Let nobody wait any longer."""


class _Waiting:
    """Somebody who waits for a mailbox and is no handle."""

    def __init__(self, mail: Mailbox) -> None:
        self._mail = mail

    def on_client_closed(self) -> None:
        self._mail.close()


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to read and write the entries of one ledger."""

    ledger_id: LedgerId
    digest: Digest = field(repr=False)
    master_key: bytes = field(repr=False)

    @classmethod
    def of(cls, ledger_id: LedgerId, digest_type: DigestType, password: bytes) -> Access:
        return cls(ledger_id, digest_for(digest_type, password), master_key(password))


@dataclass(slots=True, eq=False, kw_only=True)
class ReadEnvironment:
    """What reading entries takes, of ledgers whose records somebody else has read."""

    pool: Pool
    bookies: Callable[[], Bookies]
    policy: PlacementPolicy
    chance: random.Random
    #: One counter for all handles: a number names one request of the whole client.
    request_ids: Iterator[int]
    #: How often to choose each bookie, where free space counts.
    weights: Callable[[], Mapping[BookieId, float]] = dict
    #: Held weakly: an iteration that somebody forgot is nobody's to wake.
    handles: WeakSet[Handle] = field(default_factory=WeakSet)

    @contextmanager
    def waking(self, mail: Mailbox) -> Iterator[None]:
        """Should the client be closed during the block, the mailbox is closed, too."""
        waiting = _Waiting(mail)
        self.handles.add(waiting)
        try:
            yield
        finally:
            self.handles.discard(waiting)

    @property
    def cluster(self) -> Cluster:
        bookies = self.bookies()
        return Cluster(
            writable=bookies.writable,
            read_only=bookies.read_only - bookies.writable,
            quarantined=self._avoided,
            weights=self.weights(),
        )

    @property
    def _avoided(self) -> frozenset[BookieId]:
        """Bookies in quarantine, and those that failed a moment ago: the last choice of all."""
        now, known = trio.current_time(), self.pool.known
        return known.quarantined(now) | frozenset(known.failing(now))

    def read_order(self, slots: Sequence[int], ensemble: Sequence[BookieId]) -> Sequence[int]:
        return self.policy.read_order(slots, ensemble, self.cluster, self.pool.health)

    def explained(self, failure: Failure) -> Failure:
        """The same, with the reason why bookies that are there could not be used."""
        refusals = self.pool.known.refusals
        if not refusals or failure.kind not in _FOR_WANT_OF_BOOKIES:
            return failure
        why = "; ".join(refusals[name] for name in sorted(refusals)[:_REASONS_MAX])
        return replace(failure, message=f"{failure.message} ({why})")

    def on_corruption(self, copy: CorruptCopy) -> None:
        self.pool.known.on_corruption(copy, trio.current_time())

    def on_slow(self, bookie_id: BookieId) -> None:
        self.pool.known.on_slow(bookie_id, trio.current_time())


@dataclass(slots=True, eq=False, kw_only=True)
class Environment(ReadEnvironment):
    ledgers: Ledgers
    nursery: trio.Nursery
    alarms: Alarms = field(default_factory=Alarms)
    rounds: Rounds = field(default_factory=Rounds)

    def new_ensemble(
        self, *, ensemble_size: int, write_quorum: int, ack_quorum: int, shrink: bool = False
    ) -> tuple[BookieId, ...]:
        """NotEnoughBookiesError if there are too few, or too few where the policy wants them."""
        cluster = self.cluster
        chosen = choose_ensemble(
            self.policy,
            cluster,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            chance=self.chance,
            shrink=shrink,
        )
        if chosen is None:
            wanted = write_quorum if shrink else ensemble_size
            present = len(cluster.writable)
            what = f"a ledger over {wanted} bookies was asked for, {present} are writable"
            if present < wanted:
                raise NotEnoughBookiesError(
                    f"{what}: start more of them, or ask for a smaller ensemble"
                )
            raise NotEnoughBookiesError(
                f"{what}, but not in enough fault domains for the placement policy: start bookies "
                "elsewhere, correct the topology, or do not enforce it"
            )
        return chosen

    def replacements(
        self,
        ensemble: Sequence[BookieId],
        failed: Mapping[int, BookieId],
        avoid: Collection[BookieId],
        *,
        write_quorum: int,
        ack_quorum: int,
    ) -> dict[int, BookieId]:
        return choose_replacements(
            self.policy,
            self.cluster,
            ensemble=ensemble,
            failed=failed,
            chance=self.chance,
            avoid=avoid,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
        )


def check_password(ledger_id: LedgerId, stored: bytes | None, given: bytes) -> None:
    """Fail early, where the record knows better. The oldest records do not; then bookies will."""
    if stored is not None and not hmac.compare_digest(stored, given):
        error = UnauthorizedError(
            f"ledger {ledger_id} has another password than the one given: ask its owner"
        )
        error.ledger_id = ledger_id
        raise error


def check_digest_type(
    ledger_id: LedgerId, stored: DigestType | None, given: DigestType | None
) -> None:
    if stored is not None and given is not None and stored is not given:
        error = WrongDigestTypeError(
            f"ledger {ledger_id} protects its entries by {stored.name}, not by {given.name}: leave "
            "the digest type out, the record knows it"
        )
        error.ledger_id = ledger_id
        raise error
