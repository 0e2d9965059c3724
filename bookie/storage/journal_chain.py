"""How far back a journal still reaches, when no mark says where to begin.

Files below the mark stay for a while before they are used again, and their blocks are as good as
ever. Replaying more than necessary does no harm; so whoever has lost the mark begins at the oldest
block from which the log goes on without a gap.
"""

from __future__ import annotations

import posixpath
from contextlib import closing
from typing import NamedTuple

from bookie.storage.journal_files import journal_file_ids, read_file_header
from bookie.storage.journal_format import FIRST_OFFSET, JournalPosition, file_name
from bookie.storage.journal_reader import BlockReader
from runtime.files import File, FileSystem


class Chain(NamedTuple):
    """The blocks from `start` to the last one written, none of them missing."""

    start: JournalPosition | None  # None: the journal holds no block
    file_ids: tuple[int, ...]
    older_file_ids: tuple[int, ...]  # with blocks that do not lead up to the others


class _Piece(NamedTuple):
    """Blocks of one file, from its beginning on."""

    file_id: int
    first: int
    behind: int  # the sequence that comes next


def find_chain(files: FileSystem, directory: str, store_id: bytes) -> Chain:
    """Read a journal directory from end to end. A file that is not ours, or cannot be read, is an
    error here as it is at a start."""
    pieces = []
    for file_id in journal_file_ids(files, directory):
        path = posixpath.join(directory, file_name(file_id))
        with closing(files.open(path, read_only=True)) as file:
            read_file_header(file, file_id, store_id)
            piece = _piece(file, file_id)
        if piece is not None:
            pieces.append(piece)
    if not pieces:
        return Chain(None, (), ())
    begin = len(pieces) - 1
    while begin and pieces[begin - 1].behind == pieces[begin].first:
        begin -= 1
    first = pieces[begin]
    return Chain(
        JournalPosition(first.file_id, FIRST_OFFSET, first.first),
        tuple(piece.file_id for piece in pieces[begin:]),
        tuple(piece.file_id for piece in pieces[:begin]),
    )


def _piece(file: File, file_id: int) -> _Piece | None:
    reader = BlockReader(file, file_id)
    header = reader.header_at(FIRST_OFFSET)
    block = None if header is None else reader.block_at(FIRST_OFFSET, header.sequence)
    if block is None:
        return None
    first = block.position.sequence
    while block is not None:
        here = block.behind
        block = reader.block_at(here.offset, here.sequence)
    return _Piece(file_id, first, here.sequence)
