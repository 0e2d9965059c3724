"""What a caller of the client may have to catch. All of it is `LedgerError`, from `wire.errors`.

Where another part of the project has an error of the same meaning, it is that one: a caller need
not know which layer noticed that its ledger was fenced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ledger_client.core.commands import Failure, FailureKind
from metadata.model import InvalidMetadataError
from metadata.store import MetadataError, StoreUnavailableError
from metadata.update import LedgerClosedError, LedgerGoneError, MetadataConflictError
from wire.errors import (
    BadRequestError,
    CorruptionError,
    FencedError,
    LedgerError,
    NoSuchEntryError,
    TransientError,
    UnauthorizedError,
)


class ClientClosedError(LedgerError):
    """The client was closed while this was on its way."""


class NotEnoughBookiesError(TransientError):
    """There are not as many writable bookies as the ledger needs."""


class BookieFailedError(TransientError):
    """A bookie failed, and no other one may take over."""


class QuorumTimeoutError(TransientError):
    """Too few bookies acknowledged an entry in time. It may or may not be in the ledger."""


class TooManyChangesError(TransientError):
    """Bookies kept failing, one after the other, and the handle gave up."""


class MetadataUnavailableError(TransientError, StoreUnavailableError):
    """The metadata store is out of reach."""


class InvalidLedgerIdError(LedgerError):
    """A number that no ledger of this cluster can have."""


class InvalidEntryIdError(LedgerError):
    """An entry id, or a range of them, that this ledger does not have."""


class DuplicateEntryIdError(InvalidEntryIdError):
    """A caller-chosen entry id that was used before."""


class WrongDigestTypeError(LedgerError):
    """The ledger protects its entries in another way than the caller says."""


class CorruptEntryError(CorruptionError):
    """Every copy of an entry that was found fails its digest."""


class UnreadableEntryError(TransientError):
    """No replica could be read now; at least one of them may hold the entry."""


class RecoveryError(TransientError):
    """Too few bookies answered to say where the ledger ends."""


class EntryTooLargeError(LedgerError):
    """A payload that no bookie would take."""


_ERRORS: Final[Mapping[FailureKind, type[LedgerError]]] = {
    FailureKind.FENCED: FencedError,
    FailureKind.LEDGER_CLOSED: LedgerClosedError,
    FailureKind.LEDGER_GONE: LedgerGoneError,
    FailureKind.UNAUTHORIZED: UnauthorizedError,
    FailureKind.ILLEGAL_OP: BadRequestError,
    FailureKind.CLIENT_CLOSED: ClientClosedError,
    FailureKind.BOOKIE_FAILED: BookieFailedError,
    FailureKind.QUORUM_TIMEOUT: QuorumTimeoutError,
    FailureKind.NOT_ENOUGH_BOOKIES: NotEnoughBookiesError,
    FailureKind.TOO_MANY_CHANGES: TooManyChangesError,
    FailureKind.METADATA: MetadataUnavailableError,
    FailureKind.METADATA_CONFLICT: MetadataConflictError,
    FailureKind.DUPLICATE_ENTRY: DuplicateEntryIdError,
    FailureKind.BAD_ENTRY_ID: InvalidEntryIdError,
    FailureKind.NO_SUCH_ENTRY: NoSuchEntryError,
    FailureKind.NOT_READ: UnreadableEntryError,
    FailureKind.CORRUPT: CorruptEntryError,
    FailureKind.NOT_COVERED: RecoveryError,
}


def error_of(failure: Failure) -> LedgerError:
    """The exception for a failure; a new one each time, since several callers may raise it."""
    error = _ERRORS[failure.kind](failure.message)
    error.ledger_id = failure.ledger_id
    error.entry_id = failure.entry_id
    error.bookie_id = failure.bookie_id
    return error


@contextmanager
def reaching_metadata(what: str) -> Iterator[None]:
    """Say what could not be done where the store says only that it is away."""
    try:
        yield
    except MetadataUnavailableError:
        raise
    except StoreUnavailableError as error:
        raise MetadataUnavailableError(
            f"{what}: the metadata store is out of reach ({error}); bring it back and try again"
        ) from error


def kind_of(error: LedgerError) -> FailureKind:
    """What an update of a ledger's record came to, in the words of the cores."""
    match error:
        case FencedError():
            return FailureKind.FENCED
        case LedgerClosedError():
            return FailureKind.LEDGER_CLOSED
        case LedgerGoneError():
            return FailureKind.LEDGER_GONE
        case MetadataConflictError() | InvalidMetadataError():
            return FailureKind.METADATA_CONFLICT
        case MetadataError():
            return FailureKind.METADATA
    raise error
