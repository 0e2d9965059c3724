"""The machine of `machine.py` on real files and RocksDB; workers still run inline, one by one."""

from __future__ import annotations

from pathlib import Path

from bookie.storage.index import IndexOptions, open_index
from bookie.storage.memory_index import MemoryIndex
from bookie.storage.start import StoreOptions
from runtime.files import OSFileSystem
from tests.bookie.machine import Machine

_INDEX = IndexOptions(write_buffer_bytes=256 << 10, block_cache_bytes=1 << 20)


class DiskMachine(Machine):
    def __init__(
        self,
        path: Path,
        *,
        journals: int = 1,
        directories: int = 1,
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__(journals=journals, directories=directories, options=options)
        self.files = OSFileSystem()  # type: ignore[assignment]
        self.journal_paths = [str(path / f"journal{n}") for n in range(journals)]
        self.ledger_paths = [str(path / f"ledgers{n}") for n in range(directories)]

    def _open_index(self, path: str, *, store_id: bytes, create: bool = False) -> MemoryIndex:
        index = open_index(path, store_id=store_id, create=create, options=_INDEX)
        return index  # type: ignore[return-value]

    def die(self) -> None:
        """End this life without a checkpoint. A process that is killed leaves the same files, but
        for what RocksDB writes when it is closed; test_kill.py kills real ones."""
        assert self.store is not None
        self.workers.stop()
        self.store.abandon()
        self.store = None
