"""Whether the bookie takes entries, and who says so.

The configuration, the operator, full disks and damaged ones may each make it read-only; it is
writable when none of them does. The engine obeys at once; the registration follows, so that writers
stop choosing it. An operator's word can outlive a restart: it is kept in the ledger directories, in
Apache's form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

import trio

from bookie.storage.disk_watch import Acceptance
from bookie.storage.engine import Engine
from bookie.storage.store_files import CURRENT
from metadata.registration import BookieMode, Registration
from metadata.store import StoreUnavailableError
from runtime import logs
from runtime.files import FileSystem

STATUS_NAME: Final = "BOOKIE_STATUS"
_STATUS_VERSION: Final = "1"
_STATUS_BYTES_MAX: Final = 256
_RETRY_SECONDS: Final = 1.0

_log = logs.get("bookie.mode")


class Mode:
    """Owned by the event loop."""

    def __init__(
        self, *, forced: bool, status: StatusFiles | None = None, damaged_runs_max: int = 0
    ) -> None:
        """`damaged_runs_max` is how much damage a bookie takes before it takes no more entries."""
        self._forced = forced  # by the configuration
        self._damaged_runs_max = damaged_runs_max
        self._damage = ""  # what is said about it, once there is too much
        self._status = status
        self._by_operator = status is not None and status.read()
        self._acceptance = Acceptance(False, True, "")
        self._engine: Engine | None = None
        self._changed = trio.Event()
        self.on_change: Callable[[bool], None] = lambda read_only: None

    @property
    def read_only(self) -> bool:
        return bool(self._forced or self._by_operator or self._damage or self._acceptance.read_only)

    @property
    def reason(self) -> str:
        """Why it is read-only; empty if it is not."""
        reasons = (
            "forceReadOnlyBookie" if self._forced else "",
            "set by the operator" if self._by_operator else "",
            self._damage,
            self._acceptance.reason if self._acceptance.read_only else "",
        )
        return "; ".join(filter(None, reasons))

    @property
    def registered(self) -> BookieMode:
        return BookieMode.READ_ONLY if self.read_only else BookieMode.WRITABLE

    def open(self, engine: Engine) -> None:
        self._engine = engine
        self._apply()

    def on_acceptance(self, acceptance: Acceptance) -> None:
        """For the engine: what its disks allow."""
        self._acceptance = acceptance
        self._apply()

    def on_damage(self, runs: int) -> None:
        """So many runs were found damaged in this life. Too many, and the disk is not to be trusted
        with more; what it holds is served, and a restart begins to count anew."""
        if 0 < self._damaged_runs_max < runs and not self._damage:
            self._damage = f"{runs} damaged runs: check the disks, then start again"
            _log.error("no entries are accepted", reason=self._damage)
            self._apply()

    def set_read_only(self, read_only: bool) -> None:
        """The operator's word. It does not make a full disk writable."""
        self._by_operator = read_only
        if self._status is not None:
            self._status.write(read_only)
        self._apply()

    async def follow(self, registration: Registration) -> None:
        """Keep the registration in step; runs for as long as the bookie does."""
        while True:
            changed = self._changed
            try:
                await registration.switch(self.registered)
            except StoreUnavailableError as error:
                _log.warning("the registration does not show the mode yet", error=error)
                await trio.sleep(_RETRY_SECONDS)
                continue
            await changed.wait()

    def _apply(self) -> None:
        if self._engine is None:
            return
        accepts_priority = self._acceptance.accepts_priority
        self._engine.set_read_only(self.read_only, accepts_priority=accepts_priority)
        self.on_change(self.read_only)
        self._changed.set()
        self._changed = trio.Event()


class StatusFiles:
    """`BOOKIE_STATUS` in every ledger directory: version, mode, time, whether by an operator."""

    def __init__(
        self, files: FileSystem, ledger_directories: Sequence[str], now_ms: Callable[[], int]
    ) -> None:
        self._files = files
        self._paths = [os.path.join(path, CURRENT, STATUS_NAME) for path in ledger_directories]
        self._now_ms = now_ms

    def read(self) -> bool:
        """Whether an operator has made the bookie read-only. The newest file counts."""
        found = (0, False)
        for path in self._paths:
            if not self._files.exists(path):
                continue
            file = self._files.open(path, read_only=True)
            try:
                text = file.read(_STATUS_BYTES_MAX, 0).decode("ascii", "replace")
            finally:
                file.close()
            fields = text.strip().split(",")
            if len(fields) < 3 or fields[0] != _STATUS_VERSION or not fields[2].isdigit():
                _log.warning("status file is not understood and ignored", path=path, found=text)
                continue
            by_operator = len(fields) < 4 or fields[3] == "true"
            found = max(found, (int(fields[2]), fields[1] == "READ_ONLY" and by_operator))
        return found[1]

    def write(self, read_only: bool) -> None:
        name = "READ_ONLY" if read_only else "READ_WRITE"
        data = f"{_STATUS_VERSION},{name},{self._now_ms()},true\n".encode()
        for path in self._paths:
            new = path + ".new"
            if self._files.exists(new):
                self._files.remove(new)
            file = self._files.open(new, create=True)
            try:
                file.write(data, 0)
                file.sync()
            finally:
                file.close()
            self._files.rename(new, path)
            self._files.sync_directory(os.path.dirname(path))
