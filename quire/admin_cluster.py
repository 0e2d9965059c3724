"""Admin paths on the cluster as a whole: its bookies, their disks, its state in numbers."""

from __future__ import annotations

from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from autorecovery.context import RecoveryContext
from ledger_client.bookie_info import BookieSpace, ask_bookie_info
from quire.admin_host import AdminHost
from quire.admin_http import AnswerError, Page, is_true, json_answer, parameter
from quire.cluster_info import overview
from wire.errors import LedgerError
from wire.types import BookieId

_ASKED_AT_ONCE: Final = 16
_ASK_SECONDS: Final = 10.0
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


def cluster_pages(host: AdminHost) -> dict[str, Page]:
    pages = ClusterPages(host)
    return {
        "/api/v1/bookie/list_bookies": Page({"GET": pages.bookies}),
        "/api/v1/bookie/list_bookie_info": Page({"GET": pages.spaces}),
        "/api/v1/bookie/cluster_info": Page({"GET": pages.overview}),
    }


class ClusterPages:
    def __init__(self, host: AdminHost) -> None:
        self._host = host

    async def bookies(self, request: Request) -> Response:
        """The writable ones, or with `type=ro` the read-only ones."""
        context = await self._host.access.context()
        found = context.client.bookies()
        wanted = found.read_only if parameter(request, "type") == "ro" else found.writable
        names: dict[str, str | None] = dict.fromkeys(sorted(wanted))
        if is_true(request, "print_hostnames"):
            for bookie_id in wanted:
                try:
                    names[bookie_id] = found.endpoint(bookie_id).host
                except LedgerError:
                    names[bookie_id] = "UNKNOWN"
        return json_answer(names)

    async def spaces(self, request: Request) -> Response:
        """What each bookie says about its disks; those that do not answer are left out."""
        spaces = await _spaces(await self._host.access.context())
        if not spaces:
            raise AnswerError(404, "No bookie info: no bookie of the cluster answers")
        answer = {
            space.bookie_id: f": {_free_and_total(space.free_bytes, space.total_bytes)},"
            for space in spaces
        }
        free = sum(space.free_bytes for space in spaces)
        total = sum(space.total_bytes for space in spaces)
        return json_answer(answer | {"ClusterInfo: ": _free_and_total(free, total)})

    async def overview(self, request: Request) -> Response:
        context = await self._host.access.context()
        return json_answer(await overview(context.store, context.cluster.root, context.marks))


async def _spaces(context: RecoveryContext) -> list[BookieSpace]:
    found: dict[BookieId, BookieSpace] = {}
    wanted = sorted(context.client.bookies().all)
    limit = trio.CapacityLimiter(_ASKED_AT_ONCE)

    async def ask(bookie_id: BookieId) -> None:
        async with limit:
            try:
                found[bookie_id] = await ask_bookie_info(context.client, bookie_id)
            except LedgerError:
                return

    with trio.move_on_after(_ASK_SECONDS):
        async with trio.open_nursery() as nursery:
            for bookie_id in wanted:
                nursery.start_soon(ask, bookie_id)
    return [found[bookie_id] for bookie_id in wanted if bookie_id in found]


def _free_and_total(free: int, total: int) -> str:
    return f"{{Free: {_size(free)}, Total: {_size(total)}}}"


def _size(count: int) -> str:
    """`72360996864(72.36GB)`: cut after three places, not rounded, and without idle zeros."""
    power = 0
    while count >= 1000 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    thousandths = count * 1000 // 1000**power
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}".rstrip("0").rstrip(".")
    return f"{count}({text}{_UNITS[power]})"
