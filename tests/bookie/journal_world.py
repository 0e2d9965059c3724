"""A journal on memory files whose worker threads move only when a test says so."""

from __future__ import annotations

from collections.abc import Callable

from bookie.storage.journal_files import JournalSpaceError
from bookie.storage.journal_format import JournalError, JournalPosition
from bookie.storage.journal_options import JournalCallbacks, JournalOptions
from bookie.storage.journal_reader import Block, ReplayEnd, replay
from bookie.storage.journal_records import check_records, encode_add, iterate_records
from bookie.storage.journal_writer import Journal
from runtime.memory_files import MemoryFileSystem
from runtime.workers import InlineWorkers

DIRECTORY = "journal"
STORE_ID = bytes(range(16))
KEY = bytes(range(20))
FILE_BYTES = 64 * 1024


def record(number: int, size: int = 100) -> bytes:
    """An ADD of ledger 7 whose entry id is `number`."""
    entry = (7).to_bytes(8, "big") + number.to_bytes(8, "big") + bytes(max(16, size - 44))
    return encode_add(KEY, entry)


class World:
    """One life of the journal. The next life is another World on the same files."""

    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        *,
        mark: JournalPosition | None = None,
        options: JournalOptions | None = None,
        choose: Callable[[int], int] = lambda count: 0,
        prepared: bool = True,
    ) -> None:
        if files is None:
            files = MemoryFileSystem(logging=True)
            files.make_directories(DIRECTORY)
        self.files = files
        self.workers = InlineWorkers(choose)
        self.durable: list[object] = []
        self.seals: list[JournalPosition] = []
        self.failures: list[JournalError] = []
        self.shortages: list[JournalSpaceError | None] = []
        self.writes: list[tuple[int, int]] = []
        self.closed = False
        self.blocks, self.end = read_back(files, mark)
        self.journal = Journal(
            files,
            DIRECTORY,
            STORE_ID,
            self.workers,
            JournalCallbacks(
                on_durable=self.durable.extend,
                on_failure=self.failures.append,
                on_shortage=self.shortages.append,
                on_write=lambda seconds, size, records: self.writes.append((size, records)),
            ),
            end=self.end,
            options=options or JournalOptions(file_bytes=FILE_BYTES, spare_files_max=2),
            clock=lambda: 0.0,
            now_ms=lambda: 1_700_000_000_000,
            sleep=lambda seconds: None,
        )
        if prepared:
            self.run()

    def add(self, number: int, *, size: int = 100, deferred: bool = False) -> None:
        data = record(number, size)
        self.journal.append([data], len(data), 1, number, deferred)

    def seal(self) -> None:
        self.journal.seal(self.seals.append)

    def run(self) -> None:
        self.workers.run_until_idle()

    def close(self) -> None:
        def on_closed() -> None:
            self.closed = True

        self.journal.close(on_closed)
        self.run()


def read_back(
    files: MemoryFileSystem, mark: JournalPosition | None = None
) -> tuple[list[Block], ReplayEnd]:
    """Replay, checking on the way that every record is one that replay accepts."""
    reading = replay(files, DIRECTORY, STORE_ID, mark=mark)
    blocks = list(reading)
    for block in blocks:
        assert check_records(block.payload) == block.record_count
    return blocks, reading.end


def numbers(blocks: list[Block]) -> list[int]:
    """The entry ids of the ADDs, in order."""
    return [
        int.from_bytes(block.payload[start + 28 : start + 36], "big")
        for block in blocks
        for _, start, _ in iterate_records(block.payload)
    ]


def fill_file(world: World, number: int) -> None:
    """Blocks enough to fill what a fresh file has room for."""
    for index in range(FILE_BYTES // 4096 - 1):
        world.add(number + index)
        world.run()


def fresh_log(world: World) -> list[str]:
    assert world.files.log is not None
    world.files.log.clear()
    return world.files.log
