"""Fetching a page from a peer that may answer anything, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from quire.console import page_fetch
from quire.console.page_fetch import PageError, fetch_page


@asynccontextmanager
async def answering(answer: bytes, *, stays: bool = False) -> AsyncIterator[str]:
    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(65536)
            await stream.send_all(answer)
            if stays:
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/metrics"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\na 1\n",
    ],
)
async def test_page_is_fetched_however_it_is_framed(answer: bytes) -> None:
    async with answering(answer) as url:
        assert await fetch_page(url, timeout_seconds=30) == "a 1\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "the answer is 503"),
        (b"220 mail.example ready\r\n\r\n", "the answer is no HTTP"),
        (b"", "the answer is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na", "the answer is no HTTP"),
    ],
)
async def test_other_answers_are_errors_of_one_line(answer: bytes, reason: str) -> None:
    async with answering(answer) as url:
        with pytest.raises(PageError, match=reason):
            await fetch_page(url, timeout_seconds=30)


@pytest.mark.parametrize(
    "url",
    ["http://[:80/metrics", "http://a:99999/metrics", f"http://{'a' * 64}:1/", "http://\ud800:1/"],
)
async def test_address_that_is_none_is_an_error_of_one_line(url: str) -> None:
    """Whoever may register may announce anything."""
    with pytest.raises(PageError, match="address that is announced is none"):
        await fetch_page(url, timeout_seconds=30)


async def test_page_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_fetch, "PAGE_BYTES_MAX", 1000)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000) as url:
        with pytest.raises(PageError, match="longer than 1000 bytes"):
            await fetch_page(url, timeout_seconds=30)


async def test_peer_that_says_nothing_is_given_up() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n", stays=True) as url:
        with pytest.raises(PageError, match=r"no answer within 0\.05 s"):
            await fetch_page(url, timeout_seconds=0.05)


async def test_absent_peer_and_other_schemes_are_errors_of_one_line() -> None:
    async with answering(b"") as url:
        pass
    with pytest.raises(PageError, match=r"refused|connect"):
        await fetch_page(url, timeout_seconds=30)
    with pytest.raises(PageError, match="https is not spoken here"):
        await fetch_page("https://127.0.0.1:1/metrics", timeout_seconds=30)
