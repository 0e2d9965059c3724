"""Talking to a console as a browser or a script would."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import trio


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def request(
    method: str,
    url: str,
    body: object = None,
    *,
    headers: dict[str, str] | None = None,
    token: str | None = None,
) -> Answer:
    """`body` is sent as JSON, bytes as they are."""
    parts = urlsplit(url)
    sent: dict[str, str] = {}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    content = None
    if body is not None:
        sent["Content-Type"] = "application/json"
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent |= headers or {}
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=120)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body=content, headers=sent)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


async def ask(method: str, url: str, body: object = None, **more: Any) -> Answer:
    return await trio.to_thread.run_sync(lambda: request(method, url, body, **more))


class Events:
    """A feed of server-sent events, read by hand."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""

    async def next(self) -> Any:
        """The next snapshot; EOFError if the server ends."""
        while True:
            block, found, rest = self._rest.partition(b"\n\n")
            if found:
                self._rest = rest
                _, data, text = block.partition(b"data: ")
                if data:
                    return json.loads(text.split(b"\n")[0])
                continue
            piece = await self._stream.receive_some(65536)
            if not piece:
                raise EOFError
            self._rest += piece


@asynccontextmanager
async def events(url: str, query: str = "") -> AsyncIterator[Events]:
    parts = urlsplit(url)
    stream = await trio.open_tcp_stream(str(parts.hostname), parts.port or 80)
    async with stream:
        head = f"GET /console/events{query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n"
        await stream.send_all(head.encode())
        yield Events(stream)
