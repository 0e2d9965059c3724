"""The HTTP server: what it serves, what it bounds, how it stops."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from runtime.http import HttpBounds, HttpServerError, server_tls, serving_http
from runtime.properties import ConfigError
from wire.errors import LedgerError

WAIT = 30.0
GET = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class App:
    """Echoes bodies; some paths misbehave."""

    def __init__(self) -> None:
        self.ended = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/bug":
            raise RuntimeError("a secret of ours")
        if path == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            try:
                while True:
                    piece = {"type": "http.response.body", "body": bytes(65536), "more_body": True}
                    await send(piece)
            finally:
                self.ended.set()
        if path == "/hang":
            assert (await receive())["type"] == "http.request"
            self.ended.set()
            await trio.sleep_forever()
        body = (await receive())["body"]
        await answer(send, 200, scope["client"][0].encode() + b" " + body)


@asynccontextmanager
async def served(app: App | None = None, **bounds: Any) -> AsyncIterator[int]:
    """The port."""
    async with serving_http(
        app or App(), host="127.0.0.1", port=0, bounds=HttpBounds(**bounds), grace_seconds=0.2
    ) as url:
        yield int(url.rpartition(":")[2])


async def ask(port: int, request: bytes) -> bytes:
    """Everything that comes back."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        return await rest(stream)


async def rest(stream: trio.abc.ReceiveStream) -> bytes:
    found = b""
    with trio.fail_after(WAIT):
        while piece := await stream.receive_some():
            found += piece
    return found


async def test_application_sees_the_body_and_who_asks() -> None:
    async with served() as port:
        found = await ask(
            port,
            b"PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        )
    assert found.startswith(b"HTTP/1.1 200 ")
    assert found.endswith(b"127.0.0.1 hello")
    assert b"server:" not in found.lower()


async def test_busy_port_is_one_line_with_the_way_out() -> None:
    async with served() as port:
        with pytest.raises(HttpServerError) as raised:
            async with serving_http(App(), host="127.0.0.1", port=port):
                raise AssertionError("two servers on one port")
    assert "choose another port" in str(raised.value)
    assert isinstance(raised.value, LedgerError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [101, 100_000])
async def test_body_that_is_too_long_is_refused(size: int) -> None:
    head = b"PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
    async with served(body_bytes=100) as port:
        assert (await ask(port, head + bytes(size))).startswith(b"HTTP/1.1 413 ")
        chunked = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (size, bytes(size))
        assert (await ask(port, chunked + chunk)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHos"])
async def test_connection_without_a_request_is_closed_in_time(begun: bytes) -> None:
    async with served(head_seconds=0.05) as port:
        assert await ask(port, begun) == b""


async def test_head_that_comes_drop_by_drop_is_cut_off() -> None:
    """Time counts from the beginning, not from the last byte."""
    async with served(head_seconds=0.2) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)

        async def drip() -> None:
            while True:
                await stream.send_all(b"G")
                await trio.sleep(0.02)

        with trio.fail_after(WAIT):
            with pytest.raises(trio.BrokenResourceError):
                await drip()
            await stream.aclose()


async def test_body_that_does_not_arrive_is_not_waited_for() -> None:
    async with served(body_seconds=0.05) as port:
        found = await ask(port, b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
    assert found.startswith(b"HTTP/1.1 408 ")


async def test_head_that_is_too_long_is_refused() -> None:
    async with served() as port:
        found = await ask(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000)
    assert found.startswith(b"HTTP/1.1 431 ")


async def test_nonsense_is_refused() -> None:
    async with served() as port:
        assert (await ask(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "wish",
    [
        b"Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n",
    ],
    ids=["websocket", "HTTP/2"],
)
async def test_wish_for_another_protocol_is_ignored(
    wish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by hostile requests: bytes behind a websocket's ended in a traceback."""
    async with served() as port:
        found = await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n%s\r\n" % wish + GET % b"/")
    assert found.count(b"HTTP/1.1 200 ") == 2
    assert b"101" not in found
    assert not caplog.records


@pytest.mark.parametrize("method", [b"Head", b"get", b"pUT"])
async def test_method_in_small_letters_is_none(
    method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by fuzzing: `Head` was answered as HEAD by half of the server, and then a traceback."""
    async with served() as port:
        found = await ask(port, b"%s / HTTP/1.1\r\nHost: x\r\n\r\n" % method + GET % b"/")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1
    assert not caplog.records


async def test_http_2_is_not_spoken(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as port:
        found = await ask(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    assert found.startswith(b"HTTP/1.1 ")
    assert not caplog.records


async def test_bug_is_told_to_the_log_and_not_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        async with served() as port:
            found = await ask(port, GET % b"/bug")
            assert (await ask(port, GET % b"/")).startswith(b"HTTP/1.1 200 ")
    assert found.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in found
    assert "a secret of ours" in caplog.text


async def test_client_that_does_not_read_is_let_go() -> None:
    app = App()
    async with served(app, send_seconds=0.1) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(GET % b"/endless")
        with trio.fail_after(WAIT):
            await app.ended.wait()
        await stream.aclose()


async def test_stop_waits_neither_for_idle_connections_nor_for_endless_answers() -> None:
    app = App()
    with trio.fail_after(WAIT):
        async with served(app, send_seconds=1000) as port:
            idle = await trio.open_tcp_stream("127.0.0.1", port)
            deaf = await trio.open_tcp_stream("127.0.0.1", port)
            await deaf.send_all(GET % b"/endless")
            hanging = await trio.open_tcp_stream("127.0.0.1", port)
            await hanging.send_all(GET % b"/hang")
            await app.ended.wait()
    for stream in (idle, deaf, hanging):
        await stream.aclose()


async def test_connections_beyond_the_limit_wait_for_their_turn() -> None:
    async with served(connections=1) as port:
        first = await trio.open_tcp_stream("127.0.0.1", port)
        await first.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await first.receive_some()).startswith(b"HTTP/1.1 200 ")
        second = await trio.open_tcp_stream("127.0.0.1", port)
        async with second:
            await second.send_all(GET % b"/")
            with trio.move_on_after(0.1) as waiting:
                await second.receive_some()
            assert waiting.cancelled_caught
            await first.aclose()
            assert (await rest(second)).startswith(b"HTTP/1.1 200 ")


async def test_https_is_served_with_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(certificate, append=number > 0)
    tls = server_tls(str(certificate), str(key))
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with serving_http(App(), host="127.0.0.1", port=0, tls=tls) as url:
        assert url.startswith("https://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        stream = await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", port, ssl_context=client, https_compatible=True
        )
        async with stream:
            await stream.send_all(GET % b"/")
            assert (await rest(stream)).endswith(b"127.0.0.1 ")
        # Who speaks no TLS gets no answer, and keeps nobody from one.
        assert not (await ask(port, GET % b"/")).startswith(b"HTTP/")


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_certificate_that_cannot_be_used_is_one_line(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "cert.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="cannot use the certificate") as raised:
        server_tls(str(path), str(path))
    assert "\n" not in str(raised.value)
