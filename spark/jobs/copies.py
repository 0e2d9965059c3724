"""Reading every copy of every entry, bookie by bookie, and counting what is there.

A read through the client is content with the first good copy. Here each bookie of an ensemble is
asked for all that it should hold, and every digest is checked.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from ledger_client import DigestType
from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.environment import Access
from ledger_client.pool import Pool
from ledger_client.requests import FoundEntries, Mailbox, Reads
from ledger_client.security import read_security, secure_network
from metadata.model import LedgerMetadata
from spark.credentials import Passwords
from spark.partitions import PartitionPlan, PlannedRange
from wire.entry import decode_entries
from wire.types import BookieId

#: Asked for at once, and at most this many bytes of it.
_ENTRIES_MAX = 1000
_BYTES_MAX = 1024 * 1024
#: A bookie that does not answer is asked again so often before its copies count as unreachable.
_ROUNDS = 3


@dataclass(slots=True)
class CopyCount:
    """What one bookie has of a range of one ledger."""

    ledger_id: int
    bookie: str
    expected: int = 0
    good: int = 0
    missing: int = 0
    corrupt: int = 0
    unreachable: int = 0
    first_bad: int | None = None

    def on_bad(self, entry_id: int) -> None:
        self.first_bad = entry_id if self.first_bad is None else min(self.first_bad, entry_id)


async def count_copies(
    plan: PartitionPlan,
    passwords: Passwords,
    client_conf: str | None,
    put: Callable[[CopyCount], Awaitable[None]],
) -> None:
    """One count for each share of each bookie in the plan, handed over by `put`.

    `client_conf` is the file that says how bookies are reached, as for any read.
    """
    chance = random.Random()
    network = secure_network(read_security(client_conf))
    pool = Pool(lambda: plan.bookies, network=network, chance=chance)
    request_ids = itertools.count(1)
    async with trio.open_nursery() as nursery:
        await nursery.start(pool.run)
        try:
            for planned in plan.ranges:
                metadata = planned.metadata
                digest_type = metadata.digest_type or DigestType.CRC32
                password = passwords.of(metadata.ledger_id)
                access = Access.of(metadata.ledger_id, digest_type, password)
                for bookie_id, entry_ids in shares_of(planned):
                    count = CopyCount(metadata.ledger_id, bookie_id, expected=len(entry_ids))
                    await _count(pool, access, bookie_id, entry_ids, request_ids, count)
                    await put(count)
        finally:
            pool.close()
            nursery.cancel_scope.cancel()


def shares_of(planned: PlannedRange) -> Iterator[tuple[BookieId, range]]:
    """Which bookie should hold which entries: a bookie of a stripe holds every so manieth."""
    metadata = planned.metadata
    distribution = Distribution.of(metadata)
    for first, last, ensemble in _fragments(metadata, planned):
        for slot, bookie_id in enumerate(ensemble):
            if not distribution.is_striped:
                yield bookie_id, range(first, last + 1)
                continue
            for entry_id in range(first, min(first + metadata.ensemble_size, last + 1)):
                if distribution.holds(slot=slot, entry_id=entry_id):
                    yield bookie_id, range(entry_id, last + 1, metadata.ensemble_size)


def _fragments(
    metadata: LedgerMetadata, planned: PlannedRange
) -> Iterator[tuple[int, int, tuple[BookieId, ...]]]:
    following = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    for fragment, end in itertools.zip_longest(metadata.fragments, following):
        first = max(planned.first, fragment.first_entry_id)
        last = planned.last if end is None else min(planned.last, end - 1)
        if first <= last:
            yield first, last, fragment.ensemble


async def _count(
    pool: Pool,
    access: Access,
    bookie_id: BookieId,
    entry_ids: range,
    request_ids: Iterator[int],
    count: CopyCount,
) -> None:
    rounds = 0
    while entry_ids:
        asked = entry_ids[:_ENTRIES_MAX]
        outcome, good = await _ask(pool, access, bookie_id, asked, next(request_ids))
        count.good += good
        entry_ids = entry_ids[good:]
        if good == len(asked) or (good and outcome is Outcome.OK):
            rounds = 0
            continue
        bad = entry_ids[0]
        if outcome is Outcome.CORRUPT:
            count.corrupt += 1
            entry_ids = entry_ids[1:]
        elif outcome is Outcome.NO_SUCH_LEDGER:
            count.missing += len(entry_ids)
            entry_ids = entry_ids[:0]
        elif outcome is Outcome.NO_SUCH_ENTRY:
            count.missing += 1
            entry_ids = entry_ids[1:]
        else:
            rounds += 1
            if rounds < _ROUNDS:
                await trio.sleep(0.1 * 2**rounds)
                continue
            count.unreachable += len(entry_ids)
            entry_ids = entry_ids[:0]
        count.on_bad(bad)


async def _ask(
    pool: Pool, access: Access, bookie_id: BookieId, entry_ids: range, request_id: int
) -> tuple[Outcome, int]:
    """How many of them are good, from the first on, and what is with the one behind."""
    mail = Mailbox()
    pool.ask(
        bookie_id,
        Reads(
            request_id=request_id,
            sink=mail.take,
            ledger_id=access.ledger_id,
            entry_ids=entry_ids,
            bytes_max=_BYTES_MAX,
        ),
    )
    while not (answers := await mail.wait()):
        pass
    _, outcome, found = answers[0]
    if not isinstance(found, FoundEntries) or not found.entries:
        # "Well", and not a single entry: the bookie is of no use here.
        return (Outcome.IO_ERROR if outcome is Outcome.OK else outcome), 0
    number = min(found.entries, len(entry_ids))
    entries = decode_entries(
        found.data,
        found.bounds[: number + 1],
        found.skip,
        ledger_id=access.ledger_id,
        entry_ids=entry_ids[:number],
        digest=access.digest,
    )
    return (Outcome.CORRUPT if entries.error is not None else outcome), len(entries.payloads)
