"""Opening a store: check whose it is, open the indexes, mend the logs, replay, begin.

The order is the safety: nothing is served before everything acknowledged is back in memory, and
nothing is written to a directory before it is known to be ours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bookie.core.write_cache import WriteCache
from bookie.storage.disk_watch import DiskOptions, DiskWatch
from bookie.storage.engine import Engine
from bookie.storage.engine_values import EngineCallbacks, EngineOptions
from bookie.storage.garbage_values import GarbageOptions
from bookie.storage.index_format import (
    CLEAN_SHUTDOWN_KEY,
    FORGOTTEN_KEY,
    MARK_KEY,
    NEEDS_INTEGRITY_CHECK_KEY,
    REBUILT_KEY,
    UNSYNCED_KEY,
    LogMark,
    decode_flag,
    encode_flag,
)
from bookie.storage.index_interface import Change, DamagedIndexError, Index, OpenIndex
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.journal_format import JournalError
from bookie.storage.journal_options import JournalCallbacks, JournalOptions
from bookie.storage.journal_reader import ReplayEnd
from bookie.storage.journal_writer import Journal
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledgers import Ledgers
from bookie.storage.limbo import finish_rebuild, put_all_in_limbo
from bookie.storage.log_repair import mend_logs
from bookie.storage.log_table import LogTable
from bookie.storage.mark_slots import MarkSlots, RolledBackIndexError, check_against_index
from bookie.storage.replay import Replay, ReplayStatistics, nowhere
from bookie.storage.reserve import Reserve
from bookie.storage.store_files import StoreError, StoreFiles
from bookie.storage.upkeep import Upkeep, UpkeepShell
from runtime.files import FileSystem
from runtime.workers import Workers

_log = logging.getLogger(__name__)

INDEX_NAME = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What a store needs beside its directories."""

    engine: EngineOptions = field(default_factory=EngineOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)
    garbage: GarbageOptions = field(default_factory=GarbageOptions)
    disks: DiskOptions = field(default_factory=DiskOptions)
    allow_expansion: bool = False
    #: The operator's word that lost journal blocks are accepted: every ledger goes into limbo.
    accept_loss: bool = False
    #: Everything was lost, and the bookie comes back: nothing that is not here may be denied.
    has_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """The world outside the engine: everything that the simulator replaces."""

    files: FileSystem
    open_index: OpenIndex
    workers: Workers
    clock: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    new_store_id: Callable[[], bytes] = lambda: os.urandom(16)
    #: Which boot of which machine this is; empty if that cannot be known.
    boot_id: str = ""


class Store:
    """An open store. The engine serves; `close` and `finish_close` end it."""

    def __init__(
        self,
        engine: Engine,
        files: StoreFiles,
        *,
        replayed: ReplayStatistics,
        needs_integrity_check: bool,
        has_forgotten: bool,
    ) -> None:
        self.engine = engine
        self.store_files = files
        self.replayed = replayed
        self.needs_integrity_check = needs_integrity_check
        #: Ledgers may have been here that it does not know. It must not be asked for them.
        self.has_forgotten = has_forgotten

    def remembered(self) -> None:
        """Every ledger that the metadata expects here is known again, in limbo if need be."""
        self.has_forgotten = False
        self.engine.upkeep.clear_flag(FORGOTTEN_KEY)

    def integrity_checked(self) -> None:
        """Every ledger was compared with its metadata and the other bookies, and limbo lifted
        where nothing is missing: do not ask for it at the next start."""
        self.needs_integrity_check = False
        self.engine.upkeep.clear_flag(NEEDS_INTEGRITY_CHECK_KEY)

    def finish_close(self) -> None:
        """After `Engine.close` has called back and the workers have stopped: say it was clean."""
        try:
            self.engine.upkeep.end_cleanly()
            for directory in self.engine.directories:
                directory.end_cleanly()
        finally:  # a disk that fails now costs the word "clean", and nothing else
            self.abandon()

    def abandon(self) -> None:
        """Let go of everything as it is, as a crash would; for a bookie that must stop now."""
        for directory in self.engine.directories:
            directory.close()
        self.store_files.close()


def open_store(
    journal_directories: Sequence[str],
    ledger_directories: Sequence[str],
    shell: Shell,
    options: StoreOptions,
    callbacks: EngineCallbacks,
    *,
    on_journal_failure: Callable[[JournalError], None],
    on_journal_shortage: Callable[[Exception | None], None] = lambda error: None,
    on_progress: Callable[[int, str], None] = lambda blocks, path: None,
) -> Store:
    """Open or create a store and replay its journals. Raises a LedgerError that says what to do."""
    store = StoreFiles(
        shell.files,
        journal_directories,
        ledger_directories,
        new_store_id=shell.new_store_id,
        allow_expansion=options.allow_expansion,
    )
    opened: list[Index] = []
    try:
        return _open(
            store, shell, options, callbacks, opened,
            on_journal_failure, on_journal_shortage, on_progress,
        )  # fmt: skip
    except BaseException:
        for index in opened:
            index.close()
        store.close()
        raise


