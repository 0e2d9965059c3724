"""Very many small ledgers: a lock, three reads and two writes for a few kilobytes each.

What such a ledger costs is round trips to the metadata store, and there most of all the writes,
each of which is synced. So a handful of marked ledgers is taken at once: one transaction locks
them, their records are read together, the copies are made side by side, and one transaction writes
all records and deletes all marks and locks. To others it looks as if each had been done alone.

Only what goes well goes this way. Whatever is open, large, or not as expected is handed back with
its lock, and repaired like any other ledger; copies that were made for it are made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.replicator import Progress, Replicator
from autorecovery.worker_repair import Ending, LedgerRepair, RepairResult
from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.model import InvalidMetadataError, LedgerMetadata
from metadata.store import SetData
from metadata.underreplication import Lock
from metadata.update import VersionedLedger
from wire.errors import LedgerError
from wire.types import BookieId

#: Ledgers that are taken at once. Their records together must fit into one request.
BATCH_LEDGERS: Final = 32
#: More than this, and the copy outweighs the round trips.
_LEDGER_BYTES_MAX: Final = 256 * 1024
_RECORD_BYTES_MAX: Final = 16 * 1024


@dataclass(slots=True)
class BatchResult:
    #: Whole, and their marks deleted.
    done: list[tuple[Lock, RepairResult]] = field(default_factory=list)
    #: Still locked, and still to be repaired, each for itself.
    left: list[Lock] = field(default_factory=list)


@dataclass(slots=True)
class _Planned:
    lock: Lock
    path: str
    ledger: VersionedLedger
    result: RepairResult | None = None


class Batch:
    """A handful of locked ledgers, once."""

    def __init__(
        self, context: RecoveryContext, replicator: Replicator, progress: Progress
    ) -> None:
        self._context = context
        self._replicator = replicator
        self._progress = progress

    async def run(self, locks: Sequence[Lock]) -> BatchResult:
        """Raises what the store raises; then nothing is known, and the locks are to be released."""
        found = BatchResult()
        suited = await self._read(locks, found)
        async with trio.open_nursery() as nursery:
            for planned in suited:
                nursery.start_soon(self._copy, planned)
        ready = [each for each in suited if _is_ready(each.result)]
        found.left += [each.lock for each in suited if not _is_ready(each.result)]
        if ready and await self._commit(ready):
            found.done += [(each.lock, each.result) for each in ready if each.result is not None]
        else:
            found.left += [each.lock for each in ready]
        return found

    async def _read(self, locks: Sequence[Lock], found: BatchResult) -> list[_Planned]:
        """The records, after the marks: whatever is marked from now on changes a mark."""
        ledgers = self._context.client.ledgers
        present = self._context.client.bookies().all
        paths = [ledgers.paths.path_of(lock.ledger_id) for lock in locks]
        suited: list[_Planned] = []
        for lock, path, node in zip(
            locks, paths, await self._context.store.get_many(paths), strict=True
        ):
            if node is not None and len(node.data) <= _RECORD_BYTES_MAX:
                try:
                    metadata = decode_ledger_metadata(node.data, ledger_id=lock.ledger_id)
                except InvalidMetadataError:
                    metadata = None
                if metadata is not None and self._is_suited(lock, metadata, present):
                    ledger = VersionedLedger(metadata, node.stat.version, node.stat.created_ms)
                    suited.append(_Planned(lock, path, ledger))
                    continue
            found.left.append(lock)
        return suited

    def _is_suited(
        self, lock: Lock, metadata: LedgerMetadata, present: frozenset[BookieId]
    ) -> bool:
        assert lock.mark is not None
        named = lock.mark.content.replicas
        return (
            metadata.is_closed
            and metadata.length <= _LEDGER_BYTES_MAX
            and bool(named)  # else it is asked for something else than a lost bookie's copies
            and present.isdisjoint(named)
            and self._context.marks.can_finish_together(lock)
        )

    async def _copy(self, planned: _Planned) -> None:
        repair = LedgerRepair(
            self._replicator,
            planned.lock.ledger_id,
            session=planned.lock.session,
            progress=self._progress,
            known=planned.ledger,
            is_deferred=True,
        )
        try:
            planned.result = await repair.run()
        except LedgerError:
            return  # repaired alone, it says what is wrong

    async def _commit(self, ready: Sequence[_Planned]) -> bool:
        commits: list[SetData] = []
        for planned in ready:
            assert planned.result is not None
            assert planned.result.ledger is not None
            if planned.result.fragments:
                record = encode_ledger_metadata(planned.result.ledger.metadata)
                commits.append(SetData(planned.path, record, planned.ledger.version))
        locks = [planned.lock for planned in ready]
        return await self._context.marks.finish_together(locks, commits)


def _is_ready(result: RepairResult | None) -> bool:
    return (
        result is not None
        and result.ending is Ending.WHOLE
        and not result.unfilled
        and result.fragments > 0
    )
