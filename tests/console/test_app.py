"""The console's HTTP without a cluster: what is served, to whom, and what bad input gets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from metadata.store import StoreUnavailableError
from metadata.update import LedgerGoneError
from quire.console.app import Console, console_app
from quire.console.cluster_view import ClusterView
from quire.console.faults import (
    Fault,
    FaultPanel,
    FaultRefusedError,
    ProcessState,
    UnknownBookieError,
)
from quire.console.feed import Feed
from quire.console.ledger_view import LedgerView
from runtime.http import serving_http
from runtime.logs import Secret
from runtime.service import background
from tests.console.requests import ask, events
from wire.errors import UnauthorizedError
from wire.types import BookieId

TOKEN = "a-token-of-some-length"
PAGES = ("/", "/console.css", "/main.js", "/icon.svg")
BOOKIE = BookieId("127.0.0.1:3181")


class Cluster:
    async def look(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"bookies": [], "totals": {"adds": None}, "lost": []}

    async def look_at_recovery(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {}


class Ledgers:
    def __init__(self) -> None:
        self.asked: list[object] = []

    async def page(self, *, before: int | None, count: int) -> dict[str, Any]:
        self.asked.append((before, count))
        return {"ledgers": []}

    async def detail(self, ledger_id: int) -> dict[str, Any]:
        if ledger_id == 404:
            raise LedgerGoneError("ledger 404 does not exist")
        if ledger_id == 503:
            raise StoreUnavailableError("ZooKeeper is away")
        return {"id": str(ledger_id)}

    async def entries(
        self, ledger_id: int, *, password: bytes, first: int, count: int
    ) -> dict[str, Any]:
        self.asked.append((ledger_id, password, first, count))
        if password == b"wrong word":
            raise UnauthorizedError("another password")
        return {"entries": []}


class Panel:
    def __init__(self) -> None:
        self.done: list[tuple[str, Fault]] = []

    def states(self) -> Mapping[BookieId, ProcessState]:
        return {BOOKIE: ProcessState(state="paused", pid=7, buttons={})}

    async def inflict(self, bookie_id: BookieId, fault: Fault) -> None:
        if bookie_id != BOOKIE:
            raise UnknownBookieError(f"{bookie_id} is no bookie of this cluster")
        if fault is Fault.REVIVE:
            raise FaultRefusedError("nothing is wrong with it")
        self.done.append((bookie_id, fault))


class Served:
    def __init__(self, url: str, feed: Feed, ledgers: Ledgers, panel: Panel) -> None:
        self.url = url
        self.feed = feed
        self.ledgers = ledgers
        self.panel = panel


@asynccontextmanager
async def served(
    *, token: str | None = None, faults: bool = True, is_private: bool = False, watchers: int = 32
) -> AsyncIterator[Served]:
    ledgers, panel = Ledgers(), Panel()
    feed = Feed(
        cast(ClusterView, Cluster()),
        cast(LedgerView, ledgers),
        watchers_max=watchers,
        sample_seconds=0.02,
    )
    console = Console(
        uri="zk://127.0.0.1:2181/ledgers",
        instance_id="an id",
        feed=feed,
        ledgers=cast(LedgerView, ledgers),
        panel=cast(FaultPanel, panel) if faults else None,
    )
    app = console_app(
        console, token=None if token is None else Secret(token), is_private=is_private
    )
    async with (
        background(feed.run),
        serving_http(app, host="127.0.0.1", port=0, grace_seconds=0.05) as url,
    ):
        yield Served(url, feed, ledgers, panel)


# ---------------------------------------------------------------------- the page


async def test_page_and_its_parts_are_served_with_strict_headers() -> None:
    async with served() as console:
        for path in PAGES:
            answer = await ask("GET", console.url + path)
            assert answer.status == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe-inline" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        html = (await ask("GET", console.url + "/")).body.decode()
        refused = await ask("GET", console.url + "/nowhere")
        assert "content-security-policy" in refused.headers
    assert "style=" not in html
    assert "onclick" not in html
    assert html.count("<script") == 1
    assert 'src="/main.js"' in html


async def test_every_module_that_the_page_imports_is_served() -> None:
    async with served() as console:
        seen, ahead = set(), ["/main.js"]
        while ahead:
            path = ahead.pop()
            seen.add(path)
            answer = await ask("GET", console.url + path)
            assert answer.status == 200, path
            for line in answer.body.decode().splitlines():
                assert "innerHTML" not in line, f"{path}: {line}"
                if line.startswith("import ") or ' from "./' in line:
                    name = "/" + line.rpartition("./")[2].partition('"')[0]
                    if name not in seen:
                        ahead.append(name)
    assert len(seen) == 8


# ---------------------------------------------------------------------- who may do what


async def test_token_is_needed_for_what_is_not_a_look() -> None:
    faults = f"/console/bookies/{BOOKIE}/faults"
    async with served(token=TOKEN) as console:
        assert (await ask("GET", f"{console.url}/console/about")).status == 200
        for path, body in ((faults, {"fault": "kill"}), ("/console/ledgers/1/entries", {})):
            missing = await ask("POST", console.url + path, body)
            assert missing.status == 401
            wrong = await ask("POST", console.url + path, body, token="another-token-than-that")
            assert wrong.status == 401
            assert (await ask("POST", console.url + path, body, token=TOKEN)).status == 200
    assert console.panel.done == [(BOOKIE, Fault.KILL)]


async def test_pages_of_other_sites_and_names_are_refused() -> None:
    body = {"fault": "kill"}
    async with served() as console:
        path = f"{console.url}/console/bookies/{BOOKIE}/faults"
        for headers in (
            {"Origin": "https://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            assert (await ask("POST", path, body, headers=headers)).status == 403
        form = {"Content-Type": "text/plain"}
        assert (await ask("POST", path, body, headers=form)).status == 415
        rebound = {"Host": "evil.example"}
        assert (await ask("GET", f"{console.url}/console/ledgers", headers=rebound)).status == 403
    assert not console.panel.done


async def test_private_console_shows_nothing_without_the_token() -> None:
    async with served(token=TOKEN, is_private=True) as console:
        assert (await ask("GET", f"{console.url}/")).status == 200
        for path in ("about", "events", "ledgers", "ledgers/1"):
            answer = await ask("GET", f"{console.url}/console/{path}")
            assert answer.status == 401
            assert "a token is needed" in answer.error
        about = await ask("GET", f"{console.url}/console/about", token=TOKEN)
        assert about.json["isPrivate"]


async def test_console_without_a_panel_has_no_faults() -> None:
    async with served(faults=False) as console:
        assert not (await ask("GET", f"{console.url}/console/about")).json["hasFaults"]
        answer = await ask("POST", f"{console.url}/console/bookies/x/faults", {"fault": "kill"})
        assert answer.status == 404
        assert "quire up --console" in answer.error


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/nowhere", None, 404, "there is no such page"),
        ("GET", "/../app.py", None, 404, "there is no such page"),
        ("POST", "/", b"", 405, "another method is needed"),
        ("DELETE", "/console/ledgers/1", None, 405, "another method is needed"),
        ("POST", "/console/events", b"", 405, "another method is needed"),
        ("GET", "/console/ledgers?count=0", None, 400, "count: want a whole number from 1 to 100"),
        ("GET", "/console/ledgers?count=1e2", None, 400, "count: want a whole number"),
        ("GET", "/console/ledgers?before=-1", None, 400, "before: want a whole number"),
        ("GET", "/console/ledgers/x", None, 400, "ledger: want a whole number"),
        ("GET", "/console/ledgers/9223372036854775808", None, 400, "ledger: want a whole number"),
        ("GET", "/console/ledgers/%D9%A1", None, 400, "ledger: want a whole number"),
        ("GET", "/console/ledgers/404", None, 404, "ledger 404 does not exist"),
        ("GET", "/console/ledgers/503", None, 503, "ZooKeeper is away"),
        ("GET", "/console/events?ledger=x", None, 400, "ledger: want a whole number"),
        ("POST", "/console/ledgers/1/entries", b"{", 400, "must be a JSON object"),
        ("POST", "/console/ledgers/1/entries", b"[" * 100_000, 400, "must be a JSON object"),
        ("POST", "/console/ledgers/1/entries", [1], 400, "must be a JSON object"),
        ("POST", "/console/ledgers/1/entries", {"first": -1}, 400, "first: want a whole number"),
        ("POST", "/console/ledgers/1/entries", {"first": True}, 400, "first: want a whole number"),
        ("POST", "/console/ledgers/1/entries", {"count": 101}, 400, "count: want a whole number"),
        ("POST", "/console/ledgers/1/entries", {"password": 1}, 400, "password: want a text"),
        ("POST", "/console/ledgers/1/entries", {"password": "wrong word"}, 403, "another password"),
        ("POST", f"/console/bookies/{BOOKIE}/faults", {"fault": "rm"}, 400, "want one of kill,"),
        ("POST", f"/console/bookies/{BOOKIE}/faults", {"fault": []}, 400, "want one of kill,"),
        ("POST", f"/console/bookies/{BOOKIE}/faults", {"fault": "revive"}, 409, "nothing is wrong"),
        ("POST", "/console/bookies/elsewhere/faults", {"fault": "kill"}, 404, "is no bookie"),
    ],
)
async def test_bad_input_gets_its_status_and_one_line(
    method: str, path: str, body: object, status: int, said: str
) -> None:
    async with served() as console:
        answer = await ask(method, console.url + path, body)
        assert answer.status == status
        assert said in answer.error


async def test_numbers_may_be_text_with_all_their_bits() -> None:
    biggest = str(2**63 - 1)
    async with served() as console:
        await ask("GET", f"{console.url}/console/ledgers?before={biggest}&count=100")
        body = {"first": biggest, "count": 1, "password": "wörd"}
        await ask("POST", f"{console.url}/console/ledgers/{biggest}/entries", body)
    entries = (2**63 - 1, "wörd".encode(), 2**63 - 1, 1)
    assert console.ledgers.asked == [(2**63 - 1, 100), entries]


async def test_password_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served() as console:
        path = f"{console.url}/console/ledgers/1/entries"
        for password in ("wrong word", "a right word"):
            answer = await ask("POST", path, {"password": password})
            assert password.encode() not in answer.body
    assert "word" not in caplog.text.replace("password", "")


# ---------------------------------------------------------------------- the feed


async def test_feed_sends_snapshots_until_the_page_goes() -> None:
    async with served() as console:
        async with events(console.url, "?ledger=17") as feed:
            first = await feed.next()
            assert first["ledger"] == {"id": "17"}
            assert (await feed.next())["number"] > first["number"]
            assert console.feed.watchers == 1
        while console.feed.watchers:  # noqa: ASYNC110 - the server notices in its own time
            await trio.sleep(0.005)
        await trio.testing.wait_all_tasks_blocked()  # a look under way may end, or be given up
        looks = console.feed.looks
        await trio.sleep(0.1)
        assert console.feed.looks == looks


async def test_too_many_watchers_are_told_to_come_later() -> None:
    async with served(watchers=2) as console, AsyncExitStack() as stack:
        for _ in range(2):
            await (await stack.enter_async_context(events(console.url))).next()
        refused = await ask("GET", f"{console.url}/console/events")
        assert refused.status == 503
        assert refused.headers["retry-after"] == "5"
        assert "2 pages watch already" in refused.error


async def test_watcher_that_never_reads_costs_no_memory() -> None:
    """The kernel's buffers fill, its sender waits; others go on."""
    async with served() as console, events(console.url), events(console.url) as other:
        for _ in range(20):
            await other.next()
        assert console.feed.watchers == 2
