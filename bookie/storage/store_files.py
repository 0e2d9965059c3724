"""Directories of a store: the stamp that says whose they are, and the lock that says who is in.

A store is one set of journal and ledger directories with one random id. Every directory carries a
stamp with that id, its kind and its number; every file inside repeats the id. So a directory of
another bookie, one of an earlier life, a swapped or an emptied one is noticed before anything is
read from it or written to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from crc32c import crc32c

from bookie.storage.index_format import STORE_ID_BYTES, check_version
from runtime.files import FileSystem
from wire.errors import CorruptionError, LedgerError

STAMP_NAME: Final = "STORE"
NEW_STAMP: Final = "STORE.new"
LOCK_NAME: Final = "LOCK"
CURRENT: Final = "current"
_MAGIC: Final = b"BKPYSTO1"
_VERSION: Final = 1
_STAMP: Final = Struct(">8sHHHH16s")  # magic, version, kind, number, zero, store id
_CRC: Final = Struct(">I")
#: What may lie in a directory that counts as empty. VERSION is the cookie, checked elsewhere.
_HARMLESS: Final = {LOCK_NAME, "VERSION", "lost+found"}


class Kind(Enum):
    JOURNAL = 1
    LEDGERS = 2


class StoreError(LedgerError):
    """The directories do not belong together, or not to this bookie."""


@dataclass(frozen=True, slots=True)
class Stamp:
    kind: Kind
    number: int
    store_id: bytes

    def encode(self) -> bytes:
        fields = (_MAGIC, _VERSION, self.kind.value, self.number, 0, self.store_id)
        data = _STAMP.pack(*fields)
        return data + _CRC.pack(crc32c(data))


def decode_stamp(data: bytes, path: str) -> Stamp:
    if len(data) != _STAMP.size + _CRC.size or data[:8] != _MAGIC:
        raise StoreError(f"{path} is no stamp of a bookie's directory: put the right one back")
    _, version, kind, number, _, store_id = _STAMP.unpack_from(data)
    check_version(version, _VERSION, f"stamp {path}")
    if _CRC.unpack_from(data, _STAMP.size)[0] != crc32c(data[: _STAMP.size]):
        raise CorruptionError(f"{path} fails its checksum: restore it from another directory")
    return Stamp(Kind(kind), number, store_id)


class StoreFiles:
    """All directories of a store, locked and stamped. `close` gives the locks back."""

    def __init__(
        self,
        files: FileSystem,
        journal_directories: Sequence[str],
        ledger_directories: Sequence[str],
        *,
        new_store_id: Callable[[], bytes],
        allow_expansion: bool = False,
    ) -> None:
        self._files = files
        self._locks = ExitStack()
        self.journal_paths = [os.path.join(path, CURRENT) for path in journal_directories]
        self.ledger_paths = [os.path.join(path, CURRENT) for path in ledger_directories]
        wanted = [
            (path, kind, number)
            for kind, paths in (
                (Kind.JOURNAL, self.journal_paths), (Kind.LEDGERS, self.ledger_paths)
            )
            for number, path in enumerate(paths)
        ]  # fmt: skip
        self._wanted = wanted
        _check_distinct([path for path, _, _ in wanted])
        try:
            for path, _, _ in wanted:
                self._lock(path)
            stamps = {path: self._stamp(path, STAMP_NAME) for path, _, _ in wanted}
            if any(stamps.values()):
                # Somewhere the second half of stamping began, so the first half ended everywhere.
                stamps = {p: stamp or self._begun(p) for p, stamp in stamps.items()}
            known = {stamp.store_id for stamp in stamps.values() if stamp}
            missing = [(path, kind) for path, kind, _ in wanted if stamps[path] is None]
            self.is_new = not known
            if not self.is_new:
                self._check(wanted, stamps)
                self._check_missing(missing, allow_expansion)
            self._check_empty([path for path, _ in missing])
            self.store_id = known.pop() if known else self._begun_id() or new_store_id()
            assert len(self.store_id) == STORE_ID_BYTES
            #: Directories that may be half made yet: nothing was promised from them.
            self.added = [path for path, _, _ in wanted if not self._has(path, STAMP_NAME)]
            self.added_journals = [path for path, kind in missing if kind is Kind.JOURNAL]
            self._unstamped = [item for item in wanted if item[0] in self.added]
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """The first half of stamping: write the stamps under another name, everywhere.

        One that is there already is kept, because another directory may rely on it; but whoever
        wrote it may have died before it was synced.
        """
        for path, kind, number in self._unstamped:
            name = os.path.join(path, NEW_STAMP)
            begun = self._begun(path) is not None
            if not begun and self._files.exists(name):
                self._files.remove(name)
            file = self._files.open(name, create=not begun)
            try:
                if not begun:
                    file.write(Stamp(kind, number, self.store_id).encode(), 0)
                file.sync()
            finally:
                file.close()
            self._files.sync_directory(path)

    def stamp(self) -> None:
        """The second half: the directories are complete, so their stamps get their name.

        As long as no directory has its final stamp nothing was ever promised; so a first start
        that died in between is told from a directory that was emptied.
        """
        for path, _, _ in self._wanted:
            name = os.path.join(path, NEW_STAMP)
            if self._files.exists(name):
                self._files.rename(name, os.path.join(path, STAMP_NAME))
                self._files.sync_directory(path)
        self._unstamped = []

    def close(self) -> None:
        self._locks.close()

    def _lock(self, path: str) -> None:
        self._files.make_directories(path)
        lock = os.path.join(path, LOCK_NAME)
        try:
            file = self._files.lock(lock)
        except BlockingIOError:
            raise StoreError(
                f"{path} is in use by another process (it holds {lock}): stop that bookie first"
            ) from None
        self._locks.callback(file.close)

    def _begun_id(self) -> bytes | None:
        """The id that a first start chose before it died; its half-made files carry it."""
        begun = [self._begun(path) for path, _, _ in self._wanted]
        return next((stamp.store_id for stamp in begun if stamp), None)

    def _begun(self, path: str) -> Stamp | None:
        """The stamp under its other name. One that died unsynced is as good as none."""
        try:
            return self._stamp(path, NEW_STAMP)
        except (StoreError, CorruptionError):
            return None

    def _has(self, path: str, file_name: str) -> bool:
        return self._files.exists(os.path.join(path, file_name))

    def _stamp(self, path: str, file_name: str) -> Stamp | None:
        name = os.path.join(path, file_name)
        if not self._files.exists(name):
            return None
        file = self._files.open(name, read_only=True)
        try:
            return decode_stamp(file.read(_STAMP.size + _CRC.size + 1, 0), name)
        finally:
            file.close()

    def _check(self, wanted: list[tuple[str, Kind, int]], stamps: dict[str, Stamp | None]) -> None:
        ours = next(stamp for stamp in stamps.values() if stamp).store_id
        for path, kind, number in wanted:
            stamp = stamps[path]
            if stamp is None:
                continue
            if stamp.store_id != ours:
                raise StoreError(
                    f"{path} belongs to store {stamp.store_id.hex()}, the others to {ours.hex()}: "
                    "directories of two bookies, or of two lives of one, are mixed"
                )
            if (stamp.kind, stamp.number) != (kind, number):
                raise StoreError(
                    f"{path} was {stamp.kind.name.lower()} directory {stamp.number} and is "
                    f"configured as {kind.name.lower()} directory {number}: put the directories "
                    "back in their order"
                )

    def _check_missing(self, missing: list[tuple[str, Kind]], allow_expansion: bool) -> None:
        for path, kind in missing:
            if kind is Kind.JOURNAL and not allow_expansion:
                raise StoreError(
                    f"journal directory {path} is empty, but the bookie has data elsewhere: "
                    "acknowledged entries may be lost; restore it, or give the bookie up"
                )
            if not allow_expansion:
                raise StoreError(
                    f"ledger directory {path} is empty, but the bookie has data elsewhere: restore "
                    "it, or allow new directories with allowStorageExpansion=true"
                )

    def _check_empty(self, paths: list[str]) -> None:
        for path in paths:
            found = [
                name
                for name in self._files.list_directory(path)
                if name not in _HARMLESS and not name.startswith(STAMP_NAME)
            ]
            if found and not self._is_half_made(found):
                raise StoreError(
                    f"{path} is not empty (it holds {found[0]}) and carries no stamp: "
                    "give the bookie an empty directory"
                )

    def _is_half_made(self, names: list[str]) -> bool:
        """What a first start leaves when it dies before it stamped: nothing that was promised."""
        return self.is_new and all(
            name in ("index", "mark") or name.endswith((".jnl", ".tmp")) for name in names
        )


def _check_distinct(paths: list[str]) -> None:
    real = [os.path.realpath(path) for path in paths]
    for place, path in enumerate(real):
        if path in real[:place]:
            raise StoreError(f"{paths[place]} is configured twice: journals and ledgers each need "
                             "directories of their own")  # fmt: skip
