"""Replay: what it yields, where it says the log ends, and what it refuses."""

from __future__ import annotations

import struct
from contextlib import closing

import pytest

from bookie.storage.journal_format import (
    FIRST_OFFSET,
    JournalDamageError,
    JournalError,
    JournalPosition,
    file_name,
    frame_block,
)
from bookie.storage.journal_inspect import (
    inspect_blocks,
    inspect_header,
    inspect_records,
    journal_files,
)
from bookie.storage.journal_options import JournalOptions
from bookie.storage.journal_reader import BlockReader, EndKind, replay
from bookie.storage.journal_records import (
    encode_explicit_lac,
    encode_fence,
    encode_ledger_key,
    encode_limbo,
)
from runtime.memory_files import MemoryFileSystem
from tests.bookie.journal_world import (
    DIRECTORY,
    FILE_BYTES,
    KEY,
    STORE_ID,
    World,
    numbers,
    read_back,
    record,
)


def world_with(count: int, *, deferred: bool = False) -> World:
    """A journal of `count` blocks of one record and one page each."""
    world = World()
    for number in range(count):
        world.add(number, deferred=deferred)
        world.run()
    return world


def path_of(file_id: int) -> str:
    return f"{DIRECTORY}/{file_name(file_id)}"


def test_empty_directory_is_a_clean_beginning() -> None:
    files = MemoryFileSystem()
    files.make_directories(DIRECTORY)
    blocks, end = read_back(files)
    assert blocks == []
    assert (end.kind, end.position) == (EndKind.CLEAN, None)
    assert (end.next_sequence, end.next_file_id) == (1, 1)


def test_replay_yields_blocks_from_the_mark_on() -> None:
    world = world_with(20)
    blocks, end = read_back(world.files)
    assert numbers(blocks) == list(range(20))
    assert end.kind is EndKind.CLEAN
    assert end.position == JournalPosition(2, FIRST_OFFSET + 5 * 4096, 21)
    assert (end.next_file_id, end.replayed_file_ids) == (4, (1, 2))
    for block in blocks:
        assert (
            numbers(read_back(world.files, block.position)[0])
            == numbers(blocks)[block.position.sequence - 1 :]
        )


def test_end_is_known_only_after_the_last_block() -> None:
    reading = replay(world_with(1).files, DIRECTORY, STORE_ID, mark=None)
    with pytest.raises(AssertionError):
        _ = reading.end


def test_stale_blocks_of_a_file_used_again_are_not_seen() -> None:
    world = world_with(31)  # two full files and one block
    world.journal.release(3)
    for number in range(31, 62):
        world.add(number)
        world.run()
    mark = JournalPosition(3, FIRST_OFFSET, 31)
    blocks, end = read_back(world.files, mark)
    assert numbers(blocks) == list(range(30, 62))
    assert end.kind is EndKind.CLEAN
    assert world.journal.statistics().files_recycled >= 2


def test_mark_of_a_missing_file_is_refused_by_name() -> None:
    world = world_with(1)
    with pytest.raises(JournalError, match=r"0000000000000009\.jnl.*missing"):
        read_back(world.files, JournalPosition(9, FIRST_OFFSET, 1))


def test_missing_file_in_the_middle_is_damage() -> None:
    world = world_with(40)
    world.files.remove(path_of(2))
    blocks, end = read_back(world.files)
    assert numbers(blocks) == list(range(15))
    assert end.kind is EndKind.DAMAGE
    assert end.evidence == JournalPosition(3, FIRST_OFFSET, 31)


def test_lost_mark_is_noticed_by_the_first_sequence() -> None:
    world = world_with(31)
    world.files.remove(path_of(1))
    _, end = read_back(world.files)
    assert end.kind is EndKind.DAMAGE


def test_foreign_newer_and_renamed_files_are_refused() -> None:
    world = world_with(1)
    with pytest.raises(JournalError, match="belongs to store"):
        list(replay(world.files, DIRECTORY, bytes(16), mark=None))
    world.files.rename(path_of(1), path_of(7))
    with pytest.raises(JournalError, match=r"0007\.jnl: the header says file id 0000000000000001"):
        read_back(world.files)
    world = world_with(1)
    world.files.flip(path_of(1), 9, 3)
    with pytest.raises(JournalError, match="start the release that wrote it"):
        read_back(world.files)
    world = world_with(1)
    world.files.flip(path_of(2), 100)
    with pytest.raises(JournalDamageError, match="fails its checksum"):
        read_back(world.files)


