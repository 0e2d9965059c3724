"""The table of pages without a network: statuses, forms, limits, a bookie that is not there yet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing
from starlette.requests import Request
from starlette.responses import Response

from autorecovery.operators import RefusedError
from autorecovery.operators_bookie import BookieReport
from autorecovery.settings import process_settings
from ledger_client.errors import InvalidLedgerIdError
from metadata.store import ConnectionLostError
from metadata.update import LedgerGoneError
from quire import admin_host
from quire.admin import all_pages
from quire.admin_host import ORDERS_MAX, AdminHost, Orders
from quire.admin_http import AdminApp, AnswerError, Page, json_answer, object_answer
from runtime.config import Settings
from runtime.metrics import Registry
from runtime.properties import parse_properties
from wire.errors import BookieUnavailableError, LedgerError
from wire.types import BookieId


async def ask(app: Any, path: str, method: str = "GET", body: bytes = b"") -> tuple[int, str]:
    sent: list[dict[str, Any]] = []
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await trio.sleep_forever()
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "headers": [],
        "asgi": {"version": "3.0"},
    }  # fmt: skip
    with trio.fail_after(1000):
        await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], text.decode()


def app_that(answers: Callable[[], Any]) -> AdminApp:
    async def handler(request: Request) -> Response:
        return json_answer(answers())

    return AdminApp({"/page": Page({"GET": handler})})


def failing(error: Exception) -> AdminApp:
    def fail() -> object:
        raise error

    return app_that(fail)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LedgerGoneError("gone"), 404),
        (InvalidLedgerIdError("bad"), 400),
        (RefusedError("no"), 409),
        (ConnectionLostError("away"), 503),
        (BookieUnavailableError("away"), 503),
        (AnswerError(429, "later"), 429),
        (LedgerError("else"), 500),
    ],
)
async def test_errors_of_ours_are_a_line_with_a_status(error: LedgerError, status: int) -> None:
    assert await ask(failing(error), "/page") == (status, str(error))


async def test_error_that_repeats_what_was_sent_is_one_line_that_can_be_encoded() -> None:
    """Found by fuzzing: half a surrogate pair is text to JSON, and to no encoding."""
    sent = json.loads('"a\\ud800\\nb é"')
    assert await ask(failing(AnswerError(400, sent)), "/page") == (400, "a\\ud800\\nb é")
    status, text = await ask(app_that(dict), "/a\r\nb")
    assert (status, len(text.splitlines())) == (404, 1)


async def test_bug_is_not_answered_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await ask(failing(ZeroDivisionError()), "/page")


@pytest.mark.parametrize("path", ["/page", "/page/", "//page", "/page//"])
async def test_slashes_too_many_are_forgiven(path: str) -> None:
    assert await ask(app_that(lambda: {"a": 1}), path) == (200, '{\n  "a" : 1\n}')


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/Page", 404), ("PUT", "/page", 405), ("HEAD", "/page", 200)],
)
async def test_path_and_method_must_fit(method: str, path: str, status: int) -> None:
    assert (await ask(app_that(dict), path, method))[0] == status


async def test_page_that_finds_no_answer_ends(autojump_clock: trio.testing.MockClock) -> None:
    async def handler(request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError

    app = AdminApp({"/page": Page({"GET": handler})})
    status, text = await ask(app, "/page")
    assert (status, len(text.splitlines())) == (504, 1)


@pytest.mark.parametrize("count", [0, 1, 2, 10_000])
async def test_long_object_is_sent_in_pieces_and_is_json(count: int) -> None:
    async def members() -> AsyncIterator[tuple[str, object]]:
        for number in range(count):
            yield str(number), {"text": "é" * 10, "more": [None]}

    async def handler(request: Request) -> Response:
        return await object_answer(members())

    status, text = await ask(AdminApp({"/page": Page({"GET": handler})}), "/page")
    assert status == 200
    assert len(json.loads(text)) == count
    if not count:
        assert text == "{ }"


async def test_error_at_the_beginning_of_a_long_object_has_its_status() -> None:
    async def members() -> AsyncIterator[tuple[str, object]]:
        raise LedgerGoneError("no ledger")
        yield "", None  # type: ignore[unreachable]

    async def handler(request: Request) -> Response:
        return await object_answer(members())

    app = AdminApp({"/page": Page({"GET": handler})})
    assert await ask(app, "/page") == (404, "no ledger")


# ---------------------------------------------------------------------- a process


def host_of(*, is_bookie: bool) -> AdminHost:
    text = "metadataServiceUri=zk://127.0.0.1:1/ledgers\nbookieId=b\n"
    settings = Settings(parse_properties(text, "test"))
    return AdminHost(settings, process_settings(settings), Registry(), is_bookie=is_bookie)


async def test_bookie_that_starts_is_alive_and_not_ready() -> None:
    host = host_of(is_bookie=True)
    app = AdminApp(all_pages(host))
    assert await ask(app, "/heartbeat") == (200, "OK\n")
    for path in ("is_ready", "state", "info", "gc", "gc_details", "last_log_mark"):
        assert await ask(app, f"/api/v1/bookie/{path}") == (503, "the bookie is starting")
    async with host.beside(None):  # type: ignore[arg-type]
        pass
    assert await ask(app, "/api/v1/bookie/is_ready") == (503, "the bookie is stopping")


async def test_autorecovery_says_that_it_is_no_bookie() -> None:
    app = AdminApp(all_pages(host_of(is_bookie=False)))
    status, text = await ask(app, "/api/v1/bookie/state")
    assert (status, text) == (404, "this process is autorecovery: ask a bookie")
    status, text = await ask(app, "/api/v1/bookie/list_disk_file")
    assert status == 404
    assert "describes no bookie" in text


async def test_metadata_that_cannot_be_reached_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **more: object) -> Any:
        raise ConnectionLostError("nobody answers")

    monkeypatch.setattr(admin_host, "opened_context", broken)
    host = host_of(is_bookie=True)
    async with host.opened():
        status, text = await ask(AdminApp(all_pages(host)), "/api/v1/ledger/list")
    assert status == 503
    assert "nobody answers" in text


async def test_orders_are_few_and_one_for_a_bookie() -> None:
    async with trio.open_nursery() as nursery:
        orders, go_on = Orders(nursery), trio.Event()

        async def work() -> BookieReport:
            await go_on.wait()
            return BookieReport(BookieId("b"))

        for number in range(ORDERS_MAX):
            orders.begin("recover", BookieId(f"b{number}"), work)
        with pytest.raises(AnswerError, match="under way") as same:
            orders.begin("recover", BookieId("b0"), work)
        with pytest.raises(AnswerError, match="wait for one") as more:
            orders.begin("recover", BookieId("other"), work)
        assert (same.value.status, more.value.status) == (409, 429)
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        orders.begin("recover", BookieId("b0"), work)


async def test_order_that_fails_is_told_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> BookieReport:
        raise RefusedError("bookie b is running")

    async with trio.open_nursery() as nursery:
        Orders(nursery).begin("decommission", BookieId("b"), work)
    assert any("order failed" in record.message for record in caplog.records)
