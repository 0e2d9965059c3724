"""The way into a bookie that wants TLS, or wants to know who we are: a network around the network.

Connections come out of it encrypted and authenticated, so nothing above it differs. It speaks v3
until it is inside; what follows may be v2, on Apache's bookies, too. Whoever cannot get in learns
why: `EntranceError` stays with the bookie's name until it lets us in.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from runtime import logs
from runtime.jaas import Login
from runtime.sockets import ByteStream, Listener, Network, SocketNetwork
from runtime.tls import Certificates, TlsOptions, client_context
from runtime.tls_config import SASL_HOST, SASL_PLUGIN, SASL_SERVICE
from runtime.tls_stream import TlsError, TlsStream, encrypt
from wire.codec_v3 import decode_response, encode_request
from wire.digest_md5 import DigestMd5Client, SaslError
from wire.errors import LedgerError, ProtocolError, Status
from wire.framing import FrameBuffer
from wire.messages import AuthRequest, AuthResponse, Request, Response, StartTlsRequest
from wire.types import Operation

#: What a bookie that authenticates nobody calls itself.
AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
#: Far from those of questions: a bookie may speak of START_TLS once more, later.
_FIRST_TRANSACTION: Final = 1 << 62
_ROUNDS_MAX: Final = 16
#: An answer to a token; Apache's bookie says nothing at all to a wrong one.
AUTH_SECONDS: Final = 3.0
_RECEIVE_BYTES: Final = 16 << 10
_REFRESH_SECONDS: Final = 60.0
_CNONCE_BYTES: Final = 24

_log = logs.get("ledger_client.entrance")


class EntranceError(LedgerError):
    """A bookie is there, and one of us does not let the other in."""


class AuthExchange(Protocol):
    """Our side of one connection's exchange of tokens."""

    @property
    def is_complete(self) -> bool: ...

    def begin(self) -> bytes:
        """The first token; it may be empty."""

    def respond(self, token: bytes) -> bytes:
        """What to answer to the bookie's token. Raises LedgerError if it cannot be trusted."""


class ClientAuth(Protocol):
    """A way to say who we are. Both sides must name the same plugin."""

    @property
    def plugin(self) -> str: ...

    def new_exchange(self, host: str) -> AuthExchange: ...


@dataclass(frozen=True, slots=True)
class SaslDigest:
    """User and password, by SASL/DIGEST-MD5, as Apache's SASLClientProviderFactory."""

    login: Login
    plugin: str = SASL_PLUGIN

    def new_exchange(self, host: str) -> AuthExchange:
        return _SaslExchange(self.login)


class _SaslExchange:
    def __init__(self, login: Login) -> None:
        self._client = DigestMd5Client(
            login.user,
            login.password.reveal(),
            service=SASL_SERVICE,
            host=SASL_HOST,
            cnonce=secrets.token_urlsafe(_CNONCE_BYTES),
        )

    @property
    def is_complete(self) -> bool:
        return self._client.is_complete

    def begin(self) -> bytes:
        return b""

    def respond(self, token: bytes) -> bytes:
        return self._client.answer(token)


class SecureNetwork:
    """A network whose connections lead inside."""

    def __init__(
        self,
        below: Network | None = None,
        *,
        tls: TlsOptions | None = None,
        auth: ClientAuth | None = None,
    ) -> None:
        """ConfigError if the files of `tls` cannot be used."""
        self._below = below or SocketNetwork()
        self._auth = auth
        self._certificates: Certificates | None = None
        if tls is not None:
            self._certificates = Certificates(tls, client_context, refresh_seconds=_REFRESH_SECONDS)

    async def listen(self, host: str, port: int) -> Listener:
        return await self._below.listen(host, port)

    async def connect(self, host: str, port: int) -> ByteStream:
        stream = await self._below.connect(host, port)
        try:
            if self._certificates is not None:
                stream = await self._begin_tls(stream, self._certificates, host)
            if self._auth is not None:
                await self._say_who(stream, self._auth, host)
        except LedgerError as error:
            stream.close()
            raise EntranceError(str(error)) from error
        except BaseException:
            stream.close()
            raise
        return stream

    async def _begin_tls(
        self, stream: ByteStream, certificates: Certificates, host: str
    ) -> TlsStream:
        talk = _Talk(stream)
        answer = await talk.ask(StartTlsRequest())
        if answer.status is not Status.OK:
            raise TlsError(
                f"{stream.peer} does not offer TLS ({answer.status.name}): switch it on there, or "
                "connect without"
            )
        made = await encrypt(
            stream, certificates.current(), server_side=False, host=host, received=talk.rest()
        )
        if self._auth is None:  # who has yet to say who it is may be refused until then
            made.first_look = _refusal_of(made.peer)
        return made

    async def _say_who(self, stream: ByteStream, auth: ClientAuth, host: str) -> None:
        talk = _Talk(stream)
        exchange = auth.new_exchange(host)
        token = exchange.begin()
        for _ in range(_ROUNDS_MAX):
            answer = None
            with trio.move_on_after(AUTH_SECONDS):
                answer = await talk.ask(AuthRequest(plugin=auth.plugin, payload=token))
            if answer is None:
                raise SaslError(
                    f"{stream.peer} does not answer to {auth.plugin}: check user, password and "
                    "what the bookie expects"
                )
            if answer.status is not Status.OK or not isinstance(answer, AuthResponse):
                raise SaslError(
                    f"{stream.peer} does not let us in by {auth.plugin} ({answer.status.name}): "
                    "check user, password and what the bookie expects"
                )
            if answer.plugin == AUTH_DISABLED_PLUGIN:
                return
            token = exchange.respond(answer.payload)
            if exchange.is_complete:
                return
        raise SaslError(f"{stream.peer} asks by {auth.plugin} without end")


class _Talk:
    """Questions and answers, one after the other."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._frames = FrameBuffer()
        self._transaction_id = _FIRST_TRANSACTION

    async def ask(self, request: Request) -> Response:
        self._transaction_id += 1
        await self._stream.send_all(encode_request(request, transaction_id=self._transaction_id))
        while True:
            header, response = decode_response(await self._next_frame())
            if header.operation is Operation.START_TLS and isinstance(request, AuthRequest):
                continue  # Apache's bookie says once more that nobody has authenticated yet
            if header.transaction_id != self._transaction_id:
                raise ProtocolError(f"{self._stream.peer} answers what nobody asked")
            return response

    async def _next_frame(self) -> bytes:
        while (payload := self._frames.next_frame()) is None:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
            if not data:
                raise TlsError(
                    f"{self._stream.peer} closed the connection instead of letting us in: see its "
                    "log for the reason"
                )
            self._frames.feed(data)
        return payload

    def rest(self) -> bytes:
        return self._frames.data[self._frames.start :]


def _refusal_of(peer: str) -> Callable[[bytes], None]:
    """Looks at the first bytes from inside TLS: a bookie that knows us, and does not want us, says
    so there, to nobody's question."""

    def look(data: bytes) -> None:
        frames = FrameBuffer()
        frames.feed(data)
        try:
            payload = frames.next_frame()
            if payload is None:
                return
            header, response = decode_response(payload)
        except ProtocolError:
            return  # v2, most likely
        if header.operation is Operation.START_TLS and response.status is not Status.OK:
            raise EntranceError(
                f"{peer} has seen our certificate, and does not let us in: its role is not among "
                "those that the bookie allows"
            )

    return look
