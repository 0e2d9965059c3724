"""The metadata session of this bookie's last life, so that the next one need not wait it out.

A killed bookie stays registered until its session has been silent for long enough, by default ten
seconds, and until then the next life cannot register. Waiting is all that one can do about another
process that has our id. But of a process that had our very directories we know that it is gone: we
hold their lock. So each life leaves the ticket of its session in a file, and the next one ends that
session.

The lock tells nothing about a copy of the directories. The file therefore says for which directory
and under which boot of the machine it was written, and counts nowhere else.
"""

from __future__ import annotations

import os
from typing import Final

import trio

from bookie.storage.store_files import CURRENT
from metadata.store import MetadataError, MetadataStore, StoreUnavailableError
from runtime import logs
from runtime.files import FileSystem

SESSION_NAME: Final = "SESSION"
_FILE_BYTES_MAX: Final = 4096
_RETRY_SECONDS: Final = 1.0

_log = logs.get("bookie.server")


class LastSession:
    def __init__(self, files: FileSystem, directory: str, boot_id: str) -> None:
        """`directory` is one of the bookie's, locked by now. Without a boot id nothing is done."""
        self._files = files
        self._path = os.path.join(directory, CURRENT, SESSION_NAME)
        self._head = f"{boot_id} {directory} "
        self._knows_boot = bool(boot_id)

    async def end(self, metadata: MetadataStore) -> None:
        """End the session that the last life left behind, if it left one and told how."""
        ticket = self._read()
        if ticket is None:
            return
        try:
            if await metadata.end_session(ticket):
                _log.info("ended the session of the bookie's last life")
        except MetadataError as error:  # then it ends by itself
            _log.warning("the session of the bookie's last life goes on", error=error)

    async def remember(self, metadata: MetadataStore) -> None:
        """Keep the file in step with the session; runs for as long as the bookie does."""
        while True:
            try:
                session = await metadata.require_session()
                self.write(metadata.ticket)
            except StoreUnavailableError:
                await trio.sleep(_RETRY_SECONDS)
            except OSError as error:  # a full disk, perhaps: nothing depends on this file
                _log.warning("the session cannot be noted", error=error)
                await trio.sleep(_RETRY_SECONDS)
            else:
                await metadata.wait_session_lost(session)

    def write(self, ticket: str | None) -> None:
        """Replace the file. Not synced: after a power loss the session is over anyway."""
        if ticket is None or not self._knows_boot:
            return
        new = self._path + ".new"
        if self._files.exists(new):
            self._files.remove(new)
        file = self._files.open(new, create=True)
        try:
            file.write((self._head + ticket + "\n").encode(), 0)
        finally:
            file.close()
        self._files.rename(new, self._path)

    def _read(self) -> str | None:
        if not self._knows_boot or not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, read_only=True)
        try:
            text = file.read(_FILE_BYTES_MAX, 0).decode("utf-8", "replace").rstrip("\n")
        finally:
            file.close()
        ticket = text.removeprefix(self._head)
        return None if ticket == text or not ticket else ticket
