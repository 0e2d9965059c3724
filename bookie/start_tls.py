"""The moment at which a connection goes from clear text to TLS.

Apache's client with an authentication plugin sends its first token as soon as it is connected. That
is right behind START_TLS, in clear, where nothing but TLS should be. Such tokens are taken aside
and answered inside TLS; any other request there ends the connection, because anybody on the way
could have put it there.

It sends both from two threads, so that now and then the token is first. Over v2 such a client reads
no answer to START_TLS any more once it has read one to its token: START_TLS is answered first.
"""

from __future__ import annotations

from typing import Final

import trio

from runtime.sockets import ByteStream
from wire import codec_v3
from wire.codec_v3 import NotV3Error
from wire.errors import ProtocolError
from wire.framing import LENGTH_BYTES, payload_length
from wire.header_v2 import VERSION_MAX
from wire.messages import AuthRequest, Request, StartTlsRequest
from wire.types import Opcode

#: All tokens in clear together.
TOKENS_BYTES_MAX: Final = 64 << 10
#: Frames of that size begin with it, and no TLS record does.
_FRAME_BEGINS: Final = 0
_RECEIVE_BYTES: Final = 16 << 10
#: How long START_TLS may be behind the token; milliseconds were seen. A client that goes on in
#: clear where TLS is on offer waits as long, once per connection.
BEHIND_SECONDS: Final = 0.2


async def tls_first(stream: ByteStream, received: bytes) -> bytes:
    """What was received, and perhaps more, with START_TLS in front if it was behind a v2 token.

    `received` begins with a whole frame of v2.
    """
    if not _is_token(received[LENGTH_BYTES:]):
        return received
    token_end = LENGTH_BYTES + payload_length(received, 0)
    with trio.move_on_after(BEHIND_SECONDS):
        while True:
            body = token_end + LENGTH_BYTES
            if len(received) > body:
                if received[body] <= VERSION_MAX:
                    break  # it goes on with v2, in clear
                end = body + payload_length(received, token_end, TOKENS_BYTES_MAX)
                if len(received) >= end:
                    if _is_v3(received[body:end], StartTlsRequest):
                        return received[token_end:end] + received[:token_end] + received[end:]
                    break
            data = await stream.receive_some(_RECEIVE_BYTES)
            if not data:
                break
            received += data
    return received


async def take_tokens(stream: ByteStream, received: bytes) -> tuple[bytes, bytes]:
    """Whole frames with tokens in front of TLS, and what there is of TLS. Bounded by the caller."""
    at = 0
    while True:
        if at < len(received) and received[at] != _FRAME_BEGINS:
            return received[:at], received[at:]
        end = len(received)
        if end - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + payload_length(received, at, TOKENS_BYTES_MAX)
            if at < end <= len(received):
                _check_token(received[at + LENGTH_BYTES : end])
                at = end
                continue
        if len(received) > TOKENS_BYTES_MAX:
            raise ProtocolError("more in clear behind START_TLS than tokens can be")
        data = await stream.receive_some(_RECEIVE_BYTES)
        if not data:
            raise ProtocolError("the connection ended where TLS should begin")
        received += data


def _check_token(payload: bytes) -> None:
    if not _is_token(payload):
        raise ProtocolError("a request in clear behind START_TLS")


def _is_token(payload: bytes) -> bool:
    if payload[:1] <= bytes([VERSION_MAX]):
        return payload[1:2] == bytes([Opcode.AUTH])
    return _is_v3(payload, AuthRequest)


def _is_v3(payload: bytes, kind: type[Request]) -> bool:
    try:
        return isinstance(codec_v3.decode_request(payload)[1], kind)
    except NotV3Error:
        return False
