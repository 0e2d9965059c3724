"""Who is at the other end of a connection: the interface, and what a bookie without one says.

A bookie that authenticates makes an `Authenticator` for every connection. Until that is satisfied
the connection may authenticate and begin TLS, nothing else; what it asks in the meantime is
refused. Without authentication, whoever asks for it is told so, and is then content.

To bring one of your own, name a callable of type `NewAuthenticator` by its path (`module.name`) in
`bookieAuthProviderFactoryClass`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from runtime.sockets import ByteStream
from runtime.tls import Certificates
from wire.errors import UnauthorizedError
from wire.messages import AuthRequest, AuthResponse

#: What both sides call themselves when they do not authenticate.
AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
AUTH_DISABLED: Final = AuthResponse(plugin=AUTH_DISABLED_PLUGIN, payload=b"")

#: Names and values of a certificate's subject, in its order: `("organizationalUnitName", "0:app")`.
Subject: TypeAlias = tuple[tuple[str, str], ...]


class AuthenticationFailedError(UnauthorizedError):
    """The client is not who it says, or the exchange cannot go on: the connection ends."""


class Authenticator(Protocol):
    """One connection's exchange of tokens."""

    @property
    def is_complete(self) -> bool:
        """Whether the client may ask for anything from now on."""

    def respond(self, request: AuthRequest) -> AuthResponse:
        """The answer to a token. Another plugin's name is answered UNAUTHORIZED.

        Raises AuthenticationFailedError to refuse the client and end the connection.
        """

    def on_tls(self, subject: Subject) -> None:
        """The connection is encrypted now, and this is whose certificate the client has shown.

        Empty if it has shown none. Raises AuthenticationFailedError to refuse the client.
        """


#: None: connections are taken as they come.
NewAuthenticator: TypeAlias = Callable[[ByteStream], Authenticator] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSecurity:
    """What a bookie wants of its clients."""

    #: What it shows to those who begin TLS; None: nobody can.
    certificates: Certificates | None = None
    tls_required: bool = False
    new_authenticator: NewAuthenticator = None
    #: By then a client has shaken hands and said who it is, where that is wanted.
    seconds_max: float = 30.0

    @property
    def is_guarded(self) -> bool:
        return self.tls_required or self.new_authenticator is not None
