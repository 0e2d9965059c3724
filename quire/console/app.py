"""The console's HTTP: one page, its data, its live feed, and the fault buttons.

GET shows, POST reads entries (the password is in the body, where no log sees it) or inflicts a
fault. Who may do what is the guard's to decide. Every answer forbids the browser to run, load or
send anything that does not come from here: payloads are whatever somebody wrote.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metadata.model import InvalidMetadataError
from metadata.store import StoreUnavailableError
from metadata.update import LedgerGoneError
from quire.console.faults import Fault, FaultPanel, FaultRefusedError, UnknownBookieError
from quire.console.feed import Feed, TooManyWatchersError, Watcher
from quire.console.ledger_view import ENTRIES_MAX, PAGE_MAX, LedgerView, SlowReadError
from runtime import logs
from runtime.http_guard import Guard, Guarded
from runtime.logs import Secret
from wire.errors import LedgerError, UnauthorizedError
from wire.types import BookieId

_log = logs.get("quire.console")

_ID_MAX: Final = 2**63 - 1
_PASSWORD_MAX: Final = 64 << 10
_API: Final = "/console/"
#: A page that hears nothing for longer than this asks again; so does whoever stands in between.
_HEARTBEAT_SECONDS: Final = 5.0
_STATIC: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("main", "feed", "format", "charts", "bookies", "ledgers", "browser", "dom")
    },
}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATUS: Final[tuple[tuple[type[LedgerError], int], ...]] = (
    (LedgerGoneError, 404),
    (UnknownBookieError, 404),
    (UnauthorizedError, 403),
    (FaultRefusedError, 409),
    (TooManyWatchersError, 503),
    (StoreUnavailableError, 503),
    (SlowReadError, 504),
    (InvalidMetadataError, 502),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What the page is about."""

    uri: str
    instance_id: str | None
    feed: Feed
    ledgers: LedgerView
    panel: FaultPanel | None = None


