"""A byte stream inside another one, encrypted: the same interface, so shells need not know.

Nothing here waits but the handshake. What the stream below does not take at once stays here as
ciphertext, and its plaintext counts as not sent: `send_now` says how much has left, the caller
comes again with the rest, and the part of it that is encrypted already is not encrypted twice.
That works because senders never change their mind about the bytes that come next.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import trio

from runtime.sockets import ByteStream, WaitingStream
from wire.errors import LedgerError

#: Plaintext that is encrypted ahead of what the stream below has taken, at most.
AHEAD_BYTES: Final = 64 << 10
HANDSHAKE_RECEIVE_BYTES: Final = 64 << 10
#: How long, and for how much, a peer that was refused is listened to before the end.
HEARD_SECONDS: Final = 2.0
HEARD_RECEIVES: Final = 16
#: No record is larger, and OpenSSL gives one at a time.
_RECORD_BYTES: Final = 16 << 10


class TlsError(LedgerError):
    """The other side cannot be trusted, does not trust us, or does not speak TLS."""


class TlsBrokenError(ConnectionError):
    """A connection that ended by an alert, or by bytes that are not what the peer sent.

    With TLS 1.3 this is also how a client learns that its certificate was not accepted.
    """


async def let_it_be_heard(stream: ByteStream) -> None:
    """Wait until the peer has gone: closing on bytes of his throws away what we said last, too."""
    with trio.move_on_after(HEARD_SECONDS), contextlib.suppress(OSError, trio.ClosedResourceError):
        stream.end_sending()
        for _ in range(HEARD_RECEIVES):
            if not await stream.receive_some(HANDSHAKE_RECEIVE_BYTES):
                return


async def encrypt(
    stream: ByteStream,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    host: str | None = None,
    received: bytes = b"",
) -> TlsStream:
    """Shake hands. `received` is what came already and belongs to TLS. Bounded by the caller.

    Raises TlsError, or an OSError if the connection goes.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(received)
    try:
        # An address is a name, too: certificates may hold both.
        found = context.wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=host)
    except ValueError as error:
        raise TlsError(f"TLS with {stream.peer}: {error}") from None
    while True:
        try:
            found.do_handshake()
            is_done, failure = True, None
        except ssl.SSLWantReadError:
            is_done, failure = False, None
        except ssl.SSLError as error:
            is_done, failure = True, explain(error, stream.peer, host)
        if data := outgoing.read():
            with contextlib.nullcontext() if failure is None else contextlib.suppress(OSError):
                await stream.send_all(data)  # also an alert, which tells the peer why
        if failure is not None:
            if server_side:  # a client has told its caller, who is the one to know
                await let_it_be_heard(stream)
            raise failure
        if is_done:
            return TlsStream(stream, found, incoming, outgoing)
        data = await stream.receive_some(HANDSHAKE_RECEIVE_BYTES)
        if not data:
            raise TlsError(
                f"{stream.peer} closed the connection during the TLS handshake: see its log for "
                "the reason"
            )
        incoming.write(data)


