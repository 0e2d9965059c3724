"""Reading a journal back: replay at the start, and looking at files for people.

Replay walks the blocks from the log mark on and stops at the first that is not the next one.
What ends there decides between "normal" and "data is lost", so it is worth being exact:

- A file that no longer continues is followed by a later one whose first block has the expected
  sequence: the writer rolled, or an earlier start left a torn tail behind and began a new file.
- If none continues, blocks behind the gap are searched for, to the end of the last file. A block
  says, under its checksum, below which sequence everything was durable before it was written. One
  that says so of the missing sequence proves that acknowledged data is gone: damage. One that
  does not may stand behind a hole, because blocks that nobody was promised may reach the disk in
  any order. Then, and if there is none, the gap is a torn tail or the clean end.
- An error of reading is neither. It is raised.

Damage to the very last block cannot be told from a torn tail: nothing behind it bears witness.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.storage.journal_files import journal_file_ids, read_file_header
from bookie.storage.journal_format import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    FIRST_OFFSET,
    FIRST_SEQUENCE,
    PAYLOAD_BYTES_MAX,
    BlockHeader,
    JournalError,
    JournalPosition,
    aligned,
    block_checksum,
    decode_block_header,
    file_name,
)
from runtime.files import File, FileSystem

#: What is read to see a header: a row of small blocks at once, and little in vain of a large one.
#: Also good for passing over what holds none: larger pieces come from the kernel with new pages.
_READ_AHEAD_BYTES: Final = 64 << 10
#: Twice the soft limit of a block: hardly any payload has to be read twice.
_PAYLOAD_READ_MAX: Final = 2 * PAYLOAD_BYTES_MAX


class Block(NamedTuple):
    """A valid block."""

    position: JournalPosition
    record_count: int
    durable_before: int
    payload: bytes

    @property
    def behind(self) -> JournalPosition:
        """Where the next block stands if its file has room for it."""
        file_id, offset, sequence = self.position
        size = aligned(BLOCK_HEADER_BYTES + len(self.payload))
        return JournalPosition(file_id, offset + size, sequence + 1)


class EndKind(Enum):
    CLEAN = "clean"  # nothing was ever written there
    TORN_TAIL = "torn tail"  # remains of writes that were never promised to be durable
    DAMAGE = "damage"  # acknowledged blocks are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEnd:
    """Where the log ends, why, and how to go on."""

    kind: EndKind
    position: JournalPosition | None  # of the block that is not there; None without any file
    next_sequence: int
    next_file_id: int  # above every file in the directory
    replayed_file_ids: tuple[int, ...]
    evidence: JournalPosition | None = None  # a block that proves the damage
    path: str = ""  # of the file where the log ends

    def describe(self) -> str:
        """One line for the log and for the operator."""
        if self.position is None:
            return "the journal is empty"
        what = f"{self.path}: {self.kind.value} at offset {self.position.offset}"
        if self.evidence is None:
            return f"{what}, block {self.position.sequence} would be next"
        return (
            f"{what}: block {self.position.sequence} was acknowledged and cannot be read, as "
            f"block {self.evidence.sequence} proves (file {file_name(self.evidence.file_id)}, "
            f"offset {self.evidence.offset}); restore the disk, or accept the loss, which puts "
            "every open ledger in limbo"
        )


class BlockReader:
    """Blocks of one open file, read ahead in pieces of bounded size."""

    def __init__(self, file: File, file_id: int) -> None:
        self.file_id = file_id
        self.size = file.size()
        self.path = file.path
        self._file = file
        self._buffer = b""
        self._start = 0  # of the buffer in the file

    def header_at(self, offset: int) -> BlockHeader | None:
        """What claims to be a block of this file at `offset`, unless it cannot be one."""
        if offset + BLOCK_HEADER_BYTES > self.size:
            return None
        at = self._load(offset, BLOCK_HEADER_BYTES)
        header = decode_block_header(self._buffer, at, self.file_id, offset)
        if header is None or offset + BLOCK_HEADER_BYTES + header.payload_bytes > self.size:
            return None
        return header

    def _payload_at(self, offset: int, header: BlockHeader) -> bytes | None:
        """The payload if it and the header match the checksum.

        A length is not to be believed before the checksum says so: what is longer than any
        ordinary block is summed up piece by piece first, and held in memory only if it is valid.
        """
        at = self._load(offset, BLOCK_HEADER_BYTES)
        checksum = block_checksum(self._buffer[at : at + BLOCK_HEADER_BYTES])
        start, left = offset + BLOCK_HEADER_BYTES, header.payload_bytes
        at += BLOCK_HEADER_BYTES
        if left <= _PAYLOAD_READ_MAX:
            is_here = at + left <= len(self._buffer)
            payload = self._buffer[at : at + left] if is_here else self._file.read(left, start)
            return payload if crc32c(payload, checksum) == header.checksum else None
        while left:
            piece = self._file.read(min(left, _PAYLOAD_READ_MAX), start)
            if not piece:
                return None
            checksum = crc32c(piece, checksum)
            start += len(piece)
            left -= len(piece)
        if checksum != header.checksum:
            return None
        return self._file.read(header.payload_bytes, offset + BLOCK_HEADER_BYTES)

    def block_at(self, offset: int, sequence: int) -> Block | None:
        """The block with this sequence, if it stands there whole."""
        header = self.header_at(offset)
        if header is None or header.sequence != sequence:
            return None
        return self._block(offset, header)

    def blocks_from(self, offset: int) -> Iterator[Block]:
        """Every valid block at or behind `offset`, whatever stands between them.

        Looks at each page once; a page is summed up only if it claims to begin a block of this
        very file at this very offset, so what earlier lives of the file left costs no more.
        """
        while (offset := self._claim_from(offset)) + BLOCK_HEADER_BYTES <= self.size:
            header = self.header_at(offset)
            block = None if header is None else self._block(offset, header)
            if block is None:
                offset += ALIGNMENT
            else:
                yield block
                offset = block.behind.offset

    def _block(self, offset: int, header: BlockHeader) -> Block | None:
        payload = self._payload_at(offset, header)
        if payload is None:
            return None
        position = JournalPosition(self.file_id, offset, header.sequence)
        return Block(position, header.record_count, header.durable_before, payload)

    def _claim_from(self, offset: int) -> int:
        """The first page at or behind `offset` that may begin a block, or the end."""
        while offset < self.size:
            at = self._load(offset, BLOCK_HEADER_BYTES)
            firsts = self._buffer[at::ALIGNMENT]  # of each page its first byte
            found = firsts.find(BLOCK_MAGIC[:1])
            if found >= 0:
                return offset + found * ALIGNMENT
            offset += max(len(firsts), 1) * ALIGNMENT
        return offset

    def _load(self, offset: int, size: int) -> int:
        """Have `size` bytes from `offset` on in the buffer; where in it they begin."""
        at = offset - self._start
        if at < 0 or at + size > len(self._buffer):
            self._buffer = self._file.read(max(size, _READ_AHEAD_BYTES), offset)
            self._start = offset
            return 0
        return at


class JournalReplay:
    """One replay. Iterate over it, then ask for its `end`."""

    def __init__(
        self, files: FileSystem, directory: str, store_id: bytes, *, mark: JournalPosition | None
    ) -> None:
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self._ids = journal_file_ids(files, directory)
        self._mark = mark
        self._replayed: list[int] = []
        self._end: ReplayEnd | None = None
        if mark is not None and mark.file_id not in self._ids:
            raise JournalError(
                f"{self._path(mark.file_id)}: the log mark names this journal file and it is "
                "missing; restore it, or rebuild the index, which puts every ledger in limbo"
            )

    @property
    def end(self) -> ReplayEnd:
        assert self._end is not None, "iterate over the replay first"
        return self._end

    def __iter__(self) -> Iterator[Block]:
        next_file_id = self._ids[-1] + 1 if self._ids else 1
        if not self._ids:
            self._end = ReplayEnd(
                kind=EndKind.CLEAN,
                position=None,
                next_sequence=FIRST_SEQUENCE,
                next_file_id=next_file_id,
                replayed_file_ids=(),
            )
            return
        here = self._mark or JournalPosition(self._ids[0], FIRST_OFFSET, FIRST_SEQUENCE)
        while True:
            for block in self._blocks_from(here):
                yield block
                here = block.behind
            file_id = self._continuation(here)
            if file_id is None:
                break
            here = JournalPosition(file_id, FIRST_OFFSET, here.sequence)
        kind, evidence = self._judge(here)
        self._end = ReplayEnd(
            kind=kind,
            position=here,
            next_sequence=(evidence.sequence + 1) if evidence else here.sequence,
            next_file_id=next_file_id,
            replayed_file_ids=tuple(self._replayed),
            evidence=evidence,
            path=self._path(here.file_id),
        )

    def _blocks_from(self, here: JournalPosition) -> Iterator[Block]:
        """Blocks of one file, as long as each is the next of the log."""
        with closing(self._open(here.file_id)) as file:
            reader = BlockReader(file, here.file_id)
            block = reader.block_at(here.offset, here.sequence)
            if block is not None:
                self._replayed.append(here.file_id)
            while block is not None:
                yield block
                block = reader.block_at(block.behind.offset, block.behind.sequence)

    def _continuation(self, here: JournalPosition) -> int | None:
        """The later file that begins with the expected block, if there is one."""
        for file_id in self._ids:
            if file_id > here.file_id:
                with closing(self._open(file_id)) as file:
                    if BlockReader(file, file_id).block_at(FIRST_OFFSET, here.sequence):
                        return file_id
        return None

    def _judge(self, here: JournalPosition) -> tuple[EndKind, JournalPosition | None]:
        """What the end of the log is, by what stands behind it."""
        kind = EndKind.CLEAN
        for file_id in self._ids:
            if file_id < here.file_id:
                continue
            with closing(self._open(file_id)) as file:
                reader = BlockReader(file, file_id)
                start = FIRST_OFFSET
                if file_id == here.file_id:
                    start = here.offset
                    if reader.header_at(start) is not None:
                        kind = EndKind.TORN_TAIL
                for block in reader.blocks_from(start):
                    if block.durable_before > here.sequence:
                        return EndKind.DAMAGE, block.position
                    kind = EndKind.TORN_TAIL
        return kind, None

    def _open(self, file_id: int) -> File:
        file = self._files.open(self._path(file_id), read_only=True)
        try:
            read_file_header(file, file_id, self._store_id)
        except BaseException:
            file.close()
            raise
        return file

    def _path(self, file_id: int) -> str:
        return posixpath.join(self._directory, file_name(file_id))


def replay(
    files: FileSystem, directory: str, store_id: bytes, *, mark: JournalPosition | None
) -> JournalReplay:
    """Read the journal from `mark` on, or from its beginning if there never was a mark."""
    return JournalReplay(files, directory, store_id, mark=mark)
