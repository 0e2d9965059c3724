"""HTTP/1.1 and nothing else: Hypercorn's server without the protocols that nobody here speaks.

Hypercorn lets a client leave HTTP/1.1 for a websocket or for HTTP/2, in clear and before any of our
code has seen the request. Both are much code for strangers to try things on, and bytes behind such
a request did end in tracebacks. A server may ignore the wish (RFC 9110, 7.8), and this one does.

Only `runtime.http` imports this module: Hypercorn is not installed everywhere.
"""

from __future__ import annotations

import h11
from hypercorn.events import Closed
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer


class Http1Server(TCPServer):
    """One connection."""

    @property
    def protocol(self) -> ProtocolWrapper:
        return self._wrapper

    @protocol.setter
    def protocol(self, wrapper: ProtocolWrapper) -> None:
        """It is set once, before the first byte is read."""
        wrapper.protocol = _Http1(
            wrapper.app,
            wrapper.config,
            wrapper.context,
            wrapper.task_group,
            wrapper.state,
            wrapper.ssl,
            wrapper.client,
            wrapper.server,
            wrapper.send,
        )
        self._wrapper = wrapper


class _Http1(H11Protocol):
    async def _check_protocol(self, event: h11.Request) -> None:
        """Whatever it was, it is answered as HTTP/1.1."""

    async def _create_stream(self, request: h11.Request) -> None:
        if request.method != request.method.upper():
            # Methods are told apart by case, but Hypercorn writes them all in capitals; then `Head`
            # has no body for the one half of it, and one for the other.
            await self._send_error_response(400)
            await self.send(Closed())
            return
        kept = [(name, value) for name, value in request.headers if name != b"upgrade"]
        if len(kept) < len(request.headers):
            request = h11.Request(
                method=request.method,
                headers=kept,
                target=request.target,
                http_version=request.http_version,
            )
        await super()._create_stream(request)
