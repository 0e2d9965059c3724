"""Apache's two ways to know a client: the role in its certificate, and SASL/DIGEST-MD5."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Final

from bookie.authentication import AuthenticationFailedError, Subject
from runtime import logs
from runtime.logs import Secret
from runtime.sockets import ByteStream
from runtime.tls_config import SASL_HOST, SASL_PLUGIN, SASL_REALM, SASL_SERVICE
from wire.digest_md5 import DigestMd5Server, SaslError
from wire.errors import Status
from wire.messages import AuthRequest, AuthResponse

ROLES_PLUGIN: Final = "BookieAuthZFactory"
_UNIT: Final = "organizationalUnitName"
#: A unit is a list of `number:values`; number 0 has the roles.
_UNIT_PART: Final = re.compile(r"([0-9]+):(.*)", re.DOTALL)
_ROLES: Final = "0"
_NONCE_BYTES: Final = 24

_log = logs.get("bookie.authentication")


def role_of(subject: Subject) -> str | None:
    """The role in a certificate, as Apache finds it: the first of `OU=0:role,role;1:cluster`."""
    unit = next((value for name, value in subject if name == _UNIT), "")
    found = None
    for part in unit.split(";"):
        match = _UNIT_PART.fullmatch(part)
        if match is not None and match[1] == _ROLES:
            found = match[2].strip().split(",")[0].strip()
    return found or None


class CertificateRoles:
    """Lets in whoever shows a certificate with one of these roles. No tokens are exchanged."""

    def __init__(self, roles: Collection[str], stream: ByteStream) -> None:
        self._roles = roles
        self._peer = stream.peer
        self.is_complete = False

    def respond(self, request: AuthRequest) -> AuthResponse:
        return AuthResponse(plugin=ROLES_PLUGIN, payload=b"", status=Status.UNAUTHORIZED)

    def on_tls(self, subject: Subject) -> None:
        role = role_of(subject)
        if role is None:
            raise AuthenticationFailedError(
                f"{self._peer} has shown no certificate with a role in it: want OU=0:<role>, and "
                "one of authorizedRoles"
            )
        if role not in self._roles:
            raise AuthenticationFailedError(
                f"{self._peer} has the role {role!r}, which is not among authorizedRoles"
            )
        self.is_complete = True


class SaslDigest:
    """Lets in whoever proves to know a user's password."""

    def __init__(
        self,
        users: Mapping[str, Secret],
        allowed: re.Pattern[str],
        stream: ByteStream,
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self._peer = stream.peer
        self._allowed = allowed
        self._server = DigestMd5Server(
            {name: password.reveal() for name, password in users.items()},
            service=SASL_SERVICE,
            host=SASL_HOST,
            realm=SASL_REALM,
            nonce=new_nonce(),
        )
        self._is_asked = False
        self.is_complete = False

    def respond(self, request: AuthRequest) -> AuthResponse:
        if request.plugin != SASL_PLUGIN:
            return AuthResponse(plugin=SASL_PLUGIN, payload=b"", status=Status.UNAUTHORIZED)
        if not self._is_asked:
            self._is_asked = True
            return AuthResponse(plugin=SASL_PLUGIN, payload=self._server.challenge())
        try:
            proof = self._server.answer(request.payload)
        except SaslError as error:
            raise AuthenticationFailedError(f"{self._peer}: {error}") from error
        user = self._server.user
        assert user is not None, "a proof without a user"
        if self._allowed.fullmatch(user) is None:
            raise AuthenticationFailedError(
                f"{self._peer} is {user!r}, whom saslJaasClientAllowedIds does not allow"
            )
        _log.debug("authenticated", peer=self._peer, user=user)
        self.is_complete = True
        return AuthResponse(plugin=SASL_PLUGIN, payload=proof)

    def on_tls(self, subject: Subject) -> None:
        """A password is asked for, whoever's certificate it was."""
