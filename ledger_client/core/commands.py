"""Every event and command that the cores speak.

Events are what a shell tells a core; commands are what the core asks for. A shell obeys commands
in the order of the list, and it owes every request exactly one end: an answer, or an outcome of
its own making (`TIMEOUT`, `NOT_CONNECTED`). Requests are known by their number alone, because the
same bookie may be asked for the same entries twice, once in a slot that it has since lost.

Payloads pass through as opaque objects. A core counts bytes, it never looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from metadata.model import Fragment, LedgerMetadata
from wire.errors import Status
from wire.types import NO_ENTRY, BookieId

# ---------------------------------------------------------------------- outcomes and failures


class Outcome(Enum):
    """How one request to one bookie ended, as seen by this client."""

    OK = auto()
    NO_SUCH_LEDGER = auto()
    NO_SUCH_ENTRY = auto()
    FENCED = auto()
    UNAUTHORIZED = auto()
    ILLEGAL_OP = auto()  # no bookie would take it, say an entry above the frame limit
    BAD_REQUEST = auto()
    BAD_VERSION = auto()
    READ_ONLY = auto()
    TOO_MANY_REQUESTS = auto()
    IO_ERROR = auto()
    UNKNOWN_STATE = auto()  # the bookie may have lost data of this ledger
    TIMEOUT = auto()
    NOT_CONNECTED = auto()
    CORRUPT = auto()  # an answer came and failed its digest
    CLIENT_CLOSED = auto()

    @property
    def is_missing(self) -> bool:
        """An explicit "I never had it". Silence, rot and trouble are not: they prove nothing."""
        return self in _MISSING

    @property
    def is_known(self) -> bool:
        """The bookie answered the question, one way or the other."""
        return self is Outcome.OK or self in _MISSING


_MISSING: Final = frozenset({Outcome.NO_SUCH_LEDGER, Outcome.NO_SUCH_ENTRY})

OUTCOME_BY_STATUS: Final[Mapping[Status, Outcome]] = {
    Status.OK: Outcome.OK,
    Status.NO_LEDGER: Outcome.NO_SUCH_LEDGER,
    Status.NO_ENTRY: Outcome.NO_SUCH_ENTRY,
    Status.BAD_REQUEST: Outcome.BAD_REQUEST,
    Status.IO_ERROR: Outcome.IO_ERROR,
    Status.UNAUTHORIZED: Outcome.UNAUTHORIZED,
    Status.BAD_VERSION: Outcome.BAD_VERSION,
    Status.FENCED: Outcome.FENCED,
    Status.READ_ONLY: Outcome.READ_ONLY,
    Status.TOO_MANY_REQUESTS: Outcome.TOO_MANY_REQUESTS,
    Status.UNKNOWN_LEDGER_STATE: Outcome.UNKNOWN_STATE,
}


class FailureKind(Enum):
    """Why an operation of the client failed; the shell has one exception for each."""

    FENCED = auto()  # another client recovers, or recovered, the ledger
    LEDGER_CLOSED = auto()  # closed by this handle or by another client
    LEDGER_GONE = auto()
    UNAUTHORIZED = auto()
    ILLEGAL_OP = auto()
    CLIENT_CLOSED = auto()
    BOOKIE_FAILED = auto()  # where no other bookie may take over
    QUORUM_TIMEOUT = auto()
    NOT_ENOUGH_BOOKIES = auto()
    TOO_MANY_CHANGES = auto()
    METADATA = auto()  # the store cannot be reached
    METADATA_CONFLICT = auto()  # the record says what no other client may have written
    DUPLICATE_ENTRY = auto()
    BAD_ENTRY_ID = auto()
    NO_SUCH_ENTRY = auto()
    NOT_READ = auto()  # no replica could be read, at least one of them may hold the entry
    CORRUPT = auto()  # every replica that has the entry fails its digest
    NOT_COVERED = auto()  # too few bookies answered to know anything for sure


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str  # one line: what happened, to which ledger and entry, what to do
    outcome: Outcome | None = None  # of the bookie's answer that led here
    ledger_id: int | None = None
    entry_id: int | None = None
    bookie_id: BookieId | None = None


# ---------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class AddAnswer:
    """The end of a sending, or of some entries of it.

    A bookie that takes batches answers once: `entry_ids` is None. One that takes entries one by
    one answers for each; the shell groups what one receive buffer brought.
    """

    request_id: int
    outcome: Outcome = Outcome.OK
    entry_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """One bookie's answer to a LAC read; `lac` only with OK, from a body whose digest is right."""

    request_id: int
    outcome: Outcome = Outcome.OK
    lac: int = NO_ENTRY
    size: int = 0  # of the payload that came with it: what entries of this ledger are like


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """What one `AskRead` brought: its first `good` entries, verified, and why it ends there.

    OK with fewer entries than asked for is a bookie that stopped early, which says nothing about
    the next one. Any other outcome belongs to the first entry that is not among the good ones.
    """

    request_id: int
    outcome: Outcome = Outcome.OK
    good: int = 0
    size: int = 0  # bytes of `data`
    lac: int = NO_ENTRY  # the highest that the answer showed
    data: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReadAnswer:
    """One bookie's answer about one entry, asked with the fence flag."""

    request_id: int
    outcome: Outcome = Outcome.OK
    length: int = 0  # from the entry's own header
    payload: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollAnswer:
    """A long poll's answer. `entry` is entry `previous_lac + 1`, if the bookie had it."""

    request_id: int
    outcome: Outcome = Outcome.OK
    lac: int = NO_ENTRY
    entry: object = None


