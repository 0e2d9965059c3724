"""Who is at the other end of a connection: the interface, and what a bookie without one says.

A bookie that authenticates makes an `Authenticator` for every connection. Until that is satisfied
the connection may authenticate and begin TLS, nothing else; what it asks in the meantime is
refused. Without authentication, whoever asks for it is told so, and is then content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from runtime.sockets import ByteStream
from wire.errors import UnauthorizedError
from wire.messages import AuthRequest, AuthResponse

#: What both sides call themselves when they do not authenticate.
AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
AUTH_DISABLED: Final = AuthResponse(plugin=AUTH_DISABLED_PLUGIN, payload=b"")


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


#: None: connections are taken as they come.
NewAuthenticator: TypeAlias = Callable[[ByteStream], Authenticator] | None
