"""Sealing generations, learning their marks, and dropping them when they are in the index.

The loop's side of a checkpoint. A generation is sealed; each journal says from where on replay
would find everything newer; then every ledger directory writes its share (`ledger_directory.py`,
a thread each), in order. When all of them have, readers no longer need the generation, and
journal files that lie before every directory's mark can be used again.

Every generation goes to every directory, also one without entries for it: each directory has a
mark of its own, and a mark that does not move would keep the journal from ever being trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bookie.core.write_cache import Generation, WriteCache
from bookie.storage.index_format import JournalPosition as MarkPosition
from bookie.storage.index_format import LogMark
from bookie.storage.journal_format import JournalPosition
from bookie.storage.journal_writer import Journal
from bookie.storage.ledger_directory import LedgerDirectory, Share
from runtime.workers import Worker, Workers

#: How many dropped entries are freed at a time; freeing a whole generation would stall the loop.
FREE_STEP: Final = 512
#: How many ledgers hear at a time that their part of a generation is in the index, likewise.
DETACH_STEP: Final = 1024


class Checkpoints:
    def __init__(
        self,
        cache: WriteCache,
        journals: Sequence[Journal],
        directories: Sequence[LedgerDirectory],
        workers: Workers,
        *,
        clock: Callable[[], float],
        on_checkpoint: Callable[[int], None],
        on_trouble: Callable[[LedgerDirectory, Exception | None], None],
    ) -> None:
        self._cache = cache
        self._journals = journals
        self._directories = directories
        self._call_in_loop = workers.call_in_loop
        self._clock = clock
        self._on_checkpoint = on_checkpoint  # this generation is in every index
        self._on_trouble = on_trouble  # a directory cannot write; None: it can again
        self._troubled: set[int] = set()
        self._workers: list[Worker] = [
            workers.start(f"flush-{directory.number}", directory.step, self._progress)
            for directory in directories
        ]
        self.latest_marks = tuple(directories[0].mark.journals)

    def seal(self) -> Generation:
        """Close the open generation; its checkpoint follows by itself."""
        generation = self._cache.seal(self._clock())
        positions: list[MarkPosition | None] = [None] * len(self._journals)
        for number, journal in enumerate(self._journals):
            journal.seal(partial(self._sealed, generation, positions, number))
        return generation

    def retry(self) -> None:
        """Space was made, or time has passed: let troubled directories try again."""
        for number in self._troubled:
            self._directories[number].retry()
            self._workers[number].wake()

    @property
    def is_idle(self) -> bool:
        return not self._cache.sealed

    def _sealed(
        self,
        generation: Generation,
        positions: list[MarkPosition | None],
        number: int,
        position: JournalPosition,
    ) -> None:
        positions[number] = MarkPosition(number, *position)
        marks = tuple(position for position in positions if position is not None)
        if len(marks) < len(positions):
            return
        self.latest_marks = marks
        mark = LogMark(generation.number, marks)
        for directory, worker in zip(self._directories, self._workers, strict=True):
            if len(self._directories) == 1:
                share = Share.whole(generation, mark)
            else:
                share = Share.of(generation, directory.number, mark)
            directory.shares.append(share)
            worker.wake()

    def _progress(self) -> None:
        """A directory finished a checkpoint, or stumbled."""
        for directory in self._directories:
            if (directory.trouble is not None) != (directory.number in self._troubled):
                self._troubled ^= {directory.number}
                self._on_trouble(directory, directory.trouble)
        done = min(directory.mark.checkpoint for directory in self._directories)
        dropped = False
        while self._cache.sealed and self._cache.sealed[0].number <= done:
            generation = self._cache.sealed[0]
            if not self._cache.detach_some(DETACH_STEP):
                self._call_in_loop(self._progress)  # others first
                break
            self._cache.drop(generation)
            self._on_checkpoint(generation.number)
            dropped = True
        if dropped:
            for number, journal in enumerate(self._journals):
                oldest = min(d.mark.journals[number].file_id for d in self._directories)
                journal.release(oldest)

    def free_some(self, count: int = FREE_STEP) -> bool:
        """Free a little of what was dropped; whether there is more."""
        return self._cache.free_some(count)
