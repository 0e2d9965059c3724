"""Admin paths on re-replication: what lacks copies, who audits, and orders to restore."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from autorecovery import operators
from autorecovery.context import RecoveryContext
from autorecovery.operators_bookie import decommission, recover
from metadata.model import check_bookie_id
from metadata.rereplication_settings import AlreadyDisabledError, AlreadyEnabledError
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
from wire.types import BookieId

_DELAY_MAX: Final = 2**31 - 1


def recovery_pages(host: AdminHost) -> dict[str, Page]:
    pages = RecoveryPages(host)
    prefix = "/api/v1/autorecovery/"
    return {
        f"{prefix}status": Page({"GET": pages.status, "PUT": pages.set_status}),
        f"{prefix}bookie": Page({"PUT": pages.recover}),
        f"{prefix}list_under_replicated_ledger": Page({"GET": pages.under_replicated}),
        f"{prefix}who_is_auditor": Page({"GET": pages.auditor}),
        f"{prefix}trigger_audit": Page({"PUT": pages.trigger_audit}),
        f"{prefix}lost_bookie_recovery_delay": Page({"GET": pages.delay, "PUT": pages.set_delay}),
        f"{prefix}decommission": Page({"PUT": pages.decommission}),
    }


class RecoveryPages:
    def __init__(self, host: AdminHost) -> None:
        self._host = host

    async def status(self, request: Request) -> Response:
        context = await self._host.access.context()
        return json_answer({"enabled": await context.marks.settings.is_enabled()})

    async def set_status(self, request: Request) -> Response:
        """Whether the cluster restores copies. The same again is fine."""
        wanted = parameter(request, "enabled")
        if wanted is None:
            raise AnswerError(400, "Param 'enabled' not found: add ?enabled=true or ?enabled=false")
        if wanted not in ("true", "false"):
            raise AnswerError(400, f"enabled must be true or false, not {wanted[:100]!r}")
        context = await self._host.access.context()
        with suppress(AlreadyEnabledError, AlreadyDisabledError):
            await (operators.enable if wanted == "true" else operators.disable)(context)
        return json_answer({"enabled": await context.marks.settings.is_enabled()})

    async def under_replicated(self, request: Request) -> Response:
        """Ids, or with `printmissingreplica` the bookies that lack a copy of each."""
        context = await self._host.access.context()
        found = {
            mark.ledger_id: list(mark.missing)
            async for mark in operators.under_replicated(
                context,
                missing=_name(parameter(request, "missingreplica")),
                excluding=_name(parameter(request, "excludingmissingreplica")),
            )
        }
        if not found:
            raise AnswerError(404, "No under replicated ledgers found")
        if parameter(request, "printmissingreplica") is None:
            return json_answer(list(found))
        return json_answer({str(ledger_id): names for ledger_id, names in found.items()})

    async def auditor(self, request: Request) -> Response:
        found = await operators.who_is_auditor(await self._host.access.context())
        if found is None:
            raise AnswerError(404, "No auditor elected")
        return text_answer(f"Auditor: {found}")

    async def trigger_audit(self, request: Request) -> Response:
        try:
            await operators.trigger_audit(await self._host.access.context())
        except operators.RefusedError as error:
            raise AnswerError(404, str(error)) from None
        return text_answer("Success trigger audit.")

    async def delay(self, request: Request) -> Response:
        context = await self._host.access.context()
        found = await context.marks.settings.delay()
        if found is None:
            raise AnswerError(404, "lostBookieRecoveryDelay was never set: nobody has audited yet")
        return text_answer(f"lostBookieRecoveryDelay value: {found.seconds}")

    async def set_delay(self, request: Request) -> Response:
        missing = "Request body not found. Should contain delay_seconds"
        body = await body_object(request, missing=missing)
        if "delay_seconds" not in body:
            raise AnswerError(400, "Request body not contains delay_seconds.")
        wanted = body["delay_seconds"]
        if type(wanted) is not int or not 0 <= wanted <= _DELAY_MAX:
            raise AnswerError(400, f"delay_seconds must be a whole number from 0 to {_DELAY_MAX}")
        context = await self._host.access.context()
        await context.marks.settings.set_delay(wanted)
        return text_answer(f"Success set lostBookieRecoveryDelay to {wanted}")

    # ------------------------------------------------------------------ long orders

    async def recover(self, request: Request) -> Response:
        """Restore here and now what a stopped bookie held; answered at once."""
        body = await body_object(request, missing="No request body provide.")
        _refuse_others(body, "bookie_src", "delete_cookie")
        sources = body.get("bookie_src")
        if not isinstance(sources, list) or len(sources) != 1 or not isinstance(sources[0], str):
            raise AnswerError(400, 'bookie_src must be a list of one bookie: ["host:port"]')
        delete_cookie = flag_of(body, "delete_cookie") or False
        bookie_id = check_bookie_id(sources[0])
        context = await self._context_for(bookie_id)
        work = partial(recover, context, bookie_id, delete_cookie=delete_cookie)
        self._host.orders.begin("recover", bookie_id, work)
        return text_answer("Success send recovery request command.")

    async def decommission(self, request: Request) -> Response:
        """Have the workers of the cluster restore what a stopped bookie held, then forget it."""
        body = await body_object(request, missing="No request body provide.")
        _refuse_others(body, "bookie_src", "delete_cookie")
        source = body.get("bookie_src")
        if source is None:
            raise AnswerError(400, "Request body not contains bookie_src.")
        if not isinstance(source, str):
            raise AnswerError(400, 'bookie_src must be one bookie: "host:port"')
        bookie_id = check_bookie_id(source)
        delete_cookie = _flag_or_text(body, "delete_cookie")
        context = await self._context_for(bookie_id)
        if not await context.marks.settings.is_enabled():
            raise AnswerError(409, "re-replication is disabled: enable it first")
        work = partial(decommission, context, bookie_id, delete_cookie=delete_cookie)
        self._host.orders.begin("decommission", bookie_id, work)
        return text_answer(f"Success send decommission Bookie command {bookie_id}")

    async def _context_for(self, bookie_id: BookieId) -> RecoveryContext:
        context = await self._host.access.context()
        if bookie_id in context.client.bookies().all:
            raise AnswerError(409, f"bookie {bookie_id} is running: stop it first")
        return context


def _name(text: str | None) -> BookieId | None:
    """A name to compare with; one that cannot be is no error, it matches nothing."""
    return None if text is None else BookieId(text)


def _flag_or_text(body: dict[str, object], name: str) -> bool:
    """Apache wants "true" as a text here, and true elsewhere: both will do."""
    found = body.get(name, False)
    if found in ("true", "false"):
        return found == "true"
    return flag_of(body, name) or False


def _refuse_others(body: dict[str, object], *known: str) -> None:
    for name in body:
        if name not in known:
            raise AnswerError(400, f"{name[:100]!r} is not known here: give {' and '.join(known)}")
