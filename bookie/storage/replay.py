"""Replay: what the journals hold beyond the marks goes into the write cache again.

Records are applied without judgement: they were accepted once. Every step can be repeated, so a
crash during replay costs nothing. When the cache is full, a checkpoint is taken on the spot, with
the block that comes next as its mark; so memory stays bounded however long the journal is.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bookie.core.ledger import Ledger
from bookie.core.runs import run_of_batch
from bookie.core.write_cache import ENTRY_OVERHEAD_BYTES, RUN_OVERHEAD_BYTES, Part, WriteCache
from bookie.storage.index_format import JournalPosition as MarkPosition
from bookie.storage.index_format import LogMark
from bookie.storage.journal_format import JournalDamageError, JournalPosition
from bookie.storage.journal_reader import Block, EndKind, JournalReplay, ReplayEnd
from bookie.storage.journal_records import (
    ADD,
    ADD_BATCH,
    ADD_BATCH_ENTRIES_OFFSET,
    NO_MASTER_KEY,
    ExplicitLac,
    Fence,
    LedgerKey,
    Limbo,
    decode_state,
    iterate_records,
)
from bookie.storage.ledger_directory import LedgerDirectory, Share
from bookie.storage.ledgers import Ledgers, stored_state
from runtime.files import FileSystem
from wire.batch import decode_batch, walk_batch
from wire.errors import BadRequestError, LedgerError, ProtocolError, VersionError
from wire.scan_v2 import ADD_ENTRY_OFFSET, AddMix, AddRun, scan_adds


def nowhere(number: int) -> MarkPosition:
    """The mark of a journal that has none yet: replay it from its beginning."""
    return MarkPosition(number, 0, 0, 0)


class DamagedJournalError(LedgerError):
    """Acknowledged records cannot be read. Starting anyway needs the operator's word."""


@dataclass(slots=True)
class ReplayStatistics:
    blocks: int = 0
    records: int = 0
    entries: int = 0
    #: Records of a directory that has them, or of a dropped ledger. A record that brought a ledger
    #: back after its drop stands before the entries that came with it.
    skipped: int = 0
    seconds: float = 0.0


