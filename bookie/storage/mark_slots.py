"""Mark slots: a second opinion on the log mark, kept outside the index.

The authority is `M` in the index, because it is atomic with the keys it speaks for. But an index
that was put back from an old copy is consistent in itself, and the journals that would bring it
up to date may be gone. The slots tell: they are written after every checkpoint, so a slot that
is newer than `M` proves that the index lost a checkpoint.

Two slots take turns, so that a crash while one is written leaves the other. Layout of a slot:
docs/formats/index.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.storage.index_format import LogMark, check_version
from runtime.files import File, FileSystem
from wire.errors import CorruptionError

SLOT_BYTES: Final = 4096
MARK_NAME: Final = "mark"

_MAGIC: Final = b"BKPYMRK1"
_VERSION: Final = 1
_CLEAN_SHUTDOWN: Final = 1
# magic, version, flags, zero, checkpoint, journal file, block offset, block sequence, time ms
_SLOT = struct.Struct(">8sHHIQQQQQ")
_CRC = struct.Struct(">I")


class RolledBackIndexError(CorruptionError):
    """The index is older than the checkpoints that this bookie has completed."""


class SlotMark(NamedTuple):
    """One slot. With several journals the position is the first one's; only `checkpoint` is
    compared."""

    checkpoint: int
    journal_file_id: int
    block_offset: int
    block_sequence: int
    time_ms: int
    clean_shutdown: bool = False

    def encode(self) -> bytes:
        flags = _CLEAN_SHUTDOWN * self.clean_shutdown
        data = _SLOT.pack(_MAGIC, _VERSION, flags, 0, *self[:5]).ljust(SLOT_BYTES - 4, b"\0")
        return data + _CRC.pack(crc32c(data))


def decode_slot(data: bytes, what: str) -> SlotMark | None:
    """None for a slot that was never written, or torn."""
    if len(data) != SLOT_BYTES or data[:8] != _MAGIC:
        return None
    if crc32c(data[:-4]) != _CRC.unpack_from(data, SLOT_BYTES - 4)[0]:
        return None
    _, version, flags, _, *numbers = _SLOT.unpack_from(data)
    check_version(version, _VERSION, what)
    checkpoint, file_id, offset, sequence, time_ms = numbers
    clean = flags & _CLEAN_SHUTDOWN != 0
    return SlotMark(checkpoint, file_id, offset, sequence, time_ms, clean)


def newest_slot(slots: Sequence[bytes], path: str) -> SlotMark | None:
    """The newer one of both slots; None if none was ever completed."""
    marks = [mark for data in slots if (mark := decode_slot(data, f"mark slot {path}"))]
    if marks:
        return max(marks)
    if all(data.strip(b"\0") for data in slots):
        # A crash can tear one slot, not both.
        raise CorruptionError(
            f"both mark slots in {path} are damaged: check the disk; removing the file "
            "gives up the check that the index is not an old copy"
        )
    return None


class MarkSlots:
    """The slot file of one ledger directory, created at its first use."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self.path = os.path.join(directory, MARK_NAME)
        self._file: File = (
            files.open(self.path) if files.exists(self.path) else _create(files, self.path)
        )

    def read(self) -> SlotMark | None:
        """The newest mark; None if none was ever completed."""
        slots = [self._file.read(SLOT_BYTES, number * SLOT_BYTES) for number in (0, 1)]
        return newest_slot(slots, self.path)

    def write(self, mark: SlotMark) -> None:
        """Keep the mark of a completed checkpoint, durably, in place of the one before the last."""
        self._file.write(mark.encode(), (mark.checkpoint & 1) * SLOT_BYTES)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def check_against_index(slot: SlotMark | None, mark: LogMark | None, path: str) -> None:
    """Refuse an index that lost a checkpoint. An older slot is legal: it is written last."""
    known = -1 if mark is None else mark.checkpoint
    if slot is not None and slot.checkpoint > known:
        raise RolledBackIndexError(
            f"index beside {path} is at checkpoint {max(known, 0)}, but checkpoint "
            f"{slot.checkpoint} was completed: put the newest index back, or accept the loss and "
            "let an integrity check fetch what is missing"
        )


def _create(files: FileSystem, path: str) -> File:
    file = files.open(path, create=True)
    try:
        file.write(bytes(2 * SLOT_BYTES), 0)
        file.sync()
        files.sync_directory(os.path.dirname(path))
    except BaseException:
        file.close()
        raise
    return file
