"""One ledger as this bookie knows it: key, fence, limbo, tombstone, LAC. Decides, never waits.

The event loop owns these objects. What a decision needs of the disk (a durable fence, a state in a
checkpoint) is the engine's business; here is only what is allowed.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final, NamedTuple

from wire.errors import Status
from wire.types import NO_ENTRY, LedgerId

if TYPE_CHECKING:
    from bookie.core.write_cache import Part

NOT_DIRTY: Final = -1


class Tombstone(NamedTuple):
    """A ledger whose data was dropped. Runs written at or before `sequence` are dead."""

    time_ms: int
    sequence: int


class Ledger:
    """Mutable, one per ledger id and process: two would let a fence and an add pass each other."""

    __slots__ = (
        "_fenced", "_limbo", "_master_key", "_tombstone", "active", "dirty", "explicit_lac",
        "fence_durable", "home", "id", "journal", "key_presented", "lac", "last_entry", "last_read",
        "loaded", "loads", "plain_key", "sealed", "stored", "touched", "waiters",
    )  # fmt: skip

    def __init__(self, ledger_id: LedgerId, *, home: int, journal: int, is_new: bool) -> None:
        self.id = ledger_id
        self.home = home  # index of the ledger directory that holds it
        self.journal = journal  # index of the journal directory that logs it
        self._master_key: bytes | None = None
        self.key_presented = False  # by a client of this process, not found on disk
        self._fenced = False
        self.fence_durable = True  # False from the fence until its journal block is synced
        self._limbo = False
        self._tombstone: Tombstone | None = None
        #: The key with which any add is welcome: none while there is anything to look at first.
        #: One comparison instead of four, for thousands of ledgers that take an add in turn.
        self.plain_key: bytes | None = None
        self.explicit_lac: bytes | None = None
        self.lac = NO_ENTRY  # the highest LAC seen; a lower bound until `loaded`
        self.last_entry = NO_ENTRY  # likewise
        self.loaded = is_new  # whether the index was asked for the last entry and its LAC
        self.last_read = NO_ENTRY  # for telling a sequential reader from a random one
        self.active: Part | None = None
        self.sealed: list[Part] = []
        self.stored = b""  # the state as the next checkpoint will write it
        self.dirty = NOT_DIRTY  # the generation whose checkpoint will hold the newest state
        self.touched = True  # used since the table of ledgers last looked for old ones
        self.loads = 0  # reads under way in other threads
        self.waiters = 0  # parked long polls

    @property
    def master_key(self) -> bytes | None:
        return self._master_key

    @master_key.setter
    def master_key(self, key: bytes | None) -> None:
        self._master_key = key
        self._decide()

    @property
    def fenced(self) -> bool:
        return self._fenced

    @fenced.setter
    def fenced(self, fenced: bool) -> None:
        self._fenced = fenced
        self._decide()

    @property
    def limbo(self) -> bool:
        return self._limbo

    @limbo.setter
    def limbo(self, limbo: bool) -> None:
        self._limbo = limbo
        self._decide()

    @property
    def tombstone(self) -> Tombstone | None:
        return self._tombstone

    @tombstone.setter
    def tombstone(self, tombstone: Tombstone | None) -> None:
        self._tombstone = tombstone
        self._decide()

    def _decide(self) -> None:
        self.plain_key = None if self.is_special else self._master_key

    @property
    def is_pinned(self) -> bool:
        """Whether forgetting this object would lose something that only memory knows.

        A fence that is in the journal alone is the dangerous case: a fresh object, loaded from the
        index, would not be fenced.
        """
        return bool(
            self.active or self.sealed or self.dirty != NOT_DIRTY or self.waiters or self.loads
        )

    @property
    def is_special(self) -> bool:
        """Whether an ordinary add with the right key needs a closer look."""
        return self._fenced or self._limbo or self._tombstone is not None

    @property
    def exists(self) -> bool:
        """Whether a read may find it. A ledger object without a key was merely asked about.

        Except in limbo: after a loss the key may be what is missing.
        """
        return (self._master_key is not None or self._limbo) and self._tombstone is None

    def accepts_key(self, key: bytes) -> bool:
        """The first key presented is the ledger's; a stored one of zeros, or of nothing, is none.

        As with Apache's, which writes zeros for "not known yet". Presented, they are a key.
        """
        mine = self._master_key
        if mine is None or compare_digest(mine, key):
            return True
        return not (any(mine) or self.key_presented)

    def admit_add(self, key: bytes, *, recovery: bool) -> Status:
        """Whether an add may be taken. The order of the checks is what Java peers see."""
        if self.plain_key is not None and compare_digest(self.plain_key, key):
            return Status.OK
        if self._tombstone is not None:
            # A zombie writer must not re-create a dropped ledger; repair may bring it back.
            return Status.OK if recovery else Status.FENCED
        if not self.accepts_key(key):
            return Status.UNAUTHORIZED
        if self._fenced and not recovery:
            return Status.FENCED
        if self._limbo and not recovery:
            return Status.UNAUTHORIZED
        return Status.OK

    def admit_fence(self, key: bytes | None) -> Status:
        if self.tombstone is not None:
            return Status.NO_LEDGER
        if key is None or not self.accepts_key(key):
            return Status.UNAUTHORIZED
        return Status.OK

    def admit_explicit_lac(self, key: bytes) -> Status:
        if self.tombstone is not None:
            return Status.NO_LEDGER
        return Status.OK if self.accepts_key(key) else Status.UNAUTHORIZED

    def absent(self) -> Status:
        """The answer for an entry that was looked for everywhere and not found."""
        if self.limbo:
            return Status.UNKNOWN_LEDGER_STATE
        return Status.NO_ENTRY if self.exists else Status.NO_LEDGER

    def raise_lac(self, lac: int) -> bool:
        """Take a LAC seen in an entry or set explicitly; whether it is news."""
        if lac <= self.lac:
            return False
        self.lac = lac
        return True
