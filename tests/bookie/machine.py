"""A bookie's storage on one simulated machine: memory files, memory indexes, inline workers.

Tests add, read, crash and restart without threads and without waiting; a seed decides what a crash
leaves behind and which worker moves next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bookie.storage.engine import Engine, EngineCallbacks, EngineOptions
from bookie.storage.journal_format import JournalError
from bookie.storage.journal_options import JournalOptions
from bookie.storage.memory_index import MemoryIndexes
from bookie.storage.reads import Batch, Cold
from bookie.storage.start import Shell, Store, StoreOptions, open_store
from runtime.memory_files import MemoryFileSystem
from runtime.memory_inodes import Keep
from runtime.workers import InlineWorkers
from wire.batch import encode_batch, join_records
from wire.build_v2 import add_requests
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.scan_v2 import AddBatch, AddRun, scan_requests

KEY = bytes(range(20))


def entry_of(ledger_id: int, entry_id: int, payload: bytes = b"", lac: int = -1) -> bytes:
    """An entry as a bookie sees it; the digest is the client's business."""
    ids = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    return ids + lac.to_bytes(8, "big", signed=True) + bytes(8) + payload


def small_options(**changes: object) -> StoreOptions:
    """Sizes so small that a short history turns every cache and fills every file."""
    engine = EngineOptions(
        generation_bytes=4096,
        write_cache_bytes=64 * 1024,
        read_cache_bytes=64 * 1024,
        log_bytes=32 * 1024,
        ledgers_in_memory=8,
        reader_count=1,
    )
    return StoreOptions(engine=engine, journal=JournalOptions(file_bytes=32 * 1024), **changes)  # type: ignore[arg-type]


class Machine:
    """Disks that outlive the bookie, and the bookie while it runs."""

    def __init__(
        self, seed: int = 0, *, journals: int = 1, directories: int = 1,
        options: StoreOptions | None = None,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.files = MemoryFileSystem()
        self.indexes = MemoryIndexes()
        self.options = options or small_options()
        self.journal_paths = [f"/disk/journal{n}" for n in range(journals)]
        self.ledger_paths = [f"/disk/ledgers{n}" for n in range(directories)]
        self.now = 0.0
        self.durable: list[object] = []
        self.failures: list[JournalError] = []
        self.damage: list[Exception] = []
        self.checkpoints: list[int] = []
        self.store: Store | None = None
        self.workers = InlineWorkers()

    @property
    def engine(self) -> Engine:
        assert self.store is not None, "the bookie is not running"
        return self.store.engine

    def start(self) -> Engine:
        self.workers = InlineWorkers(self.random.randrange)
        shell = Shell(
            files=self.files,
            open_index=self.indexes.open,
            workers=self.workers,
            clock=lambda: self.now,
            now_ms=lambda: int(self.now * 1000),
            sleep=lambda seconds: None,
            new_store_id=lambda: self.random.randbytes(16),
        )
        callbacks = EngineCallbacks(
            on_durable=self.durable.extend,
            on_damage=lambda directory, run, error: self.damage.append(error),
            on_checkpoint=self.checkpoints.append,
        )
        self.store = open_store(
            self.journal_paths,
            self.ledger_paths,
            shell,
            self.options,
            callbacks,
            on_journal_failure=self.failures.append,
        )
        return self.store.engine

    def settle(self) -> None:
        """Let the workers finish everything."""
        self.workers.run_until_idle()

    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.workers.step():
                return

    def stop(self) -> None:
        """A clean stop."""
        assert self.store is not None
        closed: list[bool] = []
        self.engine.close(lambda: closed.append(True))
        self.settle()
        assert closed, "the engine did not close"
        self.workers.stop()
        self.store.finish_close()
        self.store = None

    def crash(self, *, power: bool = True) -> None:
        """The process dies; with `power`, the machine: what was not synced may be gone or torn."""
        self.store = None
        self.files.crash(self.random, keep=Keep.SOME if power else Keep.ALL)
        # The index keeps its newest changes in the process: any end of them may be gone.
        self.indexes.crash(lambda count: self.random.randint(0, count))

    # What a server would do.

    def add(
        self, ledger_id: int, entries: Sequence[tuple[int, bytes]], token: object,
        *, key: bytes = KEY, flags: int = 0, lac: int = -1,
    ) -> list[Status]:  # fmt: skip
        """Ordinary adds, in frames, as one receive buffer."""
        bodies = [entry_of(ledger_id, entry_id, payload, lac) for entry_id, payload in entries]
        frames = FrameBuffer()
        frames.feed(add_requests(bodies, master_key=key, flags=flags))
        statuses = []
        for item in scan_requests(frames):
            assert isinstance(item, AddRun)
            statuses.append(self.engine.add_run(item))
        self.engine.commit(token)
        return statuses

    def add_batch(
        self, ledger_id: int, entries: Sequence[tuple[int, bytes]], token: object,
        *, key: bytes = KEY, flags: int = 0,
    ) -> Status:  # fmt: skip
        bodies = [entry_of(ledger_id, entry_id, payload) for entry_id, payload in entries]
        frames = FrameBuffer()
        frames.feed(
            encode_batch(
                join_records(bodies), request_id=1, ledger_id=ledger_id,
                first_entry_id=entries[0][0], last_entry_id=entries[-1][0], count=len(entries),
                master_key=key, flags=flags,
            )
        )  # fmt: skip
        [item] = scan_requests(frames)
        assert isinstance(item, AddBatch)
        status = self.engine.add_batch(item)
        self.engine.commit(token)
        return status

    def read(self, ledger_id: int, entry_id: int) -> bytes | Status:
        """An entry's payload, or why not; waits for cold ones."""
        found = self._warm(lambda: self.engine.read(ledger_id, entry_id))
        assert isinstance(found, bytes | Status)
        return found[32:] if isinstance(found, bytes) else found

    def read_batch(
        self, ledger_id: int, first: int, *, count_max: int = 0, bytes_max: int = 1 << 20
    ) -> list[bytes] | Status:
        found = self._warm(
            lambda: self.engine.read_batch(
                ledger_id, first, count_max=count_max, bytes_max=bytes_max
            )
        )
        if not isinstance(found, Batch):
            assert isinstance(found, Status)
            return found
        data = b"".join(found.pieces)
        payloads = []
        while data:
            size = int.from_bytes(data[:4], "big")
            payloads.append(data[36 : 4 + size])
            data = data[4 + size :]
        assert len(payloads) == found.entry_count
        return payloads

    def _warm(self, ask: Callable[[], object]) -> object:
        for _ in range(10):
            found = ask()
            if not isinstance(found, Cold):
                return found
            self.engine.fetch(found, lambda: None)
            self.settle()
        raise AssertionError("still cold after ten fetches")
