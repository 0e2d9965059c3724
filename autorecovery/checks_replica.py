"""Reading one replica of a fragment from end to end, and judging it.

Every entry that a slot should hold is asked for at its bookie and its digest verified. Only an
answer that proves a copy to be missing or spoilt makes a replica bad: a bookie that is slow,
overloaded or out of reach leaves it undecided, or a busy cluster would be marked as a whole and
made busier still.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio

from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.environment import Access, Environment
from ledger_client.errors import ClientClosedError
from ledger_client.requests import Answer, FoundEntries, Mailbox, Reads
from metadata.model import FragmentRange, LedgerMetadata
from wire.entry import decode_entries
from wire.types import BookieId, DigestType, LedgerId

#: Asked for at once. Bookies without batches answer each by itself.
ENTRIES_PER_REQUEST: Final = 256
BYTES_PER_REQUEST: Final = 1 << 20
#: A bookie in trouble is asked so often, with growing pauses, before it stays undecided.
ATTEMPTS_MAX: Final = 4
_FIRST_PAUSE_SECONDS: Final = 1.0


class ReplicaState(Enum):
    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The entries `first..last` that this slot should hold."""

    ledger_id: LedgerId
    slot: int
    bookie_id: BookieId
    first: int
    last: int
    distribution: Distribution
    #: None for the oldest records, which do not say: then only presence can be checked.
    access: Access | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFinding:
    replica: Replica
    state: ReplicaState
    #: The first entry that is bad, or that nothing could be learned about.
    entry_id: int | None = None
    outcome: Outcome | None = None
    entries_read: int = 0
    bytes_read: int = 0


def access_of(metadata: LedgerMetadata) -> Access | None:
    """What the record itself knows: enough for auditors and workers, who have no password."""
    if metadata.password is None:
        return None
    digest_type = metadata.digest_type or DigestType.CRC32
    return Access.of(metadata.ledger_id, digest_type, metadata.password)


def replicas_of(metadata: LedgerMetadata, found: FragmentRange) -> list[Replica]:
    """What the bookies of a fragment should hold of a closed ledger."""
    assert found.last_entry_id is not None
    distribution, access = Distribution.of(metadata), access_of(metadata)
    return [
        Replica(
            ledger_id=metadata.ledger_id,
            slot=slot,
            bookie_id=bookie_id,
            first=found.fragment.first_entry_id,
            last=found.last_entry_id,
            distribution=distribution,
            access=access,
        )
        for slot, bookie_id in enumerate(found.fragment.ensemble)
    ]


class ReplicaCheck:
    """One after another, as many entries as `percent` says."""

    def __init__(
        self,
        client: Environment,
        *,
        percent: int = 100,
        spend: Callable[[int], Awaitable[None]] | None = None,
        on_read: Callable[[float, int, int], None] | None = None,
    ) -> None:
        """`spend` is awaited with the bytes of every answer; `on_read` is told its milliseconds,
        bytes and entries."""
        self._client = client
        self._percent = percent
        self._spend = spend
        self._on_read = on_read

    async def check(self, replica: Replica) -> ReplicaFinding:
        """Until its end, or until the first entry that decides against it."""
        entries = size = 0
        for asked in self._parts(replica):
            left = asked
            while left:
                outcome, good, read_bytes = await self._read(replica, left)
                entries += good
                size += read_bytes
                left = left[good:]
                if good:
                    continue  # also when one behind them is bad: that one is asked for by itself
                state = ReplicaState.UNDECIDED
                if outcome.is_missing or outcome in (Outcome.CORRUPT, Outcome.IO_ERROR):
                    state = ReplicaState.BAD
                return ReplicaFinding(
                    replica=replica,
                    state=state,
                    entry_id=left[0],
                    outcome=outcome,
                    entries_read=entries,
                    bytes_read=size,
                )
        return ReplicaFinding(
            replica=replica, state=ReplicaState.GOOD, entries_read=entries, bytes_read=size
        )

    def _parts(self, replica: Replica) -> Iterator[range]:
        """The entries of the slot in pieces with a constant step; all, or a share of them.

        The first and the last piece are never left out: that is where copies are missing when a
        bookie came late or went early.
        """
        shape = replica.distribution
        step = shape.ensemble_size if shape.is_striped else 1
        stretch = ENTRIES_PER_REQUEST * step
        last_start = replica.first + (replica.last - replica.first) // stretch * stretch
        for start in range(replica.first, replica.last + 1, stretch):
            is_edge = start in (replica.first, last_start)
            if not is_edge and self._client.chance.random() * 100 >= self._percent:
                continue
            end = min(replica.last, start + stretch - 1)
            for first in range(start, min(end, start + step - 1) + 1):
                if shape.holds(slot=replica.slot, entry_id=first):
                    yield range(first, end + 1, step)

    async def _read(self, replica: Replica, entry_ids: range) -> tuple[Outcome, int, int]:
        """What came of the entry behind the good ones, how many were good, and their bytes."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            start = trio.current_time()
            answer = await self._ask(replica, entry_ids)
            outcome, good, size = self._judged(replica, entry_ids, answer)
            if self._on_read is not None:
                self._on_read((trio.current_time() - start) * 1000, size, good)
            if self._spend is not None:
                await self._spend(size)
            if good or outcome not in _WORTH_ASKING_AGAIN or attempt == ATTEMPTS_MAX:
                break
            pause = _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)
            await trio.sleep(self._client.chance.uniform(pause / 2, pause))
        return outcome, good, size

    async def _ask(self, replica: Replica, entry_ids: range) -> Answer:
        mail = Mailbox()
        request = Reads(
            request_id=next(self._client.request_ids),
            sink=mail.take,
            ledger_id=replica.ledger_id,
            entry_ids=entry_ids,
            bytes_max=BYTES_PER_REQUEST,
        )
        self._client.pool.ask(replica.bookie_id, request)
        answers: list[Answer] = []
        while not answers:
            answers = await mail.wait()
        if answers[0].outcome is Outcome.CLIENT_CLOSED:
            raise ClientClosedError(f"ledger {replica.ledger_id}: the check was cut short")
        return answers[0]

    def _judged(
        self, replica: Replica, entry_ids: range, answer: Answer
    ) -> tuple[Outcome, int, int]:
        found = answer.content
        if not isinstance(found, FoundEntries) or not found.entries:
            # OK without entries says nothing; no bookie should.
            outcome = answer.outcome
            return (Outcome.BAD_REQUEST if outcome is Outcome.OK else outcome), 0, 0
        count = min(found.entries, len(entry_ids))
        size = found.bounds[count] - found.bounds[0]
        if replica.access is None:
            return answer.outcome, count, size
        entries = decode_entries(
            found.data,
            found.bounds[: count + 1],
            found.skip,
            ledger_id=replica.ledger_id,
            entry_ids=entry_ids[:count],
            digest=replica.access.digest,
        )
        if entries.error is not None:
            return Outcome.CORRUPT, len(entries.payloads), size
        return answer.outcome, count, size


_WORTH_ASKING_AGAIN: Final = frozenset(
    {
        Outcome.TIMEOUT,
        Outcome.TOO_MANY_REQUESTS,
        Outcome.NOT_CONNECTED,
        Outcome.IO_ERROR,
        # A bit that flipped on its way is not one that flipped on the disk.
        Outcome.CORRUPT,
    }
)