class TlsStream(WaitingStream):
    """A `ByteStream`. Made by `encrypt`."""

    def __init__(
        self,
        below: ByteStream,
        made: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        self.peer = below.peer
        self._below = below
        self._object = made
        self._incoming = incoming
        self._outgoing = outgoing
        self._unsent = memoryview(b"")  # ciphertext that the stream below has yet to take
        self._promised = 0  # plaintext in it that the sender was not told about
        self._is_dry = False  # nothing more to read without more from below
        self._is_ended = False
        #: Called once, with the first bytes from inside.
        self.first_look: Callable[[bytes], None] | None = None

    @property
    def cipher(self) -> str:
        """For a log: `TLSv1.3 TLS_AES_256_GCM_SHA384`."""
        found = self._object.cipher()
        return f"{self._object.version()} {found[0] if found else '?'}"

    @property
    def certificate_subject(self) -> tuple[tuple[str, str], ...]:
        """Names and values of the peer's verified certificate, as they stand there; else none."""
        found = self._object.getpeercert() or {}
        parts = found.get("subject", ())
        return tuple(pair for part in parts for pair in part)  # type: ignore[misc]

    # Receiving.

    def receive_now(self, size: int) -> bytes | None:
        """As many records as there are, so that a receive is a batch here, too."""
        data = self._decrypt(size)
        if data is None:
            fresh = self._below.receive_now(size)
            if fresh is None:
                return None
            if fresh:
                self._incoming.write(fresh)
            else:
                self._is_ended = True
            data = self._decrypt(size)
            if data is None:  # less than a record
                return b"" if self._is_ended else None
        if self.first_look is not None and data:
            look, self.first_look = self.first_look, None
            look(data)
        return data

    def _decrypt(self, size: int) -> bytes | None:
        pieces: list[bytes] = []
        left = size
        self._is_dry = False
        try:
            while left > 0:
                piece = self._object.read(min(left, _RECORD_BYTES))
                if not piece:
                    self._is_ended = True
                    break
                pieces.append(piece)
                left -= len(piece)
        except ssl.SSLWantReadError:
            self._is_dry = True
            if not pieces:
                return None
        except ssl.SSLZeroReturnError:
            self._is_ended = True
        except ssl.SSLError as error:
            if not pieces:
                raise TlsBrokenError(str(explain(error, self.peer, None))) from error
        self._push()  # answers of TLS itself
        return b"".join(pieces)

    async def wait_readable(self) -> None:
        if self._is_dry and not self._is_ended:
            await self._below.wait_readable()
        else:
            await trio.lowlevel.checkpoint()

    # Sending.

    def send_now(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        if not self._push():
            return 0
        sent = min(self._promised, len(view))
        self._promised -= sent
        while sent < len(view):
            piece = view[sent : sent + AHEAD_BYTES]
            self._write(piece)
            if not self._push():
                self._promised = len(piece)
                break
            sent += len(piece)
        return sent

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        return self.send_now(b"".join(pieces))

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._object.write(data) :]
        except ssl.SSLError as error:
            raise TlsBrokenError(str(explain(error, self.peer, None))) from error

    def _push(self) -> bool:
        """Hand ciphertext to the stream below; whether it took all."""
        if self._unsent:
            self._unsent = self._unsent[self._below.send_now(self._unsent) :]
        if not self._unsent and self._outgoing.pending:
            fresh = memoryview(self._outgoing.read())
            self._unsent = fresh[self._below.send_now(fresh) :]
        return not self._unsent

    async def wait_writable(self) -> None:
        await self._below.wait_writable()

    # The end.

    def end_sending(self) -> None:
        self._say_goodbye()
        self._below.end_sending()

    def close(self, *, reset: bool = False) -> None:
        if not reset:
            self._say_goodbye()
        self._below.close(reset=reset)

    def _say_goodbye(self) -> None:
        """A peer that is gone, or does not read, is not waited for."""
        with contextlib.suppress(ssl.SSLError, OSError, ValueError, trio.ClosedResourceError):
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()  # waits for the peer's goodbye; ours is written by then
            self._push()


def explain(error: ssl.SSLError, peer: str, host: str | None) -> TlsError:
    """What went wrong, for whoever has to repair it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"the certificate of {peer} is not accepted: {_verification(error, host)}")
    reason = error.reason or ""
    return TlsError(f"TLS with {peer} failed: {_REASONS.get(reason) or _plain(error)}")


def _verification(error: ssl.SSLCertVerificationError, host: str | None) -> str:
    match error.verify_code:
        case 10:
            return "it has expired; have it renewed"
        case 9:
            return "it is not valid yet; compare the clocks"
        case 18 | 19 | 20 | 21 | 2:
            return "it is not of an authority that is trusted here; check the trust store"
        case 62 | 64:
            return f"it is for another name than {host}; have the name added, or connect by its own"
    return error.verify_message or "its verification failed"


def _plain(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


#: OpenSSL's words for the mistakes that are made, and what to do about them.
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS here; is TLS configured on both sides?",
    "HTTP_REQUEST": "it speaks HTTP",
    "UNSUPPORTED_PROTOCOL": "it knows only versions older than TLS 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it and we have no TLS version in common",
    "NO_SHARED_CIPHER": "it and we have no cipher suite in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refused; no cipher suite in common, or it wants a "
    "certificate of ours",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, and one is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a certificate of ours: set one",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept our certificate",
}