@pytest.mark.parametrize("file_id", [1, 2, 3])
def test_read_error_is_raised_and_never_an_end(file_id: int) -> None:
    world = world_with(20)
    world.files.fail("read", path=path_of(file_id))
    with pytest.raises(OSError, match="Input/output"):
        read_back(world.files)


@pytest.mark.parametrize("at", [0, 4, 9, 20, 31, 39, 47, 48, 100])
def test_damage_is_found_wherever_a_block_is_hit(at: int) -> None:
    for victim in (0, 7, 14, 15, 18):
        world = world_with(20)
        block = read_back(world.files)[0][victim]
        world.files.flip(path_of(block.position.file_id), block.position.offset + at)
        blocks, end = read_back(world.files)
        assert numbers(blocks) == list(range(victim))
        assert end.kind is EndKind.DAMAGE
        assert end.position is not None
        assert end.position.sequence == victim + 1
        assert end.evidence is not None
        assert end.evidence.sequence == victim + 2
        assert "cannot be read" in end.describe()


def test_damage_of_many_blocks_in_a_row_is_found_by_a_later_file() -> None:
    world = world_with(20)
    for offset in range(FIRST_OFFSET + 4096, FILE_BYTES, 4096):
        world.files.flip(path_of(1), offset)
    blocks, end = read_back(world.files)
    assert numbers(blocks) == [0]
    assert (end.kind, end.evidence) == (EndKind.DAMAGE, JournalPosition(2, FIRST_OFFSET, 16))


