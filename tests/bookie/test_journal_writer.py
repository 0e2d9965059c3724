"""The journal's writer on memory files, its threads run by hand."""

from __future__ import annotations

import pytest

from bookie.storage.journal_format import FIRST_OFFSET, JournalPosition, file_name
from bookie.storage.journal_options import JournalOptions
from bookie.storage.journal_reader import EndKind
from tests.bookie.journal_world import (
    DIRECTORY,
    FILE_BYTES,
    World,
    fill_file,
    fresh_log,
    numbers,
    read_back,
    record,
)


def test_writer_gives_tokens_back_in_order_after_one_write_for_all_that_waited() -> None:
    world = World()
    for number in range(50):
        world.add(number)
    assert world.durable == []
    assert world.journal.pending_bytes == 50 * len(record(0))

    world.run()

    assert world.durable == list(range(50))
    assert world.journal.pending_bytes == 0
    assert world.writes == [(50 * len(record(0)), 50)]
    blocks, end = read_back(world.files)
    assert numbers(blocks) == list(range(50))
    assert (end.kind, end.next_sequence) == (EndKind.CLEAN, 2)


def test_writer_makes_several_blocks_of_a_backlog_above_the_cap() -> None:
    world = World(options=JournalOptions(file_bytes=FILE_BYTES, payload_bytes_max=1000))
    for number in range(25):
        world.add(number)
    world.add(25, size=5000)  # the cap is soft: one record may exceed it
    world.add(26)
    world.run()
    blocks, _ = read_back(world.files)
    assert [block.record_count for block in blocks] == [10, 10, 5, 1, 1]
    assert world.durable == numbers(blocks) == list(range(27))


def test_one_step_never_writes_more_than_one_block() -> None:
    world = World(options=JournalOptions(file_bytes=FILE_BYTES, payload_bytes_max=1000))
    for number in range(20):
        world.add(number)
    world.workers.step()
    assert world.durable == list(range(10))


def test_order_of_writes_and_syncs_when_a_journal_begins() -> None:
    world = World(prepared=False)
    world.add(1)
    world.run()
    assert world.files.log is not None
    first, second = (f"{DIRECTORY}/{file_name(file_id)}" for file_id in (1, 2))
    assert world.files.log == [
        "make-directory journal",
        *_creation("journal/next-1.tmp", first, filled=False),  # the writer waits for it
        f"write {first} 4096+4096 durable",
        *_creation("journal/next-2.tmp", second, filled=True),
    ]


def _creation(spare: str, path: str, *, filled: bool) -> list[str]:
    fill = [f"write {spare} 0+{FILE_BYTES}", f"sync {spare}"]
    return [
        f"create {spare}",
        f"allocate {spare} {FILE_BYTES}",
        *(fill if filled else []),
        f"write {spare} 0+4096",
        f"sync {spare}",
        f"rename {spare} {path}",
        f"sync-directory {DIRECTORY}",
    ]


def test_order_of_writes_and_syncs_when_a_file_is_used_again() -> None:
    world = World()
    fill_file(world, 0)
    fill_file(world, 100)
    world.add(200)
    world.run()  # file 3 is in use, file 4 is ready
    assert world.files.log is not None
    world.files.log.clear()

    world.journal.release(3)
    fill_file(world, 300)
    world.run()

    first, spare, fifth = "journal/0000000000000001.jnl", "journal/next-5.tmp", file_name(5)
    log = [line for line in world.files.log if "durable" not in line]
    assert log == [
        f"rename {first} {spare}",
        f"sync-directory {DIRECTORY}",
        f"write {spare} 0+4096",
        f"sync {spare}",
        f"rename {spare} {DIRECTORY}/{fifth}",
        f"sync-directory {DIRECTORY}",
    ]
    assert world.journal.statistics().files_recycled == 1


def test_writer_goes_on_in_the_next_file_when_a_block_does_not_fit() -> None:
    world = World()
    fill_file(world, 0)
    world.seal()
    world.run()
    world.add(99)
    world.run()
    assert world.seals == [JournalPosition(1, FILE_BYTES, 16)]
    blocks, end = read_back(world.files)
    assert blocks[-1].position == JournalPosition(2, FIRST_OFFSET, 16)
    assert numbers(blocks) == [*range(15), 99]
    # The mark names the full file, and replay finds its way from there.
    blocks, end = read_back(world.files, world.seals[0])
    assert numbers(blocks) == [99]
    assert end.position == JournalPosition(2, 8192, 17)


