"""Every captured request, sent to a cluster of ours: the same answer, or one that is said why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.admin import all_pages
from quire.admin_host import AdminHost
from runtime.config import Settings
from runtime.local_zookeeper import free_port
from tests.http.conftest import World, quire_daemon
from tests.http.deviations import DEVIATIONS, expected
from tests.http.exchanges import Answer, agrees, ask, captured, shape

DEAD = "one bookie of four dead"
NO_AUDITOR = "no auditor running"
FORCED = "forceReadOnlyBookie=true"
NEVER_READ_ONLY = "readOnlyModeEnabled=false"
TOO_LONG = "(JSON object of 11 MiB)"
INDEX = "/data/quire-vectors/ops/b1/index/current/locations"


def note(exchange: dict[str, Any]) -> str:
    return str(exchange.get("note") or "")


def pages() -> dict[str, frozenset[str]]:
    """The methods of each path."""
    host = AdminHost.__new__(AdminHost)
    host.settings = Settings([])
    return {path: frozenset(page.handlers) for path, page in all_pages(host).items()}


PAGES = pages()


class Sender:
    """Sends captured requests to one process, in terms of our cluster."""

    def __init__(self, world: World, url: str) -> None:
        self._world = world
        self._url = url
        self._strangers = 0
        self.problems: list[str] = []

    def send(self, exchange: dict[str, Any]) -> None:
        path = re.sub("/+", "/", exchange["path"]).rstrip("/")
        status, _ = expected(exchange, PAGES.get(path))
        answer = self._ask(exchange)
        wrong = self._wrong(exchange, answer, status)
        if wrong:
            sent = f"{exchange['method']} {exchange['path']}?{exchange['query']}"
            self.problems.append(f"{sent} {exchange['request_body']} ({note(exchange)}): {wrong}")

    def _ask(self, exchange: dict[str, Any]) -> Answer:
        body = exchange["request_body"]
        if body == TOO_LONG:
            body = '{"a":"%s"}' % ("x" * (11 << 20))
        return ask(
            self._url,
            exchange["method"],
            exchange["path"],
            query=self._translated(exchange["query"]),
            body=None if body is None else self._translated(body),
        )

    def _translated(self, text: str) -> str:
        for number in range(3):
            text = text.replace(f"127.0.0.1:3581{number + 1}", self._world.bookie_ids[number])
        text = text.replace("127.0.0.1:35814", self._world.bookie_ids[2])  # the marked one
        self._strangers += 1
        text = text.replace("127.0.0.1:9999", f"127.0.0.1:{self._strangers}")
        folder = self._world.cluster.bookies[0]["dir"]
        return text.replace(INDEX, f"{folder}/ledgers/current/index")

    def _wrong(self, exchange: dict[str, Any], answer: Answer, status: int) -> str:
        if answer.status != status:
            return f"want {status}, got {answer.status}: {answer.text[:200]}"
        if status == 405:
            return "" if answer.headers.get("allow") else "no Allow"
        if "Traceback" in answer.text or (status >= 400 and "\n" in answer.text.strip()):
            return f"an error is one line: {answer.text[:200]}"
        if status != exchange["status"] or status >= 400 or exchange["path"] == "/metrics":
            return ""
        if exchange["path"].endswith("/server_config"):
            kinds = {type(value) for value in answer.json.values()}
            return "" if kinds == {str} else f"values are texts, not {kinds}"
        ours = shape(answer.json if exchange["body_kind"] == "json" else answer.text)
        theirs = shape(exchange["body"])
        if exchange.get("shortened") and isinstance(ours, dict) and isinstance(theirs, dict):
            ours = {name: kind for name, kind in ours.items() if name in theirs}
        return "" if agrees(ours, theirs) else f"want {theirs}, got {ours}"

    def finish(self) -> None:
        assert not self.problems, "\n".join(self.problems)


def exchanges(node: str, *notes: str, without: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    for exchange in captured():
        if exchange["node"] != node or any(text in note(exchange) for text in without):
            continue
        if not notes or any(text in note(exchange) for text in notes):
            yield exchange


def test_requests_without_an_auditor(world: World) -> None:
    world.stop_recovery()
    sender = Sender(world, world.url)
    for exchange in exchanges("bookie", NO_AUDITOR):
        if exchange["path"].endswith("lost_bookie_recovery_delay"):
            continue  # it was set long before, by an auditor of other tests or here
        sender.send(exchange)
    sender.finish()


@contextmanager
def _writable_again(world: World) -> Iterator[None]:
    try:
        yield
    finally:
        ask(world.url, "PUT", "/api/v1/bookie/state/readonly", body='{"readOnly":false}')


def test_requests_to_a_bookie(world: World) -> None:
    world.start_recovery()
    sender = Sender(world, world.url)
    with _writable_again(world):
        for exchange in exchanges("bookie", without=(DEAD, NO_AUDITOR, FORCED, NEVER_READ_ONLY)):
            if exchange["path"].endswith("/sanity") and "read-only" in note(exchange):
                found = ask(world.url, "GET", exchange["path"])
                assert found.json == {"passed": False, "readOnly": True}  # the latter is ours
                continue
            sender.send(exchange)
    sender.finish()


def test_requests_to_autorecovery(marked: World) -> None:
    sender = Sender(marked, marked.start_recovery())
    for exchange in exchanges("autorecovery"):
        sender.send(exchange)
    sender.finish()


def test_requests_about_a_ledger_without_copies(marked: World) -> None:
    marked.start_recovery()
    sender = Sender(marked, marked.url)
    for exchange in exchanges("bookie", DEAD):
        sender.send(exchange)
    sender.finish()


@pytest.mark.parametrize(
    ("text", "setting"), [(FORCED, "forceReadOnlyBookie=true"), (NEVER_READ_ONLY, NEVER_READ_ONLY)]
)
def test_requests_to_bookies_of_another_mode(
    world: World, tmp_path: Path, text: str, setting: str
) -> None:
    port = free_port()
    conf = tmp_path / "bk_server.conf"
    settings = world.cluster.conf(1).read_text().replace(str(world.cluster.folder), str(tmp_path))
    for key, value in (("bookiePort", free_port()), ("httpServerPort", port)):
        settings = re.sub(f"(?m)^{key}=.*$", f"{key}={value}", settings)
    settings = re.sub("(?m)^statsProviderClass=.*$", "", settings)
    conf.write_text(f"{settings}\n{setting}\n")
    with quire_daemon("bookie", conf, tmp_path / "bookie.log"):
        sender = Sender(world, f"http://127.0.0.1:{port}")
        for exchange in exchanges("bookie", text):
            sender.send(exchange)
    sender.finish()


def test_every_deviation_is_one() -> None:
    """A row that fits no captured request, or changes nothing, would mislead."""
    for row in DEVIATIONS:
        assert row.theirs != row.ours
        allowed = [
            exchange
            for exchange in captured()
            if row.fits(exchange) and exchange["method"] in PAGES.get(exchange["path"], ())
        ]
        assert allowed, row
        assert any(expected(exchange, PAGES[exchange["path"]])[1] == row for exchange in allowed), (
            f"{row} is hidden by one before it"
        )