def console_app(
    console: Console,
    *,
    token: Secret | None,
    names: frozenset[str] = frozenset(),
    is_private: bool = False,
) -> ASGIApp:
    """The application, behind its guard. With `is_private` reading needs the token, too."""
    guard = Guard(token=token, names=names)
    handlers = _Handlers(console, needs_token=token is not None, is_private=is_private)
    app = Starlette(
        routes=[
            *(Route(path, _page(*content)) for path, content in _STATIC.items()),
            Route(f"{_API}about", handlers.about),
            Route(f"{_API}events", _Events(console.feed), methods=["GET"]),
            Route(f"{_API}ledgers", handlers.list_ledgers),
            Route(f"{_API}ledgers/{{ledger}}", handlers.show_ledger),
            Route(f"{_API}ledgers/{{ledger}}/entries", handlers.entries, methods=["POST"]),
            Route(f"{_API}bookies/{{bookie}}/faults", handlers.inflict, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _on_http_error, LedgerError: _on_ledger_error},
    )
    guarded: ASGIApp = Guarded(app, guard)
    if is_private:
        assert token is not None, "what is private has a key"
        guarded = _Private(guarded)
    return _Headed(guarded)


class _Headed:
    """Adds our headers to every answer, refusals included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers]}
            await send(message)

        await self._app(scope, receive, headed)


class _Private:
    """What shows data needs the token here; the page itself, which asks for it, does not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = any(name.lower() == b"authorization" for name, _ in scope["headers"])
        if scope["path"].startswith(_API) and not given:
            response = _problem(401, "a token is needed: open the address that names it")
            response.headers["www-authenticate"] = 'Bearer realm="quire"'
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


# ---------------------------------------------------------------------- the page


def _page(name: str, content_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = files("quire.console").joinpath("static", name).read_bytes()

    async def page(request: Request) -> Response:
        return Response(content, headers={"content-type": content_type})

    return page


def _problem(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    # What the framework says by itself, in words that tell more.
    text = {
        "Not Found": f"{what}: there is no such page",
        "Method Not Allowed": f"{what}: another method is needed",
    }
    response = _problem(error.status_code, text.get(error.detail, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _on_ledger_error(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 502)
    return _problem(status, str(error))


# ---------------------------------------------------------------------- its data


class _Handlers:
    def __init__(self, console: Console, *, needs_token: bool, is_private: bool) -> None:
        self._console = console
        self._about = {
            "cluster": console.uri,
            "instanceId": console.instance_id,
            "hasFaults": console.panel is not None,
            "needsToken": needs_token,
            "isPrivate": is_private,
        }

    async def about(self, request: Request) -> Response:
        return JSONResponse({**self._about, "history": self._console.feed.history})

    async def list_ledgers(self, request: Request) -> Response:
        query = request.query_params
        before = _number("before", query["before"], 0, _ID_MAX) if "before" in query else None
        count = _number("count", query.get("count", "50"), 1, PAGE_MAX)
        return JSONResponse(await self._console.ledgers.page(before=before, count=count))

    async def show_ledger(self, request: Request) -> Response:
        return JSONResponse(await self._console.ledgers.detail(_ledger(request)))

    async def entries(self, request: Request) -> Response:
        ledger_id = _ledger(request)
        body = await _body(request)
        password = body.get("password", "")
        if not isinstance(password, str) or len(password) > _PASSWORD_MAX:
            raise HTTPException(400, "password: want a text")
        first = _number("first", body.get("first", 0), 0, _ID_MAX)
        count = _number("count", body.get("count", 50), 1, ENTRIES_MAX)
        _log.info("entries asked for", ledger=ledger_id, first=first, client=_client(request))
        found = await self._console.ledgers.entries(
            ledger_id, password=password.encode(errors="replace"), first=first, count=count
        )
        return JSONResponse(found)

    async def inflict(self, request: Request) -> Response:
        panel = self._console.panel
        if panel is None:
            raise HTTPException(404, "faults are for local clusters: `quire up --console`")
        wanted = (await _body(request)).get("fault")
        try:
            fault = Fault(wanted)
        except ValueError:
            names = ", ".join(fault.value for fault in Fault)
            raise HTTPException(400, f"fault: want one of {names}") from None
        bookie_id = BookieId(request.path_params["bookie"])
        await panel.inflict(bookie_id, fault)
        _log.info("fault inflicted", bookie=bookie_id, fault=fault.value, client=_client(request))
        process = panel.states()[bookie_id]
        return JSONResponse({"bookie": bookie_id, "state": process.state, "pid": process.pid})


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def _ledger(request: Request) -> int:
    return _number("ledger", request.path_params["ledger"], 0, _ID_MAX)


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be application/json")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return body


def _number(name: str, given: object, smallest: int, largest: int) -> int:
    """A whole number, as text or as a number: ids have more bits than a browser's numbers."""
    number = None
    if isinstance(given, int) and not isinstance(given, bool):
        number = given
    elif isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 19:
        number = int(given)
    if number is None or not smallest <= number <= largest:
        raise HTTPException(400, f"{name}: want a whole number from {smallest} to {largest}")
    return number


# ---------------------------------------------------------------------- the live feed


class _Events:
    """Server-sent events: a snapshot as `data:` for each look, until the page goes away."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        ledger_id = None
        if "ledger" in request.query_params:
            try:
                ledger_id = _number("ledger", request.query_params["ledger"], 0, _ID_MAX)
            except HTTPException as error:
                await _problem(error.status_code, str(error.detail))(scope, receive, send)
                return
        try:
            with self._feed.watching(ledger_id) as watcher:
                await _stream(watcher, receive, send)
        except TooManyWatchersError as error:
            response = _problem(503, str(error))
            response.headers["retry-after"] = "5"
            await response(scope, receive, send)


async def _stream(watcher: Watcher, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
        while True:
            body = b": nothing yet\n\n"
            with trio.move_on_after(_HEARTBEAT_SECONDS):
                snapshot = await watcher.next()
                body = b"data: " + json.dumps(snapshot, allow_nan=False).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
