"""A bookie's storage on one simulated machine: memory files, memory indexes, inline workers.

Tests add, read, crash and restart without threads and without waiting; a seed decides what a crash
leaves behind and which worker moves next. The power can be cut before any operation on files or
indexes (`cut_after`): whatever the bookie does then raises `PowerCut`, its own cleaning up
included, until `crash` has decided what survives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import groupby

from bookie.core.ledger import Ledger
from bookie.storage.engine import Engine
from bookie.storage.engine_values import EngineCallbacks, EngineOptions
from bookie.storage.index_interface import Change
from bookie.storage.journal_format import JournalError
from bookie.storage.journal_options import JournalOptions
from bookie.storage.memory_index import MemoryIndex, MemoryIndexes
from bookie.storage.reads import Batch, Cold
from bookie.storage.start import Shell, Store, StoreOptions, open_store
from runtime.memory_files import MemoryFileSystem
from runtime.memory_inodes import Keep
from runtime.workers import InlineWorkers
from wire.batch import encode_batch, join_records
from wire.build_v2 import add_requests
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.header_v2 import header_word
from wire.scan_v2 import AddBatch, AddRun, RequestItem, scan_requests
from wire.types import Opcode

KEY = bytes(range(20))


class PowerCut(BaseException):
    """The machine is off. No `except Exception` of the bookie may take it for an error."""


def entry_of(ledger_id: int, entry_id: int, payload: bytes = b"", lac: int = -1) -> bytes:
    """An entry as a bookie sees it; the digest is the client's business."""
    ids = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    return ids + lac.to_bytes(8, "big", signed=True) + bytes(8) + payload


def entries_of(batch: Batch) -> list[bytes]:
    """The entries of a batch, cut at their lengths."""
    data = b"".join(batch.pieces)
    entries = []
    while data:
        size = int.from_bytes(data[:4], "big")
        entries.append(data[4 : 4 + size])
        data = data[4 + size :]
    assert len(entries) == batch.entry_count
    return entries


def add_frames(bodies: Sequence[bytes], *, key: bytes, flags: int = 0, version: int = 2) -> bytes:
    """ADD frames as a client of this protocol version sends them."""
    frames = add_requests(bodies, master_key=key, flags=flags)
    if version == 2:
        return frames
    word = header_word(version, Opcode.ADD, flags).to_bytes(4, "big")
    return frames.replace(header_word(2, Opcode.ADD, flags).to_bytes(4, "big") + key, word + key)