def test_a_record_bigger_than_a_file_gets_a_file_of_its_own_size() -> None:
    world = World()
    world.add(1)
    world.run()
    world.add(2, size=3 * FILE_BYTES)
    world.run()
    world.add(3)
    world.run()
    blocks, end = read_back(world.files)
    assert numbers(blocks) == world.durable == [1, 2, 3]
    assert [block.position.file_id for block in blocks] == [1, 2, 3]
    assert end.kind is EndKind.CLEAN
    # Its room was made before the write, which therefore cannot run out of it.
    assert world.files.log is not None
    lines = [line for line in world.files.log if "0002.jnl" in line]
    assert [line.split()[0] for line in lines[:4]] == ["rename", "allocate", "sync", "write"]
    # Used again, it has the common size.
    world.journal.release(3)
    fill_file(world, 10)
    fill_file(world, 30)
    sizes = [
        world.files.open(f"{DIRECTORY}/{name}").size()
        for name in world.files.list_directory(DIRECTORY)
    ]
    assert set(sizes) == {FILE_BYTES}


def test_seal_names_the_block_that_holds_what_was_appended_around_it() -> None:
    world = World()
    world.add(1)
    world.run()
    world.add(2)
    world.seal()
    world.add(3)
    world.run()
    assert world.durable == [1, 2, 3]
    assert world.seals == [JournalPosition(1, 8192, 2)]
    assert numbers(read_back(world.files, world.seals[0])[0]) == [2, 3]


def test_seal_without_records_writes_nothing_and_names_the_next_block() -> None:
    world = World()
    world.add(1)
    world.run()
    written = world.journal.statistics().blocks
    world.seal()
    world.run()
    assert world.journal.statistics().blocks == written
    assert world.seals == [JournalPosition(1, 8192, 2)]
    world.add(2)
    world.run()
    assert numbers(read_back(world.files, world.seals[0])[0]) == [2]


def test_seal_of_an_empty_journal_names_a_file_that_exists() -> None:
    world = World()
    world.seal()
    world.run()
    assert world.seals == [JournalPosition(1, FIRST_OFFSET, 1)]
    assert read_back(world.files, world.seals[0])[0] == []


def test_seal_after_a_start_names_the_old_end_until_something_is_written() -> None:
    world = World()
    world.add(1)
    world.run()
    world = World(world.files)
    world.seal()
    world.run()
    world.add(2)
    world.run()
    world.seal()
    world.run()
    assert world.seals == [JournalPosition(1, 8192, 2), JournalPosition(3, 8192, 3)]
    for mark, replayed in zip(world.seals, ([2], []), strict=True):
        assert numbers(read_back(world.files, mark)[0]) == replayed


def test_seal_is_told_between_the_tokens_around_it() -> None:
    world = World()
    world.add(1)
    world.journal.seal(lambda position: world.durable.append("seal"))
    world.add(2)
    world.journal.force("force")
    world.run()
    assert world.durable == [1, "seal", 2, "force"]


def test_deferred_appends_are_written_without_sync() -> None:
    world = World()
    world.add(1)
    world.run()
    log = fresh_log(world)
    world.add(2, deferred=True)
    world.add(3, deferred=True)
    world.run()
    assert world.durable == [1, 2, 3]
    assert log == ["write journal/0000000000000001.jnl 8192+4096"]
    assert read_back(world.files)[0][-1].durable_before == 2


def test_a_durable_block_is_preceded_by_a_sync_of_what_was_deferred() -> None:
    world = World()
    world.add(1, deferred=True)
    world.run()
    log = fresh_log(world)
    world.add(2)
    world.add(3, deferred=True)
    world.run()
    path = "journal/0000000000000001.jnl"
    assert log == [f"sync {path}", f"write {path} 8192+4096 durable"]
    assert [block.durable_before for block in read_back(world.files)[0]] == [1, 2]


def test_deferred_blocks_are_synced_before_their_file_is_left() -> None:
    world = World()
    for number in range(15):
        world.add(number, deferred=True)
        world.run()
    log = fresh_log(world)
    world.add(15, deferred=True)
    world.run()
    assert log[:2] == [
        "sync journal/0000000000000001.jnl",
        "write journal/0000000000000002.jnl 4096+4096",
    ]


