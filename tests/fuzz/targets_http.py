"""What comes over HTTP: connections to the admin paths and to the console, and pages of peers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from quire.console.metrics_text import Scrape, parse_metrics
from tests.fuzz.http_connection import converse
from tests.fuzz.http_requests import REQUESTS, raw_request
from tests.fuzz.http_world import TOKEN, admin_app, console
from tests.fuzz.target import Target

_TOKEN = f"Authorization: Bearer {TOKEN}\r\n".encode()
_JSON = b"Content-Type: application/json\r\n"


def _pieces(data: bytes) -> list[bytes]:
    """The first byte says into how many packets the others are cut."""
    count, rest = (data[0] % 4 + 1, data[1:]) if data else (1, b"")
    size = -(-len(rest) // count)
    return [rest[at : at + size] for at in range(0, len(rest), size or 1)]


def http_admin(data: bytes) -> None:
    converse(admin_app(), _pieces(data))


def http_console(data: bytes) -> None:
    converse(console(), _pieces(data))


def metrics_pages(data: bytes) -> None:
    """The console believes nothing that a bookie's page says, and shows finite numbers only."""
    found = parse_metrics(data.decode(errors="replace"))
    shown = [value for value in _values(found) if isinstance(value, float)]
    assert all(map(math.isfinite, shown))


def _values(found: Scrape) -> Iterable[object]:
    yield from (getattr(found, name) for name in Scrape.__slots__)
    for latency in (found.add_latency, found.read_latency):
        yield from (latency.p50, latency.p99)


def _admin_seeds() -> Iterable[bytes]:
    for number, request in enumerate(REQUESTS):
        head, blank, body = request.partition(b"\r\n\r\n")
        yield bytes([number % 4]) + request
        if not request.startswith((b"GET", b"HEAD")):
            yield b"\0" + head + b"\r\n" + _TOKEN.removesuffix(b"\r\n") + blank + body
    for query in ("metadata?ledger_id=7", "read?ledger_id=7",
                  "read?ledger_id=7&encoding=base64&page=2&end_entry_id=5"):  # fmt: skip
        yield b"\0" + raw_request("GET", f"/api/v1/ledger/{query}")


def _console_seeds() -> Iterable[bytes]:
    for target in ("/", "/main.js", "/console/about", "/console/events?ledger=7", "/nothing",
                   "/console/ledgers?before=9&count=5", "/console/ledgers/7"):  # fmt: skip
        yield b"\0" + raw_request("GET", target)
        yield b"\1" + raw_request("GET", target, more=b"Sec-Fetch-Site: cross-site\r\n")
        yield b"\0" + raw_request("GET", target) + b"behind"
    for target, body in (
        ("/console/ledgers/7/entries", b'{"password": "\\ud800", "first": "0", "count": 5}'),
        ("/console/bookies/127.0.0.1:3181/faults", b'{"fault": "pause"}'),
        ("/console/bookies/%F0%9F%98%80/faults", b'{"fault": ["kill"]}'),
    ):
        yield b"\0" + raw_request("POST", target, body, _JSON + _TOKEN)
        yield b"\2" + raw_request("POST", target, body, b"Origin: http://console\r\n")


def _metrics_seeds() -> Iterable[bytes]:
    yield b"# TYPE a counter\nbookie_WRITE_BYTES 12\nbookie_SERVER_STATUS 1\n"
    yield b'bookkeeper_server_ADD_ENTRY_REQUEST{success="true",quantile="0.99"} 1.5e3\n'
    yield b'bookie_ledger_dir__a_usage{x="\\"",y="}"} NaN\nbookie_ledger_dir_b_usage 1e400\n'


TARGETS = (
    Target("http_admin", http_admin, _admin_seeds, changes=200),
    Target("http_console", http_console, _console_seeds, changes=200),
    Target("metrics_pages", metrics_pages, _metrics_seeds),
)
