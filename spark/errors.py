"""What goes wrong, by code.

Spark carries an error from one process to the other as text: the class is lost, the message stays,
wrapped in several of Spark's own. So every message begins with a code that never changes, then
names ledger, entry and bookie in one form, then says the rest to people:

    ENTRY_MISSING ledger=7 entry=12: bookies a, b say that they never had it
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from ledger_client import (
    BadRequestError,
    ClientClosedError,
    CorruptEntryError,
    FencedError,
    InvalidLedgerIdError,
    LedgerClosedError,
    LedgerError,
    LedgerGoneError,
    NoSuchEntryError,
    NotEnoughBookiesError,
    TransientError,
    UnauthorizedError,
)
from ledger_client.errors import MetadataUnavailableError
from metadata.model import InvalidMetadataError
from metadata.store import MetadataError
from metadata.uri import InvalidUriError


class Code(StrEnum):
    BAD_OPTION = "BAD_OPTION"
    AUTH_FAILED = "AUTH_FAILED"
    NO_PYARROW = "NO_PYARROW"
    METADATA_UNAVAILABLE = "METADATA_UNAVAILABLE"
    BAD_METADATA = "BAD_METADATA"  # a record, or the whole cluster, that cannot be understood
    LEDGER_NOT_FOUND = "LEDGER_NOT_FOUND"
    LEDGER_OPEN = "LEDGER_OPEN"
    LEDGER_GONE = "LEDGER_GONE"
    ENTRY_MISSING = "ENTRY_MISSING"
    DIGEST_FAILED = "DIGEST_FAILED"
    BOOKIES_UNAVAILABLE = "BOOKIES_UNAVAILABLE"
    PLAN_TOO_LARGE = "PLAN_TOO_LARGE"
    OFFSET_AHEAD = "OFFSET_AHEAD"
    NOT_ENOUGH_BOOKIES = "NOT_ENOUGH_BOOKIES"
    LEDGER_FENCED = "LEDGER_FENCED"  # somebody recovered the ledger that a task was writing
    BAD_ROW = "BAD_ROW"  # a row that no ledger can keep
    COMMIT_CONFLICT = "COMMIT_CONFLICT"  # another job committed under the same identity
    INTERNAL = "INTERNAL"


class SourceError(LedgerError):
    """An error of the data source; `code` is what its message begins with."""

    def __init__(
        self,
        code: Code,
        what: str,
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie_id: str | None = None,
    ) -> None:
        named = (("ledger", ledger_id), ("entry", entry_id), ("bookie", bookie_id))
        about = "".join(f" {name}={value}" for name, value in named if value is not None)
        super().__init__(f"{code}{about}: {what}")
        self.code = code
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie_id = bookie_id


class BadOptionError(SourceError):
    """An option, or several together, that cannot be used."""

    def __init__(self, what: str) -> None:
        super().__init__(Code.BAD_OPTION, what)


#: The first class that fits gives the code.
_CODES: Final[tuple[tuple[type[LedgerError], Code], ...]] = (
    (UnauthorizedError, Code.AUTH_FAILED),
    (MetadataUnavailableError, Code.METADATA_UNAVAILABLE),
    (LedgerGoneError, Code.LEDGER_GONE),
    (NoSuchEntryError, Code.ENTRY_MISSING),
    (CorruptEntryError, Code.DIGEST_FAILED),
    (NotEnoughBookiesError, Code.NOT_ENOUGH_BOOKIES),
    (FencedError, Code.LEDGER_FENCED),
    (LedgerClosedError, Code.LEDGER_FENCED),
    (InvalidUriError, Code.BAD_OPTION),
    (InvalidLedgerIdError, Code.BAD_OPTION),
    (BadRequestError, Code.BAD_OPTION),
    (InvalidMetadataError, Code.BAD_METADATA),
    (MetadataError, Code.METADATA_UNAVAILABLE),
    (TransientError, Code.BOOKIES_UNAVAILABLE),
    (ClientClosedError, Code.INTERNAL),
)


def coded(error: LedgerError) -> SourceError:
    """An error of the client as one of ours; one that is ours already stays as it is."""
    if isinstance(error, SourceError):
        return error
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)
    text = str(error)
    if error.ledger_id is not None:
        text = text.removeprefix(f"ledger {error.ledger_id}: ")  # the code says it already
    found = SourceError(
        code,
        text,
        ledger_id=error.ledger_id,
        entry_id=error.entry_id,
        bookie_id=error.bookie_id,
    )
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


@contextmanager
def coding() -> Iterator[None]:
    """Whatever the client raises inside the block leaves it with a code in front."""
    try:
        yield
    except SourceError:
        raise
    except LedgerError as error:
        raise coded(error) from error


def check_pyarrow() -> None:
    """Say it in one sentence, where Spark's own worker would die of an import."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise SourceError(
            Code.NO_PYARROW,
            f"rows travel as Arrow batches, and pyarrow cannot be imported ({error}): install it "
            "on the driver and on every executor, for example with pip install 'quire[spark]'",
        ) from error


#: What the source was tested with; the Python data source API still moves between versions.
SPARK_VERSIONS: Final = ("4.3",)


def check_spark(version: str) -> None:
    """Refuse a Spark that nobody tried: what it would do to the rows is not known."""
    if ".".join(version.split(".")[:2]) not in SPARK_VERSIONS:
        raise BadOptionError(
            f"this is PySpark {version}, and the data source was tested with "
            f"{', '.join(SPARK_VERSIONS)} only: install one of them"
        )
