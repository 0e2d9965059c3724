"""A wire between a client and a server that a test can cut, block, or make one-way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Proxy:
    """Passes bytes on, unless told otherwise. Switches apply to what is open and to what comes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listeners: list[trio.SocketListener] = []
        self._connections: set[trio.CancelScope] = set()
        self.accepts = True  # else a connection is closed as soon as it is made
        self.silent_connections = 0  # how many of the next are taken, and nothing more
        self.loses_answers = False  # requests arrive, answers do not come back

    @property
    def address(self) -> str:
        host, port = self._listeners[0].socket.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Break what is open now."""
        for scope in list(self._connections):
            scope.cancel()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        self._listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve, self._listeners)
            try:
                yield self
            finally:
                nursery.cancel_scope.cancel()

    async def _serve(self, client: trio.SocketStream) -> None:
        if not self.accepts:
            return
        if self.silent_connections > 0:
            self.silent_connections -= 1
            await _until_closed(client)
            return
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                async with (
                    await trio.open_tcp_stream(*self._target) as server,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(self._pass_on, client, server, nursery.cancel_scope)
                    await self._pass_back(server, client)
                    nursery.cancel_scope.cancel()
            except OSError:
                pass  # the server is not there
            finally:
                self._connections.discard(scope)

    async def _pass_on(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some():
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()

    async def _pass_back(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some():
                if not self.loses_answers:
                    await sink.send_all(data)
        except trio.BrokenResourceError:
            pass


async def _until_closed(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    async with Proxy(target).running() as proxy:
        yield proxy