def requests(data: bytes) -> list[RequestItem]:
    """What a connection would make of a receive buffer."""
    frames = FrameBuffer()
    frames.feed(data)
    return list(scan_requests(frames))


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
        self.troubles: list[tuple[int, Exception | None]] = []
        self.store: Store | None = None
        self.boot = 1
        self.knows_boot = True
        self.workers = InlineWorkers()
        self.on_durable: Callable[[list[object]], None] = self.durable.extend
        self.on_news: Callable[[Ledger], None] = lambda ledger: None
        self.on_progress: Callable[[int, str], None] = lambda blocks, path: None
        #: Which of several workers moves next; chance unless a test decides.
        self.choose: Callable[[int], int] = self.random.randrange
        self.opened: dict[str, MemoryIndex] = {}  # the indexes of this life, by path
        self._operations_left: int | None = None

    @property
    def engine(self) -> Engine:
        assert self.store is not None, "the bookie is not running"
        return self.store.engine

    def start(self) -> Engine:
        self.workers = InlineWorkers(self.choose)
        shell = Shell(
            files=self.files,
            open_index=self._open_index,
            workers=self.workers,
            clock=lambda: self.now,
            now_ms=lambda: int(self.now * 1000),
            sleep=lambda seconds: None,
            new_store_id=lambda: self.random.randbytes(16),
            boot_id=f"boot {self.boot}" if self.knows_boot else "",
        )
        callbacks = EngineCallbacks(
            on_durable=lambda tokens: self.on_durable(tokens),
            on_news=lambda ledger: self.on_news(ledger),
            on_trouble=lambda directory, error: self.troubles.append((directory.number, error)),
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
            on_progress=lambda blocks, path: self.on_progress(blocks, path),
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

    def cut_after(self, operations: int) -> None:
        """Cut the power in front of a later operation on files or indexes, counted from now."""
        self._operations_left = operations
        self.files.on_operation = lambda operation, path: self._tick()

    def keep_power(self) -> None:
        self._operations_left = None
        self.files.on_operation = None

    def _tick(self) -> None:
        if self._operations_left is not None:
            if self._operations_left <= 0:
                raise PowerCut
            self._operations_left -= 1

    def crash(
        self, *, power: bool = True, keep: Keep | None = None,
        keep_pieces: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        """The process dies; with `power`, the machine: what was not synced may be gone or torn.

        `keep` and `keep_pieces` say exactly what the files and the indexes keep of that.
        """
        self.store = None
        self.boot += power
        self.keep_power()
        self.files.crash(self.random, keep=keep or (Keep.SOME if power else Keep.ALL))
        # The index keeps its newest changes in the process: any end of them may be gone.
        self.indexes.crash(keep_pieces or (lambda count: self.random.randint(0, count)))

    def _open_index(self, path: str, *, store_id: bytes, create: bool = False) -> MemoryIndex:
        """An index whose changes are operations too: the power may go between two of them."""
        self._tick()
        index = self.indexes.open(path, store_id=store_id, create=create)
        apply, flush, close = index.apply, index.flush, index.close

        def apply_or_die(piece: Sequence[Change]) -> None:
            self._tick()
            apply(piece)
            if self.files.log is not None:
                self.files.log.append(f"index-apply {path} {_names(piece)}")

        def flush_or_die() -> None:
            self._tick()
            flush()
            if self.files.log is not None:
                self.files.log.append(f"index-flush {path}")

        def close_or_die() -> None:
            self._tick()
            close()

        index.apply = apply_or_die  # type: ignore[method-assign]
        index.flush = flush_or_die  # type: ignore[method-assign]
        index.close = close_or_die  # type: ignore[method-assign]
        self.opened[path] = index
        return index

    # What a server would do.

    def add(
        self, ledger_id: int, entries: Sequence[tuple[int, bytes]], token: object,
        *, key: bytes = KEY, flags: int = 0, lac: int = -1, version: int = 2,
    ) -> list[Status]:  # fmt: skip
        """Ordinary adds, in frames, as one receive buffer; one status for each run of them."""
        bodies = [entry_of(ledger_id, entry_id, payload, lac) for entry_id, payload in entries]
        statuses = []
        for item in requests(add_frames(bodies, key=key, flags=flags, version=version)):
            assert isinstance(item, AddRun)
            statuses.append(self.engine.add_run(item))
        self.engine.commit(token)
        return statuses

    def add_entry(
        self, ledger_id: int, entry_id: int, payload: bytes, token: object,
        *, key: bytes = KEY, flags: int = 0, lac: int = -1,
    ) -> Status:  # fmt: skip
        """An add by v3."""
        entry = entry_of(ledger_id, entry_id, payload, lac)
        status = self.engine.add_entry(ledger_id, entry_id, lac, key, entry, flags)
        self.engine.commit(token)
        return status

    def add_batch(
        self, ledger_id: int, entries: Sequence[tuple[int, bytes]], token: object,
        *, key: bytes = KEY, flags: int = 0, lac: int = -1,
    ) -> Status:  # fmt: skip
        bodies = [entry_of(ledger_id, entry_id, payload, lac) for entry_id, payload in entries]
        frame = encode_batch(
            join_records(bodies), request_id=1, ledger_id=ledger_id,
            first_entry_id=entries[0][0], last_entry_id=entries[-1][0], count=len(entries),
            master_key=key, flags=flags,
        )  # fmt: skip
        [item] = requests(frame)
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
        return [entry[32:] for entry in entries_of(found)]

    def _warm(self, ask: Callable[[], object]) -> object:
        for _ in range(10):
            found = ask()
            if not isinstance(found, Cold):
                return found
            self.engine.fetch(found, lambda: None)
            self.settle()
        raise AssertionError("still cold after ten fetches")


def _names(piece: Sequence[Change]) -> str:
    """What a piece changes, by the first byte of its keys: runs, ledgers, logs, mark, flags."""
    signs = [("" if value is not None else "-") + chr(key[0]) for key, value in piece]
    return " ".join(
        f"{sign}x{count}" if count > 1 else sign
        for sign, group in groupby(signs)
        if (count := sum(1 for _ in group))
    )