@pytest.mark.parametrize("noise", [b"\0", b"JBLK", b"JBLKx", b"x" * 4095 + b"JBLK"])
def test_blocks_are_found_whatever_lies_between_them(noise: bytes) -> None:
    """Behind large blocks and small ones, and however far the next one is."""
    files = MemoryFileSystem()
    size = 5 << 20
    content = bytearray((noise * (size // len(noise) + 1))[:size])
    places = {4096: 10, 8192: 70_000, 90_112: 3000, 3 << 20: 1 << 20, (5 << 20) - 4096: 4000}
    for number, (offset, payload) in enumerate(places.items()):
        block = b"".join(
            frame_block(
                [bytes([number]) * payload],
                byte_count=payload,
                record_count=1,
                position=JournalPosition(3, offset, number + 9),
                durable_before=0,
            )
        )
        content[offset : offset + len(block)] = block
    with closing(files.open("file", create=True)) as file:
        file.write(bytes(content), 0)
        found = list(BlockReader(file, 3).blocks_from(FIRST_OFFSET))
        assert {block.position.offset: len(block.payload) for block in found} == places
        assert [block.payload[0] for block in found] == list(range(5))
        assert not list(BlockReader(file, 4).blocks_from(FIRST_OFFSET)), "of another life"


def test_damage_of_the_last_block_passes_for_a_torn_tail() -> None:
    """A limit of the scheme, written down: nothing behind the last block bears witness."""
    world = world_with(3)
    world.files.flip(path_of(1), FIRST_OFFSET + 2 * 4096 + 60)
    blocks, end = read_back(world.files)
    assert numbers(blocks) == [0, 1]
    assert end.kind is EndKind.TORN_TAIL
    assert (end.next_sequence, end.evidence) == (3, None)
    assert "torn tail at offset 12288, block 3 would be next" in end.describe()


def test_hole_before_blocks_that_were_never_synced_is_a_torn_tail() -> None:
    world = world_with(3)
    for number in range(3, 8):
        world.add(number, deferred=True)
        world.run()
    world.files.flip(path_of(1), FIRST_OFFSET + 4 * 4096 + 60)
    blocks, end = read_back(world.files)
    assert numbers(blocks) == [0, 1, 2, 3]
    assert end.kind is EndKind.TORN_TAIL
    # Once a durable block follows, the same hole is damage: the sync came first.
    world.add(8)
    world.run()
    blocks, end = read_back(world.files)
    assert numbers(blocks) == [0, 1, 2, 3]
    assert end.kind is EndKind.DAMAGE
    assert end.evidence is not None
    assert end.evidence.sequence == 9


def test_log_goes_on_over_torn_tails_and_starts_that_wrote_nothing() -> None:
    world = world_with(3, deferred=True)
    files = world.files
    for life in range(4):
        files.flip(path_of(1), FIRST_OFFSET + 2 * 4096 + 60) if life == 0 else None
        World(files)
    world = World(files)
    world.add(10)
    world.add(11)
    world.run()
    World(files)
    blocks, end = read_back(files)
    assert numbers(blocks) == [0, 1, 10, 11]
    assert blocks[2].position.sequence == 3
    assert end.next_sequence == 4


def test_old_blocks_behind_a_torn_tail_never_come_back() -> None:
    """Block 3 was lost and block 4 not, unsynced; then 3 is written again in another file."""
    world = world_with(4, deferred=True)
    world.files.flip(path_of(1), FIRST_OFFSET + 2 * 4096 + 60)
    world = World(world.files)
    world.add(20)
    world.run()
    assert numbers(read_back(world.files)[0]) == [0, 1, 20]


def test_file_with_remains_of_a_lost_block_is_not_used_again_under_its_id() -> None:
    """Else a block left behind the lost one would follow the new one, valid in every respect."""
    world = world_with(15)
    for number in (15, 16):  # the first two blocks of file 2, never synced
        world.add(number, deferred=True)
        world.run()
    world.files.flip(path_of(2), FIRST_OFFSET + 60)
    world = World(world.files)
    assert world.end.kind is EndKind.TORN_TAIL
    world.add(20)
    world.run()
    assert numbers(read_back(world.files)[0]) == [*range(15), 20]


def test_length_that_nothing_vouches_for_is_not_believed() -> None:
    """A torn header may claim any length; it is summed up in pieces, and not kept."""
    world = World(options=JournalOptions(file_bytes=32 * 1024 * 1024))
    world.add(0)
    world.run()
    position = JournalPosition(1, FIRST_OFFSET + 4096, 2)
    block = bytearray().join(
        frame_block([b"x"], byte_count=1, record_count=1, position=position, durable_before=2)
    )
    struct.pack_into(">I", block, 8, 20 * 1024 * 1024)
    world.files.open(path_of(1)).write(bytes(block), position.offset)
    blocks, end = read_back(world.files)
    assert numbers(blocks) == [0]
    assert end.kind is EndKind.TORN_TAIL


def test_block_bigger_than_the_read_ahead_is_replayed() -> None:
    world = World(options=JournalOptions(file_bytes=32 * 1024 * 1024))
    world.add(0)
    world.add(1, size=9 * 1024 * 1024)
    world.add(2)
    world.run()
    assert numbers(read_back(world.files)[0]) == [0, 1, 2]


def test_after_accepted_damage_the_log_begins_anew_and_the_mark_can_pass() -> None:
    world = world_with(10)
    world.files.flip(path_of(1), FIRST_OFFSET + 4 * 4096)
    world = World(world.files)
    assert world.end.kind is EndKind.DAMAGE
    world.seal()
    world.run()
    world.add(50)
    world.run()
    (mark,) = world.seals
    assert mark.file_id > 2
    blocks, end = read_back(world.files, mark)
    assert numbers(blocks) == [50]
    assert end.kind is EndKind.CLEAN
    # Until the mark has passed it, the damage is found again.
    assert read_back(world.files)[1].kind is EndKind.DAMAGE


def test_inspection_shows_files_headers_blocks_and_records() -> None:
    world = World()
    lac = b"as received"
    pieces = [
        record(5),
        encode_fence(8, KEY),
        encode_explicit_lac(9, KEY, lac),
        encode_ledger_key(10, b"short"),
        encode_limbo(11, on=True),
    ]
    world.journal.append(pieces, sum(map(len, pieces)), len(pieces), "token")
    world.run()
    listed = journal_files(world.files, DIRECTORY)
    assert listed == [(1, path_of(1)), (2, path_of(2))]
    assert inspect_header(world.files, path_of(1)).file_bytes == FILE_BYTES
    (block,) = inspect_blocks(world.files, path_of(1))
    assert list(inspect_blocks(world.files, path_of(2))) == []
    summaries = list(inspect_records(block))
    assert [(s.name, s.ledger_id, s.first_entry_id, s.detail) for s in summaries] == [
        ("ADD", 7, 5, ""),
        ("FENCE", 8, None, ""),
        ("EXPLICIT_LAC", 9, None, "11 bytes"),
        ("LEDGER_KEY", 10, None, "key of 5 bytes"),
        ("LIMBO", 11, None, "on"),
    ]
    assert sum(s.record_bytes for s in summaries) == len(block.payload)


def test_inspection_shows_what_stands_behind_damage() -> None:
    world = world_with(5)
    world.files.flip(path_of(1), FIRST_OFFSET + 4096)
    shown = [block.position.sequence for block in inspect_blocks(world.files, path_of(1))]
    assert shown == [1, 3, 4, 5]
