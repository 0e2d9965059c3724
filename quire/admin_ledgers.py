"""Admin paths on ledgers: list, metadata, read, delete."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from autorecovery.context import RecoveryContext
from autorecovery.worker_repair import access_of
from ledger_client.reader import LedgerReader
from metadata.codec import encode_ledger_metadata
from metadata.model import LedgerMetadata
from metadata.update import LedgerGoneError
from quire.admin_host import AdminHost
from quire.admin_http import (
    AnswerError,
    Page,
    is_true,
    json_answer,
    number_parameter,
    object_answer,
    parameter,
)
from quire.shell_ledgers import record_of, records
from wire.types import ID_MAX, DigestType, LedgerId

LEDGERS_PER_PAGE: Final = 100
ENTRIES_PER_PAGE: Final = 1000


def ledger_pages(host: AdminHost) -> dict[str, Page]:
    pages = LedgerPages(host)
    return {
        "/api/v1/ledger/list": Page({"GET": pages.list}),
        "/api/v1/ledger/metadata": Page({"GET": pages.metadata}),
        "/api/v1/ledger/read": Page(
            {"GET": pages.read}, "Not found method. Should be GET method, with ledger_id provided"
        ),
        "/api/v1/ledger/delete": Page({"DELETE": pages.delete}),
    }


class LedgerPages:
    def __init__(self, host: AdminHost) -> None:
        self._host = host

    async def list(self, request: Request) -> Response:
        """All ids. With `print_metadata` what is recorded about them, all or a page of 100."""
        context = await self._host.access.context()
        if not is_true(request, "print_metadata"):
            return await object_answer(_listed(context))
        page = _page_of(request)
        return await object_answer(_recorded(context, page, decode=is_true(request, "decode_meta")))

    async def metadata(self, request: Request) -> Response:
        wanted = _ledger_id(request, "Not ledger found. Should provide ledger_id=<id>")
        context = await self._host.access.context()
        ledger = await context.client.ledgers.read(wanted)
        return json_answer({str(wanted): apache_record(ledger.metadata)})

    async def read(self, request: Request) -> Response:
        """Entries as text, or with `encoding=base64` as they are. A writer is left alone."""
        wanted = _ledger_id(request, "Not found method. Should be GET method, with ledger_id given")
        first = number_parameter(request, "start_entry_id") or 0
        last = number_parameter(request, "end_entry_id")
        page = _page_of(request)
        if first < 0 or (last is not None and last < -1):
            raise AnswerError(400, "entry ids begin with 0")
        if last is not None and 0 <= last < first:
            raise AnswerError(
                400, f"start_entry_id {first} lies behind end_entry_id {last}: nothing to read"
            )
        encoding = parameter(request, "encoding")
        if encoding not in (None, "text", "base64"):
            raise AnswerError(400, "encoding must be text or base64")
        reader = await self._open(wanted)
        end = reader.last_confirmed
        last = end if last is None or last < 0 else min(last, end)
        if page:
            first += (page - 1) * ENTRIES_PER_PAGE
            last = min(last, first + ENTRIES_PER_PAGE - 1)
        entries = _entries(reader, first, last, page=page, as_base64=encoding == "base64")
        return await object_answer(entries)

    async def _open(self, ledger_id: LedgerId) -> LedgerReader:
        """Whoever may ask here may read the record, and with it the password."""
        context = await self._host.access.context()
        ledger = await context.client.ledgers.read(ledger_id)
        reader = LedgerReader(context.client, ledger, access_of(ledger.metadata))
        await reader.read_last_confirmed()
        return reader

    async def delete(self, request: Request) -> Response:
        wanted = _ledger_id(request, "Not ledger found. Should provide ledger_id=<id>")
        ledgers = (await self._host.access.context()).client.ledgers
        await ledgers.read(wanted)  # one that is not there is no success
        await ledgers.delete(wanted)
        return json_answer(f"Deleted ledger: {wanted}")


def apache_record(metadata: LedgerMetadata) -> dict[str, object]:
    """A ledger's record as Apache prints it, but for the password, which stays where it is."""
    ensembles = {
        str(fragment.first_entry_id): [{"id": bookie_id} for bookie_id in fragment.ensemble]
        for fragment in metadata.fragments
    }
    record = record_of(metadata)
    return record | {
        "length": metadata.length if metadata.is_closed else 0,
        "lastEntryId": -1 if metadata.last_entry_id is None else metadata.last_entry_id,
        "ctime": -1 if metadata.ctime_ms is None else metadata.ctime_ms,
        "digestType": "MAC" if metadata.digest_type is DigestType.HMAC else record["digestType"],
        "password": "",
        "closed": metadata.is_closed,
        "allEnsembles": ensembles,
        "ctoken": metadata.creator_token or 0,
    }


async def _listed(context: RecoveryContext) -> AsyncIterator[tuple[str, object]]:
    async with aclosing(records(context.client.ledgers, read=False)) as walk:
        async for ledger_id, _ in walk:
            yield str(ledger_id), None


async def _recorded(
    context: RecoveryContext, page: int, *, decode: bool
) -> AsyncIterator[tuple[str, object]]:
    """Only the records of the page are read."""
    skipped, shown = (page - 1) * LEDGERS_PER_PAGE if page else 0, 0
    ledgers = context.client.ledgers
    async with aclosing(records(ledgers, read=False)) as walk:
        async for ledger_id, _ in walk:
            if skipped > 0:
                skipped -= 1
                continue
            if page and shown == LEDGERS_PER_PAGE:
                return
            shown += 1
            try:
                metadata = (await ledgers.read(ledger_id)).metadata
            except LedgerGoneError:  # deleted meanwhile
                continue
            yield str(ledger_id), apache_record(metadata) if decode else _raw(metadata)


def _raw(metadata: LedgerMetadata) -> str:
    """The record as it is stored, without the password; bytes that are no text are lost."""
    return encode_ledger_metadata(replace(metadata, password=b"")).decode("utf-8", "replace")


async def _entries(
    reader: LedgerReader, first: int, last: int, *, page: int, as_base64: bool
) -> AsyncIterator[tuple[str, object]]:
    if first <= last:
        entries = reader.read(first, last)
        while batch := await entries.next_batch():
            for entry in batch:
                if as_base64:
                    yield str(entry.id), base64.b64encode(entry.payload).decode()
                else:
                    yield str(entry.id), bytes(entry.payload).decode("utf-8", "replace")
    if page:
        yield "Entries for page: ", str(page)


def _ledger_id(request: Request, missing: str) -> LedgerId:
    found = number_parameter(request, "ledger_id")
    if found is None:
        raise AnswerError(400, missing)
    if not 0 <= found <= ID_MAX:
        raise AnswerError(400, f"no ledger can have the id {found}")
    return LedgerId(found)


def _page_of(request: Request) -> int:
    """Which page; 0 is all of them."""
    found = number_parameter(request, "page") or 0
    if found < 0:
        raise AnswerError(400, f"page {found} cannot be: they begin with 1, and 0 is all of them")
    return found
