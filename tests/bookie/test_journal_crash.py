"""Crashes at every point: what was acknowledged is replayed, and nothing that was not appended.

A story is several lives of one journal on the same files. Each life ends by a power loss, which
keeps, drops or tears whatever was not synced, or by the death of the process alone. `Story` knows
what the log must hold; after every crash the replay is compared with it.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import trio

from bookie.storage.journal_format import BLOCK_HEADER_BYTES, JournalPosition, file_name
from bookie.storage.journal_options import JournalCallbacks, JournalOptions
from bookie.storage.journal_reader import EndKind, replay
from bookie.storage.journal_writer import Journal
from runtime.files import OSFileSystem
from runtime.memory_files import MemoryFileSystem, Operation
from runtime.workers import ThreadWorkers
from tests.bookie.journal_world import DIRECTORY, STORE_ID, World, numbers, read_back, record


class Crash(BaseException):
    """The world ends here. Not an Exception: no handler may take it for an error of the disk."""


class Story:
    def __init__(self, seed: int, options: JournalOptions) -> None:
        self.rng = random.Random(seed)
        self.options = options
        self.files = MemoryFileSystem()
        self.files.make_directories(DIRECTORY)
        self.log: list[int] = []  # every record that is, or may be, in the journal
        self.durable = 0  # so many of them survive a power loss
        self.acknowledged = 0  # so many survive the death of the process
        self.mark: JournalPosition | None = None
        self.flushed = 0  # so many of them the mark has passed: they are safe elsewhere
        self.appended = 0
        self.moves_mark = True

    def live(self, steps: int, operations: int | None) -> bool:
        """One life; True if it ended by itself and not by a crash after so many operations."""
        self._crash_after(operations)
        try:
            self._act(steps)
        except Crash:
            return False
        finally:
            self.files.on_operation = None
        return True

    def crash(self, *, power_loss: bool) -> None:
        """End the life, then see what the journal says."""
        if power_loss:
            self.files.crash(self.rng)
        required = self.durable if power_loss else self.acknowledged
        self._check(required)

    def _act(self, steps: int) -> None:
        rng = self.rng
        world = World(
            self.files,
            mark=self.mark,
            options=self.options,
            choose=rng.randrange,
            prepared=False,
        )
        world.journal._callbacks = JournalCallbacks(
            on_durable=self._on_durable, on_failure=world.failures.append
        )
        for _ in range(steps):
            match rng.randrange(10):
                case 0:
                    world.journal.seal(partial(self._on_sealed, world, len(self.log)))
                case 1:
                    world.journal.force((len(self.log), True))
                case _:
                    self._append(world)
            for _ in range(rng.choice((0, 0, 1, 3))):
                world.workers.step()
        world.run()
        assert world.failures == []

    def _append(self, world: World) -> None:
        deferred = self.rng.random() < 0.4
        data = record(self.appended, self.rng.choice((60, 60, 300, 5000, 5000, 9000, 30_000)))
        self.log.append(self.appended)
        self.appended += 1
        world.journal.append([data], len(data), 1, (len(self.log), not deferred), deferred)

    def _on_durable(self, tokens: list[object]) -> None:
        for token in tokens:
            assert isinstance(token, tuple)
            count, strong = token
            assert count >= self.acknowledged, "out of order"
            self.acknowledged = count
            if strong and self.options.sync_data:
                self.durable = count

    def _on_sealed(self, world: World, count: int, position: JournalPosition) -> None:
        if self.moves_mark and self.rng.random() < 0.7:
            self.mark, self.flushed = position, count
            world.journal.release(position.file_id)

    def _check(self, required: int) -> None:
        blocks, end = read_back(self.files, self.mark)
        found = numbers(blocks)
        assert end.kind is not EndKind.DAMAGE, end.describe()
        start = self.log.index(found[0]) if found else self.flushed
        count = max(start + len(found), self.flushed)
        assert start <= self.flushed, "records behind the mark are missing"
        assert found == self.log[start : start + len(found)], "not what was appended"
        assert count >= required, "acknowledged records are missing"
        # From here on the log is what was found, for better or worse.
        del self.log[count:]
        self.acknowledged = count
        self.durable = min(self.durable, count)

    def _crash_after(self, operations: int | None) -> None:
        if operations is None:
            return
        left = operations

        def count_down(operation: Operation, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        self.files.on_operation = count_down


TINY = JournalOptions(file_bytes=24 * 1024, payload_bytes_max=6000, spare_files_max=1)
TINY_UNSYNCED = JournalOptions(
    file_bytes=24 * 1024, payload_bytes_max=6000, spare_files_max=1, sync_data=False
)


@pytest.mark.parametrize("options", [TINY, TINY_UNSYNCED], ids=["synced", "unsynced"])
@pytest.mark.parametrize("power_loss", [True, False], ids=["power-loss", "kill"])
def test_crash_after_every_single_operation(options: JournalOptions, power_loss: bool) -> None:
    """The same second life, cut short one operation later each time, until it ends by itself."""
    operations = 0
    while True:
        story = Story(7, options)
        assert story.live(12, None)
        finished = story.live(25, operations)
        story.crash(power_loss=power_loss)
        assert story.live(5, None)  # and it can go on from there
        story.crash(power_loss=True)
        if finished:
            break
        operations += 1
    assert operations > 60


@pytest.mark.parametrize("seed", range(100))
def test_random_lives_and_crashes(seed: int) -> None:
    rng = random.Random(seed)
    story = Story(seed, TINY_UNSYNCED if seed % 5 == 0 else TINY)
    for _ in range(6):
        story.live(rng.randrange(30), rng.choice((None, rng.randrange(100))))
        story.crash(power_loss=rng.random() < 0.6)


@pytest.mark.parametrize("seed", range(25))
def test_flipped_bit_before_a_later_block_is_always_damage(seed: int) -> None:
    """Blocks that a later one vouches for, hit anywhere in what their checksum covers."""
    story = Story(seed, TINY)
    story.moves_mark = False
    story.live(40, None)
    blocks, _ = read_back(story.files, story.mark)
    vouched = max((block.durable_before for block in blocks), default=0)
    victims = [block for block in blocks if block.position.sequence < vouched]
    assert len(victims) > 3
    for block in victims:
        position = block.position
        at = position.offset + story.rng.randrange(BLOCK_HEADER_BYTES + len(block.payload))
        bit = 1 << story.rng.randrange(8)
        path = f"{DIRECTORY}/{file_name(position.file_id)}"
        story.files.flip(path, at, bit)
        found, end = read_back(story.files, story.mark)
        assert end.kind is EndKind.DAMAGE
        assert end.position is not None
        assert end.position.sequence == position.sequence
        assert found == blocks[: blocks.index(block)]
        story.files.flip(path, at, bit)


async def test_threads_and_real_files(tmp_path: Path) -> None:
    files, directory = OSFileSystem(), str(tmp_path)
    options = JournalOptions(file_bytes=256 * 1024, spare_files_max=1)
    mark: JournalPosition | None = None
    total = 0
    for _ in range(3):
        workers = ThreadWorkers()
        reading = replay(files, directory, STORE_ID, mark=mark)
        replayed = numbers(list(reading))
        assert replayed == list(range(total))[total - len(replayed) :]
        tokens: list[object] = []
        failures: list[object] = []
        marks: list[JournalPosition] = []
        closed = trio.Event()
        journal = Journal(
            files,
            directory,
            STORE_ID,
            workers,
            JournalCallbacks(on_durable=tokens.extend, on_failure=failures.append),
            end=reading.end,
            options=options,
        )

        def on_sealed(
            position: JournalPosition,
            journal: Journal = journal,
            marks: list[JournalPosition] = marks,
        ) -> None:
            marks.append(position)
            journal.release(position.file_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.run)
            first = total
            for number in range(first, first + 400):
                data = record(number, 3000)
                journal.append([data], len(data), 1, number, number % 7 == 0)
                total += 1
                if number % 10 == 0:
                    await trio.lowlevel.checkpoint()
                if number % 100 == 50:
                    journal.seal(on_sealed)
            journal.close(closed.set)
            await closed.wait()
            nursery.cancel_scope.cancel()
        workers.stop()
        assert tokens == list(range(first, total))
        assert failures == []
        assert len(marks) == 4
        assert journal.statistics().records == 400
        mark = marks[-1]
    found = numbers(list(replay(files, directory, STORE_ID, mark=mark)))
    assert found[-1] == total - 1
    assert found == list(range(found[0], total))
    assert found[0] <= total - 50