def test_force_syncs_only_when_something_is_not_durable() -> None:
    world = World()
    world.add(1)
    world.run()
    log = fresh_log(world)
    world.journal.force("first")
    world.run()
    assert log == []
    world.add(2, deferred=True)
    world.run()
    world.journal.force("second")
    world.run()
    assert log[1:] == ["sync journal/0000000000000001.jnl"]
    world.add(3, deferred=True)
    world.journal.force("third")
    world.run()
    assert log[2:] == ["write journal/0000000000000001.jnl 12288+4096 durable"]
    assert world.durable == [1, "first", 2, "second", 3, "third"]


def test_without_sync_data_everything_is_acknowledged_after_the_write() -> None:
    options = JournalOptions(file_bytes=FILE_BYTES, sync_data=False)
    world = World(options=options)
    log = fresh_log(world)
    world.add(1)
    world.journal.force("force")
    world.run()
    assert world.durable == [1, "force"]
    assert log[0] == "write journal/0000000000000001.jnl 4096+4096"
    assert [line for line in log if "sync journal" in line and "tmp" not in line] == []


def test_without_sync_data_full_files_are_synced_aside_and_later_blocks_say_so() -> None:
    world = World(options=JournalOptions(file_bytes=FILE_BYTES, sync_data=False))
    fill_file(world, 0)
    world.add(15)
    world.run()
    world.add(16)
    world.run()
    assert [block.durable_before for block in read_back(world.files)[0]] == [1] * 16 + [16]
    log = fresh_log(world)
    world.close()
    assert world.closed
    assert log == ["sync journal/0000000000000002.jnl"]


def test_opening_makes_durable_what_replay_has_read() -> None:
    world = World()
    world.add(1, deferred=True)
    world.run()  # and then the process is killed
    log = fresh_log(world)
    world = World(world.files, prepared=False)
    assert log == ["sync journal/0000000000000001.jnl"]


def test_a_start_goes_on_in_a_file_that_was_never_written_to() -> None:
    world = World()
    world.add(1)
    world.run()
    world = World(world.files)
    world.add(2)
    world.run()
    blocks, _ = read_back(world.files)
    assert [block.position for block in blocks] == [
        JournalPosition(1, FIRST_OFFSET, 1),
        JournalPosition(3, FIRST_OFFSET, 2),  # 2 was ready; it is prepared again under a new id
    ]
    assert world.files.list_directory(DIRECTORY) == [file_name(1), file_name(3), file_name(4)]


def test_starts_without_writes_do_not_pile_up_files() -> None:
    files = World().files
    for _ in range(5):
        World(files)
    world = World(files)
    assert len(files.list_directory(DIRECTORY)) == 2
    world.add(1)
    world.run()
    assert numbers(read_back(files)[0]) == [1]


def test_left_over_spare_files_are_removed_at_a_start() -> None:
    world = World()
    world.files.open(f"{DIRECTORY}/next-17.tmp", create=True)
    world.files.open(f"{DIRECTORY}/notes.txt", create=True)
    World(world.files)
    names = world.files.list_directory(DIRECTORY)
    assert "next-17.tmp" not in names
    assert "notes.txt" in names


def test_close_makes_everything_durable_and_closes() -> None:
    world = World()
    world.add(1, deferred=True)
    world.run()
    world.add(2, deferred=True)
    log = fresh_log(world)
    world.close()
    assert world.closed
    assert world.durable == [1, 2]
    assert log == [
        "write journal/0000000000000001.jnl 8192+4096",
        "sync journal/0000000000000001.jnl",
    ]
    with pytest.raises(AssertionError, match="being closed"):
        world.add(3)


def test_a_group_wait_gathers_what_comes_meanwhile() -> None:
    naps: list[float] = []
    world = World(options=JournalOptions(file_bytes=FILE_BYTES, group_wait_seconds=0.002))

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:
            world.add(2)

    world.journal._sleep = sleep
    world.add(1)
    world.run()
    assert naps == [0.002]
    assert world.writes == [(2 * len(record(0)), 2)]


def test_statistics_count_blocks_bytes_and_padding() -> None:
    world = World()
    world.add(1)
    world.add(2)
    world.run()
    world.add(3, size=8000)
    world.run()
    statistics = world.journal.statistics()
    assert (statistics.blocks, statistics.records, statistics.syncs) == (2, 3, 2)
    assert statistics.group_records_max == 2
    assert statistics.written_bytes == 4096 + 8192
    assert statistics.payload_bytes == 200 + 8000
    assert statistics.padding_bytes == 4096 + 8192 - 8200 - 96
