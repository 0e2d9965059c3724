"""Looking at journal files as they are, for people: no log mark, no verdict.

Every block that is valid where it stands is shown, so a file tells its story even when replay
refuses it. Nothing here belongs to a start.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from bookie.storage.journal_files import journal_file_ids
from bookie.storage.journal_format import (
    FILE_HEADER_BYTES,
    FIRST_OFFSET,
    FileHeader,
    decode_file_header,
    file_name,
)
from bookie.storage.journal_reader import Block, BlockReader
from bookie.storage.journal_records import (
    ADD,
    ADD_BATCH,
    ADD_ENTRY_OFFSET,
    ExplicitLac,
    LedgerKey,
    Limbo,
    StateRecord,
    decode_state,
    iterate_records,
    record_name,
)
from runtime.files import FileSystem

_IDS = struct.Struct(">qq")
_BATCH_IDS = struct.Struct(">qqqI")
_BATCH_IDS_OFFSET = 20 + 8 + 2 + 2  # behind master key, request id, format and zero


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSummary:
    name: str  # ADD, ADD_BATCH, FENCE, ...
    record_bytes: int
    ledger_id: int
    first_entry_id: int | None = None
    last_entry_id: int | None = None
    entry_count: int = 0
    flags: int = 0
    detail: str = ""


def journal_files(files: FileSystem, directory: str) -> list[tuple[int, str]]:
    """Id and path of every journal file, in the order in which they were used."""
    return [
        (file_id, posixpath.join(directory, file_name(file_id)))
        for file_id in journal_file_ids(files, directory)
    ]


def inspect_header(files: FileSystem, path: str) -> FileHeader:
    with closing(files.open(path, read_only=True)) as file:
        return decode_file_header(file.read(FILE_HEADER_BYTES, 0), path)


def inspect_blocks(files: FileSystem, path: str) -> Iterator[Block]:
    """Every valid block of one file, with gaps wherever something else stands."""
    file_id = inspect_header(files, path).file_id
    with closing(files.open(path, read_only=True)) as file:
        yield from BlockReader(file, file_id).blocks_from(FIRST_OFFSET)


def inspect_records(block: Block, path: str = "journal") -> Iterator[RecordSummary]:
    payload = block.payload
    for word, start, end in iterate_records(payload, block.position, path):
        name, size, flags = record_name(word), end - start + 8, word & 0xFFFF
        if word >> 16 == ADD:
            ledger_id, entry_id = _IDS.unpack_from(payload, start + ADD_ENTRY_OFFSET)
            yield RecordSummary(
                name=name,
                record_bytes=size,
                ledger_id=ledger_id,
                first_entry_id=entry_id,
                last_entry_id=entry_id,
                entry_count=1,
                flags=flags,
            )
        elif word >> 16 == ADD_BATCH:
            ledger_id, first, last, count = _BATCH_IDS.unpack_from(
                payload, start + _BATCH_IDS_OFFSET
            )
            yield RecordSummary(
                name=name,
                record_bytes=size,
                ledger_id=ledger_id,
                first_entry_id=first,
                last_entry_id=last,
                entry_count=count,
                flags=flags,
            )
        else:
            state = decode_state(word, payload, start, end, block.position, path)
            yield RecordSummary(
                name=name, record_bytes=size, ledger_id=state.ledger_id, detail=_detail(state)
            )


def _detail(state: StateRecord) -> str:
    """What else there is to say; never the master key, which opens the ledger."""
    match state:
        case ExplicitLac():
            return f"{len(state.lac)} bytes"
        case LedgerKey():
            return f"key of {len(state.master_key)} bytes"
        case Limbo():
            return "on" if state.on else "off"
        case _:
            return ""
