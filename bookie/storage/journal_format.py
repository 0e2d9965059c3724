"""How a journal looks on disk: names, file headers, blocks. Bytes only, no files.

A journal directory holds files of one size. A file is a header page and then blocks, one per
group commit, each on a page of its own, so that no later write touches the sector of an
acknowledged one. Files are used again under a new id; what an earlier life left in them is told
apart by the file id, the offset and the sequence that every block carries under its checksum.

The page for readers is `docs/formats/journal.md`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from wire.errors import CorruptionError, LedgerError

FILE_MAGIC: Final = b"BKPYJNL1"
BLOCK_MAGIC: Final = b"JBLK"
FORMAT_VERSION: Final = 1
ALIGNMENT: Final = 4096
FILE_HEADER_BYTES: Final = ALIGNMENT
BLOCK_HEADER_BYTES: Final = 48
STORE_ID_BYTES: Final = 16

#: Where the first block of a file stands, and the sequence of the first block ever.
FIRST_OFFSET: Final = FILE_HEADER_BYTES
FIRST_SEQUENCE: Final = 1

#: A group stops growing here. One bigger record still is one block: the cap is soft.
PAYLOAD_BYTES_MAX: Final = 4 * 1024 * 1024

_FILE = struct.Struct(">8sHHIQQ16sQ")
_CRC = struct.Struct(">I")
_BLOCK = struct.Struct(">4sIIIQQQQ")
_BLOCK_FRONT = struct.Struct(">4sI")  # magic, checksum of what follows
_BLOCK_FIELDS = struct.Struct(">IIQQQQ")
_PADDING: Final = memoryview(bytes(ALIGNMENT))

#: More pieces of a block than this are joined to chunks of about this size.
_PIECES_MAX: Final = 128
_CHUNK_BYTES: Final = 256 * 1024
_FILE_NAME: Final = re.compile(r"([0-9a-f]{16})\.jnl")
_SPARE_NAME: Final = re.compile(r"next-[0-9]+\.tmp")


#: Whatever was only in the file is lost; a rebuilt index begins at the oldest file that is whole.
_RESTORE: Final = "restore it, or move it away and rebuild the index from the entry logs"


class JournalError(LedgerError):
    """The journal cannot be used as it is found; starting would lose acknowledged entries."""


class JournalDamageError(CorruptionError):
    """Bytes of the journal that were written whole are not what was written."""


class JournalPosition(NamedTuple):
    """Where a block stands, or will stand. Positions of one journal compare in log order."""

    file_id: int
    offset: int
    sequence: int  # of the block there; +1 for every block of the journal, across files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    file_id: int
    file_bytes: int  # as prepared; one block bigger than a file may have made it longer
    store_id: bytes
    prepared_ms: int


class BlockHeader(NamedTuple):
    checksum: int
    payload_bytes: int
    record_count: int
    file_id: int
    sequence: int
    offset: int
    #: Every block with a sequence below this was synced before this block was written.
    durable_before: int


def file_name(file_id: int) -> str:
    return f"{file_id:016x}.jnl"


def spare_name(number: int) -> str:
    """The name of a file while it is being prepared; replay never looks at it."""
    return f"next-{number}.tmp"


def file_id_of(name: str) -> int | None:
    """The id of a journal file, or None when `name` does not name one."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def is_spare(name: str) -> bool:
    return _SPARE_NAME.fullmatch(name) is not None


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def encode_file_header(header: FileHeader) -> bytes:
    assert len(header.store_id) == STORE_ID_BYTES
    fields = _FILE.pack(
        FILE_MAGIC,
        FORMAT_VERSION,
        0,
        ALIGNMENT,
        header.file_id,
        header.file_bytes,
        header.store_id,
        header.prepared_ms,
    )
    page = fields.ljust(FILE_HEADER_BYTES - _CRC.size, b"\0")
    return page + _CRC.pack(crc32c(page))


def decode_file_header(page: bytes, path: str) -> FileHeader:
    """Check the first page of a file.

    The version is looked at before the checksum: a later format may keep it elsewhere, and
    "newer" is the answer that helps.
    """
    if len(page) < FILE_HEADER_BYTES:
        raise JournalDamageError(
            f"{path}: {len(page)} bytes are too few for a journal file; {_RESTORE}"
        )
    magic, version, flags, alignment, file_id, file_bytes, store_id, prepared_ms = (
        _FILE.unpack_from(page)
    )
    if magic != FILE_MAGIC:
        raise JournalDamageError(
            f"{path}: begins with {magic.hex()}, so it is no journal file; {_RESTORE}"
        )
    if version > FORMAT_VERSION:
        raise JournalError(
            f"{path}: has journal format version {version}, this release reads up to "
            f"{FORMAT_VERSION}: start the release that wrote it"
        )
    (checksum,) = _CRC.unpack_from(page, FILE_HEADER_BYTES - _CRC.size)
    if crc32c(page[: FILE_HEADER_BYTES - _CRC.size]) != checksum:
        raise JournalDamageError(f"{path}: the file header fails its checksum; {_RESTORE}")
    if version != FORMAT_VERSION or flags or alignment != ALIGNMENT:
        raise JournalError(
            f"{path}: version {version}, flags {flags:#x}, alignment {alignment} are not of "
            f"journal format {FORMAT_VERSION}"
        )
    return FileHeader(
        file_id=file_id, file_bytes=file_bytes, store_id=store_id, prepared_ms=prepared_ms
    )


def frame_block(
    pieces: Sequence[bytes | memoryview],
    *,
    byte_count: int,
    record_count: int,
    position: JournalPosition,
    durable_before: int,
) -> list[bytes | memoryview]:
    """Records as one block, padded to whole pages; to be written in one call, piece behind piece.

    Nothing is copied while the pieces are few: they are slices of receive buffers, and one block
    of them all would be fresh memory, whose first touch kept the GIL for up to 5 ms. Many small
    ones are joined by the chunk; a checksum for each would cost more than the rest of the journal.
    """
    if len(pieces) > _PIECES_MAX:
        step = max(2, len(pieces) * _CHUNK_BYTES // byte_count)
        pieces = [b"".join(pieces[at : at + step]) for at in range(0, len(pieces), step)]
    fields = _BLOCK_FIELDS.pack(
        byte_count,
        record_count,
        position.file_id,
        position.sequence,
        position.offset,
        durable_before,
    )
    checksum = crc32c(fields)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    assert sum(map(len, pieces)) == byte_count, "byte_count is not the length of the pieces"
    padding = -(BLOCK_HEADER_BYTES + byte_count) % ALIGNMENT
    return [_BLOCK_FRONT.pack(BLOCK_MAGIC, checksum) + fields, *pieces, _PADDING[:padding]]


def decode_block_header(
    data: bytes | memoryview, at: int, file_id: int, offset: int
) -> BlockHeader | None:
    """The header of a block that claims to stand at `offset` of file `file_id`, else None.

    A claim only: the checksum covers the payload too, see `block_checksum`.
    """
    if data[at : at + 4] != BLOCK_MAGIC or len(data) < at + BLOCK_HEADER_BYTES:
        return None
    _, *fields = _BLOCK.unpack_from(data, at)
    header = BlockHeader(*fields)
    return header if header.file_id == file_id and header.offset == offset else None


def block_checksum(header: bytes | memoryview) -> int:
    """The checksum of a block's 48 header bytes, to be continued over its payload."""
    return crc32c(header[8:BLOCK_HEADER_BYTES])