def _open(
    store: StoreFiles,
    shell: Shell,
    options: StoreOptions,
    callbacks: EngineCallbacks,
    opened: list[Index],
    on_journal_failure: Callable[[JournalError], None],
    on_journal_shortage: Callable[[Exception | None], None],
    on_progress: Callable[[int, str], None],
) -> Store:
    journal_count = len(store.journal_paths)
    reserves = [
        Reserve(shell.files, path, size=options.disks.reserve_bytes) for path in store.ledger_paths
    ]
    disks = DiskWatch(
        shell.files,
        journal_paths=store.journal_paths,
        ledger_paths=store.ledger_paths,
        reserves=reserves,
        options=options.disks,
        clock=shell.clock,
    )
    disks.release_where_needed()
    store.prepare()
    opened.extend(_open_index(shell, store, path) for path in store.ledger_paths)
    clean = [_was_clean(index) for index in opened]
    was_clean = all(clean)
    if store.added_journals and not store.is_new and not was_clean:
        raise StoreError(
            f"journal directory {store.added_journals[0]} is empty and the bookie was not stopped "
            "cleanly: acknowledged entries may be lost; restore it, or give the bookie up"
        )
    marks, lost = _marks(store, shell, opened, journal_count, clean, options.accept_loss)
    store.stamp()
    doubts: list[Change] = []
    if not was_clean and _lost_power(opened, shell.boot_id):
        _log.warning(
            "the journal was not synced (journalSyncData=false), the bookie was not stopped "
            "cleanly, and the machine was started since: entries may be lost"
        )
        doubts.append((REBUILT_KEY, encode_flag(True)))
    if not options.journal.sync_data:
        doubts.append((UNSYNCED_KEY, shell.boot_id.encode()))
    for index, mark in zip(opened, marks, strict=True):
        # A directory has its mark before it has anything else: one without a mark is new, and may
        # take the others' mark for its own. And with "not clean" goes the list of journals.
        index.apply([(MARK_KEY, mark.encode()), (CLEAN_SHUTDOWN_KEY, encode_flag(False)), *doubts])
        index.flush()

    fill: list[Callable[[], float]] = []
    directories = [
        LedgerDirectory(
            number,
            path,
            files=shell.files,
            table=LogTable(index, sleep=shell.sleep),
            store_id=store.store_id,
            mark=mark,
            now_ms=shell.now_ms,
            pace=partial(_pace, fill, shell.sleep),
            log_bytes_target=options.engine.log_bytes,
            cached_bytes=options.engine.log_cached_bytes,
            make_room=reserve.release,
        )
        for number, (path, index, mark, reserve) in enumerate(
            zip(store.ledger_paths, opened, marks, reserves, strict=True)
        )
    ]
    callbacks = replace(
        callbacks, on_damage=partial(_note_damage, directories, callbacks.on_damage)
    )
    for directory in directories:
        for problem in mend_logs(shell.files, directory, was_clean=was_clean):
            _log.error("%s", problem)

    now = shell.clock()
    ledgers = Ledgers(
        opened, journal_count=journal_count, count_max=options.engine.ledgers_in_memory
    )
    first = max(lost, *(mark.checkpoint for mark in marks)) + 1
    cache = WriteCache(first_generation=first, now=now)
    replay = Replay(
        shell.files,
        store.journal_paths,
        directories,
        store_id=store.store_id,
        ledgers=ledgers,
        cache=cache,
        generation_bytes=options.engine.generation_bytes,
        clock=shell.clock,
        on_progress=on_progress,
    )
    if lost:  # before replay: the first checkpoint makes the loss invisible
        put_all_in_limbo(directories, ledgers, cache)
    ends = replay.run(accept_damage=options.accept_loss)
    if lost or options.has_lost or any(end.evidence for end in ends):
        put_all_in_limbo(directories, ledgers, cache)
    finish_rebuild(directories, ledgers, cache, replay)
    watch: list[Callable[[float], None]] = []
    journals = [
        partial(
            _journal,
            shell,
            options.journal,
            path,
            store.store_id,
            end,
            on_journal_failure,
            partial(_note_shortage, disks, path, on_journal_shortage),
            partial(_note_write, watch, partial(callbacks.on_journal_write, number)),
        )
        for number, (path, end) in enumerate(zip(store.journal_paths, ends, strict=True))
    ]

    def make_upkeep(engine: Engine) -> Upkeep:
        return Upkeep(
            engine,
            directories,
            UpkeepShell(
                files=shell.files,
                workers=shell.workers,
                clock=shell.clock,
                now_ms=shell.now_ms,
                sleep=shell.sleep,
            ),
            options=options.garbage,
            reserves=reserves,
            disks=disks,
            on_damage=callbacks.on_damage,
            on_acceptance=callbacks.on_acceptance,
        )

    engine = Engine(
        journals=journals,
        directories=directories,
        ledgers=ledgers,
        cache=cache,
        workers=shell.workers,
        make_upkeep=make_upkeep,
        options=options.engine,
        callbacks=callbacks,
        clock=shell.clock,
    )
    fill.append(lambda: engine.fill)
    watch.append(engine.upkeep.journal.note)
    if options.journal.sync_data and any(index.get(UNSYNCED_KEY) is not None for index in opened):
        engine.upkeep.clear_flag(UNSYNCED_KEY)  # the journals have synced what was replayed
    engine.checkpoint()
    return Store(
        engine,
        store,
        replayed=replay.statistics,
        needs_integrity_check=_has_flag(opened, NEEDS_INTEGRITY_CHECK_KEY),
        has_forgotten=_has_flag(opened, FORGOTTEN_KEY),
    )


