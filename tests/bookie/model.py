"""What a bookie must remember, as plainly as it can be said. Histories are checked against it.

Three kinds of knowledge, and a crash treats them differently: what was *offered* may be there, what
was acknowledged softly (deferred sync) survives the death of the process, what is *kept* was
acknowledged for good and survives everything. An entry's content follows from its id, so whatever
is read can be checked, acknowledged or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from bookie.core.ledger import Ledger
from tests.bookie.machine import entry_of
from wire.errors import Status
from wire.types import NO_ENTRY, Flag

T = TypeVar("T")


@lru_cache(maxsize=1 << 14)
def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """Content by id, of all sizes from none to a few hundred bytes."""
    size = (ledger_id * 131 + entry_id * 37) % 97
    if size % 16 == 5:
        size *= 12
    return (b"%d/%d " % (ledger_id, entry_id) * (size // 4 + 1))[:size]


def lac_of(entry_id: int) -> int:
    """The LAC inside an entry: three adds are always under way."""
    return max(entry_id - 3, NO_ENTRY)


@lru_cache(maxsize=1 << 14)
def content_of(ledger_id: int, entry_id: int) -> bytes:
    return entry_of(ledger_id, entry_id, payload_of(ledger_id, entry_id), lac_of(entry_id))


class Register(Generic[T]):
    """A value of which the last one written wins.

    After a crash it is the last one acknowledged, or one that was offered later.
    """

    def __init__(self, value: T) -> None:
        self.values = [value]
        self._kept = 0

    @property
    def now(self) -> T:
        return self.values[-1]

    @property
    def possible(self) -> list[T]:
        return self.values[self._kept :]

    def offer(self, value: T) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def keep(self, number: int) -> None:
        self._kept = max(self._kept, number)

    def found(self, value: T, what: str) -> None:
        """A start found this value: it must be possible, and stays."""
        assert value in self.possible, f"{what} is {value!r}, possible are {self.possible!r}"
        self.keep(self.offer(value))

    def doubt(self) -> None:
        """Any value of before may come back."""
        self._kept = 0


@dataclass(eq=False)
class LedgerModel:
    id: int
    key: bytes
    offered: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)  # offered since the last start or drop
    soft: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    life: int = 0  # counts drops: what was offered before one is not owed after it
    dropped: bool = False
    was_dropped: bool = False
    key_kept: bool = False
    fenced: bool = False
    fence_offered: bool = False
    fence_kept: bool = False
    explicit: Register[bytes | None] = field(default_factory=lambda: Register(None))
    limbo: Register[bool] = field(default_factory=lambda: Register(False))
    lac_offered: int = NO_ENTRY

    @property
    def owed(self) -> set[int]:
        return self.kept | self.soft

    # What the bookie may answer.

    def add_status(self, key: bytes, flags: int) -> Status:
        recovery = bool(flags & Flag.RECOVERY_ADD)
        if self.dropped:
            return Status.OK if recovery else Status.FENCED
        if key != self.key:
            return Status.UNAUTHORIZED
        if self.fenced and not recovery:
            return Status.FENCED
        if self.limbo.now and not recovery:
            return Status.UNAUTHORIZED
        return Status.OK

    def check_entry(self, entry_id: int, found: bytes | Status) -> None:
        if isinstance(found, bytes):
            assert entry_id in self.offered, f"{self.id}/{entry_id} was never written"
            assert found == content_of(self.id, entry_id), f"{self.id}/{entry_id} has wrong bytes"
            return
        assert entry_id not in self.owed, f"{self.id}/{entry_id} was acknowledged: {found.name}"
        self.check_absence(found)

    def check_absence(self, found: Status) -> None:
        if self.limbo.now:
            assert found is Status.UNKNOWN_LEDGER_STATE, f"limbo of {self.id}: {found.name}"
        elif self.dropped:
            assert found is Status.NO_LEDGER, f"dropped {self.id}: {found.name}"
        elif self.key_kept:
            assert found is Status.NO_ENTRY, f"{self.id} exists: {found.name}"
        else:
            assert found in (Status.NO_ENTRY, Status.NO_LEDGER), f"{self.id}: {found.name}"

    def check_batch(self, first: int, found: list[bytes] | Status) -> None:
        if isinstance(found, Status):
            self.check_entry(first, found)
            return
        assert found, "a batch holds at least one entry"
        for entry_id, entry in enumerate(found, first):
            self.check_entry(entry_id, entry)

    def check_last(self, found: bytes | Status) -> None:
        if isinstance(found, Status):
            if not self.limbo.now:  # in limbo nobody knows what the last entry was
                assert not self.owed, f"last entry of {self.id}: {found.name}"
            self.check_absence(found)
            return
        entry_id = int.from_bytes(found[8:16], "big")
        self.check_entry(entry_id, found)
        assert entry_id >= max(self.owed, default=0), f"{self.id}: {entry_id} is not the last"

    def check_lac(self, found: int | Status) -> None:
        if isinstance(found, Status):
            if not self.limbo.now:
                assert not self.key_kept, f"LAC of {self.id}: {found.name}"
            self.check_absence(found)
            return
        assert found <= self.lac_offered, f"LAC {found} of {self.id} was never written"
        if not self.was_dropped:
            floor = lac_of(max(self.owed, default=NO_ENTRY))
            explicit = min(map(explicit_number, self.explicit.possible))
            assert found >= max(floor, explicit), f"LAC {found} of {self.id} fell"

    # What happens to it.

    def added(self, ids: Iterable[int]) -> None:
        ids = set(ids)
        self.offered |= ids
        self.accepted |= ids
        if self.dropped:
            self.dropped = False
            self.limbo.offer(False)
        self.lac_offered = max(self.lac_offered, lac_of(max(ids)))

    def drop(self) -> None:
        self.life += 1
        self.dropped = self.was_dropped = True
        self.kept.clear()
        self.soft.clear()
        self.accepted.clear()
        self.key_kept = False
        self.explicit.offer(None)
        self.explicit.doubt()
        self.limbo.doubt()

    def forgotten(self) -> None:
        """The bookie no longer remembers that it was dropped: it is as new."""
        self.dropped = self.fenced = self.fence_kept = False
        self.explicit.keep(self.explicit.offer(None))
        self.limbo.keep(self.limbo.offer(False))

    def lose_power(self) -> None:
        self.soft.clear()

    def restarted(self, ledger: Ledger) -> None:
        """A start has found this state; what it may be, and what it is from now on."""
        if ledger.tombstone is not None:
            assert self.was_dropped, f"{self.id} was never dropped"
            assert not self.kept, f"{self.id} was brought back after its drop"
        if self.key_kept:
            assert ledger.master_key == self.key, f"key of {self.id}: {ledger.master_key!r}"
        self.key_kept |= ledger.exists and ledger.master_key == self.key
        if self.fence_kept and (ledger.exists or not self.dropped):
            assert ledger.fenced, f"the fence of {self.id} is gone"
        if ledger.fenced:
            assert self.fence_offered, f"nobody fenced {self.id}"
        self.fenced = self.fence_kept = ledger.fenced
        self.dropped = ledger.tombstone is not None
        self.explicit.found(ledger.explicit_lac, f"explicit LAC of {self.id}")
        self.limbo.found(ledger.limbo, f"limbo of {self.id}")
        self.kept |= self.soft  # what replay found, it has synced
        self.soft.clear()
        self.accepted.clear()


def explicit_number(body: bytes | None) -> int:
    return NO_ENTRY if body is None else int.from_bytes(body[8:16], "big", signed=True)


class Owed:
    """A token: what the bookie owes from the moment it gives this back."""

    def __init__(
        self, ledger: LedgerModel, *, ids: Iterable[int] = (), soft: bool = False,
        fence: bool = False, explicit: int = 0, limbo: int = 0, key: bool = True,
    ) -> None:  # fmt: skip
        self.ledger = ledger
        self.life = ledger.life
        self.ids = frozenset(ids)
        self.soft = soft
        self.fence = fence
        self.explicit = explicit
        self.limbo = limbo
        self.key = key
        self.answered = False

    def answer(self) -> None:
        assert not self.answered, "a token came back twice"
        self.answered = True
        ledger = self.ledger
        ledger.fence_kept |= self.fence  # it outlives even a drop
        if self.life != ledger.life:
            return
        (ledger.soft if self.soft else ledger.kept).update(self.ids)
        ledger.key_kept |= self.key and not self.soft
        ledger.explicit.keep(self.explicit)
        ledger.limbo.keep(self.limbo)
