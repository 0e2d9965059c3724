"""Fetching one small page from a bookie's HTTP server, within bounds."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import h11
import trio

from wire.errors import LedgerError

PAGE_BYTES_MAX: Final = 4 << 20
_PIECE: Final = 65536


class PageError(LedgerError):
    """A page could not be had; the message says why."""


async def fetch_page(url: str, *, timeout_seconds: float) -> str:
    """The text behind an http:// address; PageError if there is none in time."""
    try:
        with trio.fail_after(timeout_seconds):
            return await _fetch(url)
    except trio.TooSlowError:
        raise PageError(f"no answer within {timeout_seconds:g} s") from None
    except (OSError, trio.BrokenResourceError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise PageError((reason or str(error) or "the connection broke").lower()) from None
    except h11.ProtocolError as error:
        raise PageError(f"the answer is no HTTP: {error}") from None
    except ValueError:  # also what no name server could be asked for
        raise PageError("the address that is announced is none") from None


async def _fetch(url: str) -> str:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    # Plain HTTP on purpose: a certificate of a bookie is made out for clients, not for us.
    if parts.scheme != "http":
        raise PageError(f"{parts.scheme} is not spoken here")
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(
            method="GET",
            target=parts.path or "/",
            headers=[("Host", f"{host}:{port}"), ("Connection", "close")],
        )
        await stream.send_all(connection.send(request) or b"")
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        return await _answer(stream, connection)


async def _answer(stream: trio.SocketStream, connection: h11.Connection) -> str:
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_PIECE))
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                raise PageError(f"the answer is {event.status_code}")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > PAGE_BYTES_MAX:
                raise PageError(f"the page is longer than {PAGE_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return body.decode(errors="replace")
