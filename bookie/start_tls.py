"""The moment at which a connection goes from clear text to TLS.

Apache's client with an authentication plugin sends its first token as soon as it is connected. That
is right behind START_TLS, in clear, where nothing but TLS should be. Such tokens are taken aside
and answered inside TLS; any other request there ends the connection, because anybody on the way
could have put it there.
"""

from __future__ import annotations

from typing import Final

from runtime.sockets import ByteStream
from wire import codec_v3
from wire.codec_v3 import NotV3Error
from wire.errors import ProtocolError
from wire.framing import LENGTH_BYTES, payload_length
from wire.header_v2 import VERSION_MAX
from wire.messages import AuthRequest
from wire.types import Opcode

#: All tokens in clear together.
TOKENS_BYTES_MAX: Final = 64 << 10
#: Frames of that size begin with it, and no TLS record does.
_FRAME_BEGINS: Final = 0
_RECEIVE_BYTES: Final = 16 << 10


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
    if payload[:1] <= bytes([VERSION_MAX]):
        is_token = payload[1:2] == bytes([Opcode.AUTH])
    else:
        try:
            is_token = isinstance(codec_v3.decode_request(payload)[1], AuthRequest)
        except NotV3Error:
            is_token = False
    if not is_token:
        raise ProtocolError("a request in clear behind START_TLS")
