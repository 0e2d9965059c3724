"""The form of the admin paths: a table of pages, answers as Apache prints them, errors in one line.

A page is a path and the methods it has. What a page raises becomes an answer here: an error of
ours with its message, and with the status that says whose turn it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from autorecovery.operators import RefusedError
from ledger_client.errors import InvalidEntryIdError, InvalidLedgerIdError
from metadata.model import InvalidMetadataError
from metadata.store import StoreUnavailableError
from metadata.update import LedgerGoneError
from runtime import logs
from wire.errors import LedgerError, TransientError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: A page has this long to find its answer; what it streams then has the time it needs.
PAGE_SECONDS: Final = 60.0
#: Text is sent in pieces of about this size.
_PIECE_CHARACTERS: Final = 64 << 10

_log = logs.get("quire.admin")

Handler = Callable[[Request], Awaitable[Response]]


class AnswerError(LedgerError):
    """An error with a status of its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Page:
    """What a path does for which method, and what is said about the others."""

    handlers: Mapping[str, Handler]
    wrong_method: str = ""

    @property
    def allowed(self) -> str:
        more = ("HEAD",) if "GET" in self.handlers else ()
        return ", ".join(sorted((*self.handlers, *more)))

    def refusal(self) -> str:
        if self.wrong_method:
            return self.wrong_method
        return f"Not found method. Should be {' or '.join(self.handlers)} method"


class AdminApp:
    """The table as an ASGI application. Slashes too many are forgiven, as Apache does."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._answer(request)
        if request.method not in ("GET", "HEAD"):  # who has changed what should be known later
            client = request.client.host if request.client else ""
            status = response.status_code
            _log.info(
                "asked for", method=request.method, path=request.scope["path"],
                query=request.scope["query_string"].decode("latin-1"), client=client, status=status,
            )  # fmt: skip
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = re.sub("/+", "/", request.scope["path"]).rstrip("/")
        page = self._pages.get(path)
        if page is None:
            return error_answer(f"there is no {path[:200] or '/'} here: see docs/http.md", 404)
        method = "GET" if request.method == "HEAD" else request.method
        handler = page.handlers.get(method)
        if handler is None:
            return text_answer(page.refusal(), 405, {"Allow": page.allowed})
        try:
            with trio.fail_after(PAGE_SECONDS):
                return await handler(request)
        except trio.TooSlowError:
            return text_answer(f"no answer was found within {PAGE_SECONDS:g} s", 504)
        except LedgerError as error:
            status = status_of(error)
            log = _log.warning if status >= 500 else _log.debug
            log("answered with an error", path=path, status=status, reason=str(error))
            return error_answer(str(error), status)


def status_of(error: LedgerError) -> int:
    """Whose turn it is: the caller's (4xx) or ours (5xx), and whether trying again may help."""
    if isinstance(error, AnswerError):
        return error.status
    for kinds, status in _STATUSES:
        if isinstance(error, kinds):
            return status
    return 500


_STATUSES: Final[tuple[tuple[tuple[type[LedgerError], ...], int], ...]] = (
    ((LedgerGoneError,), 404),
    ((InvalidLedgerIdError, InvalidEntryIdError, InvalidMetadataError), 400),
    ((RefusedError,), 409),
    ((StoreUnavailableError, TransientError), 503),
)


# ---------------------------------------------------------------------- answers


def text_answer(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="text/plain")


def error_answer(text: str, status: int) -> Response:
    """One line. It may repeat what was sent, in which JSON allows what no encoding can carry."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text_answer("".join(shown), status)


def json_answer(value: object, status: int = 200) -> Response:
    return Response(json_text(value), status, media_type="application/json")


def json_text(value: object) -> str:
    """As Apache prints it: two spaces, a space before the colon, and an empty object has one."""
    if value == {} and isinstance(value, dict):
        return "{ }"
    return json.dumps(value, indent=2, separators=(",", " : "), ensure_ascii=False)


async def object_answer(members: AsyncIterator[tuple[str, object]]) -> Response:
    """An object that may be long, sent while it is being found.

    The first piece is awaited here, so that an error at the beginning still has its status.
    """
    pieces = _pieces(members)
    first = await anext(pieces)

    async def all_pieces() -> AsyncIterator[str]:
        yield first
        async for piece in pieces:
            yield piece

    return StreamingResponse(all_pieces(), media_type="application/json")


async def _pieces(members: AsyncIterator[tuple[str, object]]) -> AsyncIterator[str]:
    text, is_first = "{", True
    async for name, value in members:
        member = json.dumps({name: value}, indent=2, separators=(",", " : "), ensure_ascii=False)
        text += ("" if is_first else ",") + member.removeprefix("{").removesuffix("\n}")
        is_first = False
        if len(text) >= _PIECE_CHARACTERS:
            yield text
            text = ""
    yield text + (" }" if is_first else "\n}")


# ---------------------------------------------------------------------- what was sent


async def body_object(request: Request, *, missing: str | None) -> dict[str, Any]:
    """The object in the body. Without a body an empty one, or the refusal `missing`."""
    body = await request.body()
    if not body.strip():
        if missing is not None:
            raise AnswerError(400, missing)
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AnswerError(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise AnswerError(400, "the body must be a JSON object")
    return found


def flag_of(body: Mapping[str, Any], name: str) -> bool | None:
    """A member that is true or false, or is not there."""
    found = body.get(name)
    if found is None or isinstance(found, bool):
        return found
    raise AnswerError(400, f"{name} must be true or false, not {_shown(found)}")


def parameter(request: Request, name: str) -> str | None:
    """The last one counts, if it was given twice."""
    found = request.query_params.getlist(name)
    return found[-1] if found else None


def number_parameter(request: Request, name: str) -> int | None:
    found = parameter(request, name)
    if found is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,19}", found):
        raise AnswerError(400, f"{name} must be a whole number, not {_shown(found)}")
    return int(found)


def is_true(request: Request, name: str) -> bool:
    """Only `true` is; Apache knows no other spelling."""
    return parameter(request, name) == "true"


def _shown(value: object) -> str:
    return json.dumps(value)[:100]