# ---------------------------------------------------------------------- commands


class Command:
    """What a core asks its shell to do."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Package(Command):
    """Build entries `first..last` now, once, and keep them until they are confirmed or failed.

    `lac` goes into every header. `length` is that of the ledger before the first entry.
    """

    first: int
    last: int
    lac: int
    length: int


@dataclass(frozen=True, slots=True)
class SendAdd(Command):
    """Send to `bookie_id` those of `first..last` that `slot` holds (`Distribution.entries_of`)."""

    request_id: int
    slot: int
    bookie_id: BookieId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Confirm(Command):
    """Tell the callers of everything up to `through` that it is written."""

    through: int


@dataclass(frozen=True, slots=True)
class FailAdds(Command):
    """Fail every add that is not confirmed. Each of them may or may not be in the ledger."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RefuseAdd(Command):
    """These adds were not taken and nothing was sent. No ids: the whole call."""

    failure: Failure
    entry_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEnsemble(Command):
    """After the delay, choose replacements and record them, by compare-and-swap.

    Nothing may be sent to the new bookies before the store has the change.
    """

    first_entry_id: int
    failed: Mapping[int, BookieId]
    avoid: frozenset[BookieId] = frozenset()  # failed earlier in the same storm: last choice
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryLater(Command):
    """Call `on_retry` after the delay: the same bookies get what they have not acknowledged."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class SendLac(Command):
    """Tell a bookie the LAC without an entry. Its answer is of no interest."""

    slot: int
    bookie_id: BookieId
    lac: int


@dataclass(frozen=True, slots=True)
class SendForce(Command):
    request_id: int
    slot: int
    bookie_id: BookieId


@dataclass(frozen=True, slots=True)
class ForceEnded(Command):
    """The end of `force` number `force_id`; everything up to the LAC is durable unless failed."""

    force_id: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class CloseLedger(Command):
    """Record the end of the ledger, by compare-and-swap, if the store still says OPEN."""

    last_entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class CloseEnded(Command):
    """The close, asked for or forced by a fatal error, came to this end."""

    last_entry_id: int
    length: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class AskLac(Command):
    """Ask a bookie for its LAC; with `fence`, make it refuse ordinary adds first."""

    request_id: int
    slot: int
    bookie_id: BookieId
    fence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRead(Command):
    """Ask for `count` entries: `first`, `first + stride`, ... Stride 1 may be one batch read."""

    request_id: int
    slot: int
    bookie_id: BookieId
    first: int
    count: int
    stride: int = 1
    bytes_max: int

    @property
    def entry_ids(self) -> range:
        return range(self.first, self.first + self.count * self.stride, self.stride)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of what a read brought: `data` holds entries `first`, `first + stride`, ..."""

    first: int
    count: int
    stride: int
    data: object
    size: int = 0  # as the answer said; give it back with `on_consumed`

    @property
    def entry_ids(self) -> range:
        return range(self.first, self.first + self.count * self.stride, self.stride)


@dataclass(frozen=True, slots=True)
class Deliver(Command):
    """Entries `first..last`, next in order. Several parts interleave by their strides."""

    first: int
    last: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ReportCorruption(Command):
    """This replica failed its digest: count it, and have it repaired."""

    entry_id: int
    bookie_id: BookieId


@dataclass(frozen=True, slots=True)
class MarkSlow(Command):
    """Another bookie was asked later and answered first."""

    bookie_id: BookieId


@dataclass(frozen=True, slots=True)
class ReadMetadata(Command):
    """Read the ledger's record again: its replicas may have moved."""


@dataclass(frozen=True, slots=True)
class ReadEnded(Command):
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class LacReadEnded(Command):
    """The highest LAC seen, and whether enough bookies answered to rely on it."""

    lac: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class AskPoll(Command):
    """Park at this bookie until its LAC passes `previous_lac`; bring the entry after it along."""

    request_id: int
    slot: int
    bookie_id: BookieId
    previous_lac: int


@dataclass(frozen=True, slots=True)
class PollEnded(Command):
    """`lac` above the previous one is news; otherwise there is none, or the poll failed."""

    lac: int
    entry: object = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class StartRecovery(Command):
    """OPEN to IN_RECOVERY, by compare-and-swap; whatever else is found is left as it is."""


@dataclass(frozen=True, slots=True)
class AskRecoveryRead(Command):
    """Read one entry with fence and high-priority flags."""

    request_id: int
    slot: int
    bookie_id: BookieId
    entry_id: int


@dataclass(frozen=True, slots=True)
class PackageRecovered(Command):
    """Build `entries` (length from the header as read, payload), the first of which is `first`.

    `lac` is that of the start of the recovery, in all of them. Sent with the recovery and
    high-priority flags, and never deferred.
    """

    first: int
    lac: int
    entries: tuple[tuple[int, object], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseReplacements(Command):
    """Choose other bookies for these slots. Nothing is recorded."""

    ensemble: tuple[BookieId, ...]
    failed: Mapping[int, BookieId]
    avoid: frozenset[BookieId] = frozenset()
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadLength(Command):
    """Read this confirmed entry in the ordinary way, for the length in its header."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class FinishRecovery(Command):
    """IN_RECOVERY to CLOSED, by compare-and-swap; a ledger found CLOSED is left as it is."""

    last_entry_id: int
    length: int
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class RecoveryEnded(Command):
    """The ledger is closed as `metadata` says, or recovery failed and may be repeated."""

    metadata: LedgerMetadata | None
    failure: Failure | None = None
