"""Requests to the admin paths as bytes: every captured one once, and some that nobody captured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.http.exchanges import captured

_HOST = b"Host: 127.0.0.1:8080\r\n"


def raw_request(method: str, target: str, body: bytes | None = None, more: bytes = b"") -> bytes:
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    head = f"{method} {target} HTTP/1.1\r\n".encode() + _HOST + more + length + b"\r\n"
    return head + (body or b"")


@cache
def captured_requests() -> tuple[bytes, ...]:
    """Those whose body is short; the capture has the same request at several nodes."""

    def found() -> Iterator[bytes]:
        for asked in captured():
            body = asked["request_body"]
            target = asked["path"] + (f"?{asked['query']}" if asked["query"] else "")
            if body is None or len(body) <= 1000:
                yield raw_request(asked["method"], target, None if body is None else body.encode())

    return tuple(dict.fromkeys(found()))


_ODD = (
    raw_request("GET", "/heartbeat"),
    raw_request("GET", "//api///v1/bookie/info/"),
    raw_request("GET", "/%2e%2e/%00%ff?a=%F0%9F%98&a=b&&=&page=%31"),
    raw_request("HEAD", "/metrics", more=b"Connection: close\r\n"),
    raw_request("OPTIONS", "*"),
    raw_request("GET", "http://127.0.0.1:8080/api/v1/ledger/list?page=-1"),
    raw_request("GET", "/", more=b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
    raw_request("GET", "/", more=b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"),
    raw_request("PUT", "/api/v1/config/server_config", b'{"quire_logLevel": "info"}',
                b"Authorization: Bearer 0123456789abcdef\r\nOrigin: http://127.0.0.1:8080\r\n"),
    raw_request("PUT", "/api/v1/bookie/gc", more=b"Transfer-Encoding: chunked\r\n")
    + b"5;x=y\r\n{\"a\":\r\n2\r\n1}\r\n0\r\nT: t\r\n\r\n",
    raw_request("GET", "/heartbeat", b"body", b"Expect: 100-continue\r\n"),
    b"GET /heartbeat HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
)  # fmt: skip

REQUESTS: tuple[bytes, ...] = (*_ODD, *captured_requests())