def _has_flag(indexes: Sequence[Index], key: bytes) -> bool:
    return any(decode_flag(index.get(key)) for index in indexes)


def _lost_power(indexes: Sequence[Index], boot_id: str) -> bool:
    """Whether the last life left its promises to the memory of a machine that is gone.

    A killed process leaves what it has written to the operating system. If nobody can tell whether
    this is still the same one, it is not.
    """
    lives = [index.get(UNSYNCED_KEY) for index in indexes]
    return any(life is not None and (not boot_id or life != boot_id.encode()) for life in lives)


def _was_clean(index: Index) -> bool:
    """Whether its journals hold nothing for it. An index that never was in use has no flag."""
    flag = index.get(CLEAN_SHUTDOWN_KEY)
    return decode_flag(flag) if flag is not None else index.mark() is None


def _open_index(shell: Shell, store: StoreFiles, path: str) -> Index:
    index_path = os.path.join(path, INDEX_NAME)
    if path in store.added:
        with contextlib.suppress(DamagedIndexError):  # a first start that died has made it
            return shell.open_index(index_path, store_id=store.store_id, create=True)
    return shell.open_index(index_path, store_id=store.store_id)


def _marks(
    store: StoreFiles,
    shell: Shell,
    indexes: Sequence[Index],
    journal_count: int,
    clean: Sequence[bool],
    accept_loss: bool,
) -> tuple[list[LogMark], int]:
    """Each directory's mark, checked against its slots; a new directory has what all have.

    And the number of the newest checkpoint that the indexes have lost, if the operator says so.
    """
    stored = [index.mark() for index in indexes]
    lost = 0
    for path, mark in zip(store.ledger_paths, stored, strict=True):
        slots = MarkSlots(shell.files, path)
        try:
            slot = slots.read()
            check_against_index(slot, mark, slots.path)
        except RolledBackIndexError:
            if not accept_loss:
                raise
            lost = max(lost, slot.checkpoint if slot else 0)
        finally:
            slots.close()
    known = [mark for mark in stored if mark is not None]
    for mark, was_clean in zip(stored, clean, strict=True):
        if mark is not None and len(mark.journals) != journal_count and not was_clean:
            raise StoreError(
                f"the bookie had {len(mark.journals)} journal directories, {journal_count} are "
                "configured: put the old list back, stop the bookie cleanly, then change it"
            )
    count = journal_count
    nothing = LogMark(0, tuple(nowhere(number) for number in range(count)))
    oldest = min(known, default=nothing)
    marks = [mark or LogMark(0, oldest.journals) for mark in stored]
    # Journals that joined after a clean stop have nothing to replay; those that left, neither.
    return [
        LogMark(mark.checkpoint, (mark.journals + nothing.journals[len(mark.journals) :])[:count])
        for mark in marks
    ], lost


def _journal(
    shell: Shell,
    options: JournalOptions,
    path: str,
    store_id: bytes,
    end: ReplayEnd,
    on_failure: Callable[[JournalError], None],
    on_shortage: Callable[[Exception | None], None],
    on_write: Callable[[float, int, int], None],
    on_durable: Callable[[list[object]], None],
) -> Journal:
    return Journal(
        shell.files,
        path,
        store_id,
        shell.workers,
        JournalCallbacks(
            on_durable=on_durable,
            on_failure=on_failure,
            on_shortage=on_shortage,
            on_write=on_write,
        ),
        end=end,
        options=options,
        clock=shell.clock,
        now_ms=shell.now_ms,
        sleep=shell.sleep,
    )


def _note_damage(
    directories: Sequence[LedgerDirectory],
    on_damage: Callable[[int, IndexedRun, Exception], None],
    number: int,
    run: IndexedRun,
    error: Exception,
) -> None:
    directories[number].distrust(run.log_id)
    on_damage(number, run, error)


def _note_shortage(
    disks: DiskWatch,
    path: str,
    on_shortage: Callable[[Exception | None], None],
    error: Exception | None,
) -> None:
    disks.note(path, error)
    on_shortage(error)


def _note_write(
    watch: list[Callable[[float], None]],
    on_write: Callable[[float, int, int], None],
    seconds: float,
    size: int,
    records: int,
) -> None:
    on_write(seconds, size, records)
    for note in watch:  # upkeep, once it is there
        note(seconds)


def _pace(fill: list[Callable[[], float]], sleep: Callable[[float], None]) -> None:
    """A nap after each chunk while there is room: flushing must not starve the event loop."""
    if fill and fill[0]() < 0.5:
        sleep(0.001)