class Replay:
    """Replays all journals of a store into one write cache."""

    def __init__(
        self,
        files: FileSystem,
        journal_paths: Sequence[str],
        directories: Sequence[LedgerDirectory],
        *,
        store_id: bytes,
        ledgers: Ledgers,
        cache: WriteCache,
        generation_bytes: int,
        clock: Callable[[], float],
        on_progress: Callable[[int, str], None] = lambda blocks, path: None,
    ) -> None:
        self._files = files
        self._journal_paths = journal_paths
        self._directories = directories
        self._store_id = store_id
        self._ledgers = ledgers
        self._cache = cache
        self._generation_bytes = generation_bytes
        self._clock = clock
        self._on_progress = on_progress
        # Where each journal would have to be replayed from, if we checkpointed now.
        self._positions = [self._start(number) for number in range(len(journal_paths))]
        self._inline = True  # until a disk is full: then checkpoints wait for the flush threads
        self.statistics = ReplayStatistics()

    def run(self, *, accept_damage: bool = False) -> list[ReplayEnd]:
        """Replay everything; where each journal ends."""
        started = self._clock()
        ends = []
        for number, path in enumerate(self._journal_paths):
            mark = self._positions[number]
            start = JournalPosition(*mark[1:]) if mark else None
            journal = JournalReplay(self._files, path, self._store_id, mark=start)
            for block in journal:
                self._before(number, block)
                self._apply(number, block, path)
                self.statistics.blocks += 1
                self._on_progress(self.statistics.blocks, path)
            end = journal.end
            if end.kind is EndKind.DAMAGE and not accept_damage:
                raise DamagedJournalError(end.describe())
            if end.position is not None:
                self._positions[number] = MarkPosition(number, *end.position)
            ends.append(end)
        self._ledgers.homes = range(len(self._directories))
        self.statistics.seconds = self._clock() - started
        return ends

    def _start(self, number: int) -> MarkPosition | None:
        """The oldest mark of any directory: each of them skips what it has."""
        oldest = min(directory.mark.journals[number] for directory in self._directories)
        return None if oldest == nowhere(number) else oldest

    def _before(self, number: int, block: Block) -> None:
        self._positions[number] = MarkPosition(number, *block.position)
        if self._cache.active.bytes >= self._generation_bytes:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write what was replayed so far, if every journal has a place to go on from."""
        marks = [position for position in self._positions if position is not None]
        if len(marks) < len(self._positions):
            return
        generation = self._cache.seal(self._clock())
        mark = LogMark(generation.number, tuple(marks))
        for directory in self._directories:
            directory.shares.append(Share.of(generation, directory.number, mark))
        while self._inline and self._cache.sealed:
            try:
                for directory in self._directories:
                    directory.write(directory.shares[0])
                    directory.shares.popleft()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._inline = False
                return
            self._cache.drop(self._cache.sealed[0])
            while self._cache.free_some(1 << 20):
                pass

    def _apply(self, number: int, block: Block, path: str) -> None:
        payload = block.payload
        position = block.position
        skips = [
            directory.mark.journals[number].block_sequence > position.sequence
            for directory in self._directories
        ]
        # A ledger that no index knows goes where this block is still needed. Were it given to a
        # directory whose mark is past it (a directory was added, and the rule goes by number), the
        # other marks could move on and nobody would ask for this block again.
        self._ledgers.homes = [home for home, skip in enumerate(skips) if not skip]
        at = 0
        while at < len(payload):
            adds = scan_adds(payload, at, len(payload))
            if adds is not None:
                item, at = adds
                if isinstance(item, AddRun):
                    self._apply_run(item, skips)
                else:
                    self._apply_mix(item, skips)
                continue
            word, start, at = next(iterate_records(payload, position, path, begin=at))
            self.statistics.records += 1
            kind = word >> 16
            if kind == ADD:
                raise JournalDamageError(
                    f"{path}: block {position.sequence} at offset {position.offset} holds an entry "
                    "of a negative id or without a header, which is never accepted"
                )
            if kind == ADD_BATCH:
                self._apply_batch(payload, word, start, at, skips, position, path)
            else:
                self._apply_state(payload, word, start, at, skips, position, path)

    def _apply_run(self, run: AddRun, skips: list[bool]) -> None:
        count = len(run.entry_ids)
        self.statistics.records += count
        part = self._part(run.ledger_id, run.master_key, skips)
        if part is None:
            self.statistics.skipped += count
            return
        self._cache.grow(part.add_frames(run.entry_ids, run.data, run.bounds), count)
        self._note(part.ledger, run.entry_ids[-1], run.lac, count)

    def _apply_mix(self, mix: AddMix, skips: list[bool]) -> None:
        self.statistics.records += len(mix.ledger_ids)
        rows = zip(
            mix.master_keys, mix.ledger_ids, mix.entry_ids, mix.lacs, pairwise(mix.bounds),
            strict=True,
        )  # fmt: skip
        for key, ledger_id, entry_id, lac, (start, end) in rows:
            part = self._part(ledger_id, key, skips)
            if part is None:
                self.statistics.skipped += 1
                continue
            part.add_entries((entry_id,), (mix.data[start + ADD_ENTRY_OFFSET : end],))
            self._cache.grow(end - start + ENTRY_OVERHEAD_BYTES, 1)
            self._note(part.ledger, entry_id, lac, 1)

    def _part(self, ledger_id: int, key: bytes, skips: list[bool]) -> Part | None:
        """Where to put an entry, unless its directory has it or its ledger was dropped."""
        ledger = self._ledgers.get(ledger_id)
        if skips[ledger.home] or ledger.tombstone is not None:
            return None
        if key != ledger.master_key:
            self._take_key(ledger, key)
        return self._cache.part(ledger)

    def _apply_batch(
        self,
        payload: bytes,
        word: int,
        start: int,
        end: int,
        skips: list[bool],
        position: JournalPosition,
        path: str,
    ) -> None:
        body_start = start + ADD_BATCH_ENTRIES_OFFSET
        try:
            request = decode_batch(memoryview(payload)[start - 4 : end], word & 0xFFFF)
            walk = walk_batch(payload, body_start, end, request)
        except (BadRequestError, VersionError, ProtocolError) as error:
            raise JournalDamageError(
                f"{path}: batch in block {position.sequence} at offset {position.offset}: {error}"
            ) from None
        part = self._part(request.ledger_id, request.master_key, skips)
        if part is None:
            self.statistics.skipped += 1
            return
        run = run_of_batch(walk, payload, body_start, end)
        part.add_run(run)
        self._cache.grow(len(run.body) + RUN_OVERHEAD_BYTES, run.count)
        self._note(part.ledger, request.last_entry_id, walk.lac, run.count)

    def _apply_state(
        self,
        payload: bytes,
        word: int,
        start: int,
        end: int,
        skips: list[bool],
        position: JournalPosition,
        path: str,
    ) -> None:
        record = decode_state(word, payload, start, end, position, path)
        ledger = self._ledgers.get(record.ledger_id)
        if skips[ledger.home]:
            self.statistics.skipped += 1
            return
        if isinstance(record, Fence):
            self._take_key(ledger, record.master_key)
            ledger.fenced = True
        elif isinstance(record, ExplicitLac):
            self._take_key(ledger, record.master_key)
            ledger.explicit_lac = record.lac
            ledger.raise_lac(int.from_bytes(record.lac[8:16], "big", signed=True))
        elif isinstance(record, LedgerKey):
            ledger.master_key = record.master_key
        elif isinstance(record, Limbo):
            ledger.limbo = record.on
            ledger.fenced |= record.on
        else:
            ledger.tombstone = None
            ledger.limbo = False
            ledger.master_key = None
        self._changed(ledger)

    def _take_key(self, ledger: Ledger, key: bytes) -> None:
        """Zeros stand for a key of another length, which a LEDGER_KEY record has named."""
        if ledger.master_key is None or (key != NO_MASTER_KEY and key != ledger.master_key):
            ledger.master_key = key
            self._changed(ledger)

    def _changed(self, ledger: Ledger) -> None:
        ledger.stored = stored_state(ledger, self._positions[ledger.journal])
        self._cache.change(ledger)

    def _note(self, ledger: Ledger, entry_id: int, lac: int, count: int) -> None:
        self.statistics.entries += count
        if entry_id > ledger.last_entry:
            ledger.last_entry = entry_id
        ledger.raise_lac(lac)
