"""Admin paths on the bookie of this process: its state, its health, its disks and files."""

from __future__ import annotations

import os
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from bookie.lifetimes import BookieSettings
from bookie.settings import bookie_settings
from bookie.storage.journal_format import file_name
from bookie.storage.store_files import CURRENT
from bookie.storage.store_inspect import FileKind, files_on_disk, read_slot
from quire.admin_host import AdminHost
from quire.admin_http import (
    AnswerError,
    Page,
    body_object,
    flag_of,
    json_answer,
    parameter,
    text_answer,
)
from quire.sanity import try_bookie
from runtime import logs
from runtime.config import Settings
from runtime.files import OSFileSystem
from wire.errors import LedgerError

_SANITY_SECONDS: Final = 20.0
_FILES: Final = {
    "journal": ("journal files", (FileKind.JOURNAL,)),
    "entrylog": ("entrylog files", (FileKind.LOG,)),
    "index": ("index files", (FileKind.INDEX, FileKind.OLD_INDEX)),
}

_log = logs.get("quire.admin")


def bookie_pages(host: AdminHost) -> dict[str, Page]:
    pages = BookiePages(host)
    prefix = "/api/v1/bookie/"
    return {
        f"{prefix}state": Page(
            {"GET": pages.state}, "Only support GET method to retrieve bookie state."
        ),
        f"{prefix}state/readonly": Page(
            {"GET": pages.read_only, "PUT": pages.set_read_only},
            "Unsupported method. Should be GET or PUT method",
        ),
        f"{prefix}sanity": Page(
            {"GET": pages.sanity}, "Only support GET method to retrieve bookie sanity state."
        ),
        f"{prefix}is_ready": Page(
            {"GET": pages.is_ready}, "Only support GET method check if bookie is ready."
        ),
        f"{prefix}info": Page(
            {"GET": pages.info}, "Only support GET method to retrieve bookie info."
        ),
        f"{prefix}last_log_mark": Page({"GET": pages.last_log_mark}),
        f"{prefix}list_disk_file": Page({"GET": pages.files}),
        f"{prefix}expand_storage": Page({"PUT": pages.expand_storage}),
    }


class BookiePages:
    def __init__(self, host: AdminHost) -> None:
        self._host = host
        self._is_trying = False

    # ------------------------------------------------------------------ state

    async def state(self, request: Request) -> Response:
        running = self._host.running()
        acceptance = running.store.engine.upkeep.disks.acceptance
        return json_answer(
            {
                "running": True,
                "readOnly": running.mode.read_only,
                "shuttingDown": False,
                "availableForHighPriorityWrites": acceptance.accepts_priority,
            }
        )

    async def read_only(self, request: Request) -> Response:
        return json_answer({"readOnly": self._host.running().mode.read_only})

    async def set_read_only(self, request: Request) -> Response:
        """The operator's word. What the answer says is what has come of it: a full disk stays."""
        running = self._host.running()
        body = await body_object(request, missing='Request body not found: {"readOnly": true}')
        if set(body) - {"readOnly"}:
            raise AnswerError(400, "only readOnly is known here")
        wanted = flag_of(body, "readOnly") or False
        config = running.settings.bookie
        if not wanted and config.read_only:
            raise AnswerError(
                400, "Bookie is in forceReadOnly mode, cannot transit to writable mode"
            )
        if wanted and not config.read_only_allowed:
            raise AnswerError(
                400, "Bookie is disabled ReadOnly mode, cannot transit to readOnly mode"
            )
        running.mode.set_read_only(wanted)
        _log.info("the operator has set the mode", read_only=wanted)
        return json_answer({"readOnly": running.mode.read_only})

    async def is_ready(self, request: Request) -> Response:
        self._host.running()
        return text_answer("OK")

    async def info(self, request: Request) -> Response:
        space = self._host.running().bookie.space()
        return json_answer({"freeSpace": space.free_bytes, "totalSpace": space.total_bytes})

    async def sanity(self, request: Request) -> Response:
        """Whether entries come back that are written here; one such check at a time."""
        if self._host.is_bookie and self._host.running().mode.read_only:
            return json_answer({"passed": False, "readOnly": True})
        if self._is_trying:
            raise AnswerError(429, "a sanity check is under way: wait for it")
        self._is_trying = True
        try:
            process = self._host.process
            await try_bookie(
                str(process.metadata_uri),
                self._host.bookie_id,
                seconds=_SANITY_SECONDS,
                security=process.recovery.security,
            )
        except LedgerError as error:
            _log.warning("sanity check failed", error=error)
            return json_answer({"passed": False, "readOnly": False})
        finally:
            self._is_trying = False
        return json_answer({"passed": True, "readOnly": False})

    # ------------------------------------------------------------------ files

    async def last_log_mark(self, request: Request) -> Response:
        """How far the journal is written to entry logs, in each ledger directory."""
        answer = {}
        for path in self._settings().storage.ledger_directories:
            slot = read_slot(OSFileSystem(), os.path.join(path, CURRENT))
            file_id, offset = (slot.journal_file_id, slot.block_offset) if slot else (0, 0)
            answer[f"LastLogMark: Journal Id - {file_id}({file_name(file_id)})"] = f"Pos - {offset}"
        return json_answer(answer)

    async def files(self, request: Request) -> Response:
        kind = parameter(request, "file_type") or ""
        storage = self._settings().storage
        places = [
            os.path.join(path, CURRENT) for path in (*storage.journals, *storage.ledger_directories)
        ]
        found = await trio.to_thread.run_sync(
            lambda: list(files_on_disk(OSFileSystem(), list(filter(os.path.isdir, places))))
        )
        shown = [_FILES[kind]] if kind in _FILES else _FILES.values()
        return json_answer(
            {
                title: "".join(
                    f"{os.path.basename(file.path)}\t" for file in found if file.kind in kinds
                )
                for title, kinds in shown
            }
        )

    async def expand_storage(self, request: Request) -> Response:
        """New directories are taken at a start only; whether the file names any is said here."""
        running = self._host.running()
        used = set(running.settings.storage.ledger_directories)
        source = self._host.settings.source
        path = None if source == "environment" else source
        wanted = set(bookie_settings(Settings.read(path))[0].storage.ledger_directories)
        if wanted == used:
            return text_answer("Success expand storage")
        new = ", ".join(sorted(wanted - used)) or "none, and some are missing"
        raise AnswerError(
            409,
            f"new ledger directories ({new}) are taken at the next start: set "
            "allowStorageExpansion=true and restart the bookie",
        )

    def _settings(self) -> BookieSettings:
        """Of this bookie; beside autorecovery, of the one that the same file describes."""
        if self._host.bookie is not None:
            return self._host.bookie.settings
        if self._host.is_bookie:
            self._host.running()
        try:
            return bookie_settings(self._host.settings)[0]
        except LedgerError as error:
            raise AnswerError(404, f"the configuration here describes no bookie: {error}") from None
