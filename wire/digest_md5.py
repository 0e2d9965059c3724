"""SASL DIGEST-MD5 (RFC 2831), both sides, with the quality of protection `auth` only.

Three tokens: the server's challenge, the client's response, the server's proof that it knows the
password, too. MD5 is no longer good for much, and the exchange protects nothing that follows it:
it is here because Apache's peers speak it, and belongs inside TLS.

Chance comes in as text of the caller's making. Passwords are `str`, and nothing here shows them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wire.errors import UnauthorizedError

TOKEN_BYTES_MAX: Final = 4096
_ALGORITHM: Final = "md5-sess"
_COUNT: Final = "00000001"
_QOP: Final = "auth"
#: name=value or name="value", with backslashes before characters of the quoted form.
_DIRECTIVE: Final = re.compile(
    r'[\s,]*([A-Za-z][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))[\s]*(?=,|$)', re.DOTALL
)
_ONCE: Final = frozenset(
    {"username", "nonce", "cnonce", "nc", "qop", "digest-uri", "response", "authzid", "algorithm",
     "charset", "rspauth"}
)  # fmt: skip


class SaslError(UnauthorizedError):
    """A token that cannot be used, or a proof that is wrong."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What both sides hash."""

    user: str
    realm: str
    nonce: str
    cnonce: str
    uri: str
    authorization_id: str | None
    password: str = field(repr=False)

    def proof(self, verb: str) -> str:
        """`AUTHENTICATE` for the client's, an empty verb for the server's."""
        secret = _md5(b":".join((_octets(self.user), _octets(self.realm), _octets(self.password))))
        parts = [secret, self.nonce.encode(), self.cnonce.encode()]
        if self.authorization_id is not None:
            parts.append(self.authorization_id.encode())
        first = _md5(b":".join(parts)).hex()
        second = _md5(f"{verb}:{self.uri}".encode()).hex()
        told = f"{first}:{self.nonce}:{_COUNT}:{self.cnonce}:{_QOP}:{second}"
        return _md5(told.encode()).hex()


class DigestMd5Server:
    """The server's side of one exchange."""

    def __init__(
        self, passwords: Mapping[str, str], *, service: str, host: str, realm: str, nonce: str
    ) -> None:
        self._passwords = passwords
        self._uri = f"{service}/{host}".lower()
        self._realm = realm
        self._nonce = nonce
        self.user: str | None = None  # once it has proved itself

    def challenge(self) -> bytes:
        return (
            f'realm={_quoted(self._realm)},nonce={_quoted(self._nonce)},qop="auth",'
            f"charset=utf-8,algorithm={_ALGORITHM}"
        ).encode()

    def answer(self, token: bytes) -> bytes:
        """The proof for a client that knows its password; SaslError for any other."""
        said = _parse(token)
        user = _need(said, "username")
        # Somebody unknown takes as long as somebody with a wrong password.
        known = self._passwords.get(user)
        facts = _Facts(
            user=user,
            realm=said.get("realm", ""),
            nonce=self._nonce,
            cnonce=_need(said, "cnonce"),
            uri=_need(said, "digest-uri"),
            authorization_id=said.get("authzid"),
            password="" if known is None else known,
        )
        is_right = hmac.compare_digest(
            facts.proof("AUTHENTICATE").encode(), _need(said, "response").lower().encode()
        )
        agreed = (
            facts.realm == self._realm
            and hmac.compare_digest(said.get("nonce", "").encode(), self._nonce.encode())
            and said.get("nc") == _COUNT
            and said.get("qop", _QOP) == _QOP
            and facts.uri.lower() == self._uri
            and facts.authorization_id in (None, user)
        )
        if known is None or not is_right or not agreed:
            raise SaslError("SASL: the user or the password is not the one that is known here")
        self.user = user
        return f"rspauth={facts.proof('')}".encode()


class DigestMd5Client:
    """The client's side of one exchange."""

    def __init__(self, user: str, password: str, *, service: str, host: str, cnonce: str) -> None:
        self._user = user
        self._password = password
        self._uri = f"{service}/{host}"
        self._cnonce = cnonce
        self._facts: _Facts | None = None
        self.is_complete = False

    def answer(self, token: bytes) -> bytes:
        """The response to a challenge, or nothing to the server's proof, which is checked."""
        said = _parse(token)
        if self._facts is not None:
            if not hmac.compare_digest(
                _need(said, "rspauth").encode(), self._facts.proof("").encode()
            ):
                raise SaslError("SASL: the bookie does not know the password itself")
            self.is_complete = True
            return b""
        if said.get("algorithm") != _ALGORITHM:
            raise SaslError("SASL: the challenge is not one of DIGEST-MD5")
        if _QOP not in re.split(r"[\s,]+", said.get("qop", _QOP)):
            raise SaslError("SASL: the bookie wants more than authentication; use TLS for that")
        self._facts = facts = _Facts(
            user=self._user,
            realm=said.get("realm", ""),
            nonce=_need(said, "nonce"),
            cnonce=self._cnonce,
            uri=self._uri,
            authorization_id=self._user,
            password=self._password,
        )
        return ",".join(
            [
                "charset=utf-8",
                f"username={_quoted(facts.user)}",
                f"realm={_quoted(facts.realm)}",
                f"nonce={_quoted(facts.nonce)}",
                f"nc={_COUNT}",
                f"cnonce={_quoted(facts.cnonce)}",
                f"digest-uri={_quoted(facts.uri)}",
                "maxbuf=65536",
                f"response={facts.proof('AUTHENTICATE')}",
                f"qop={_QOP}",
                f"authzid={_quoted(self._user)}",
            ]
        ).encode()


def _parse(token: bytes) -> dict[str, str]:
    """The directives of a token; of those that may be repeated, the first."""
    if len(token) > TOKEN_BYTES_MAX:
        raise SaslError(f"SASL: a token of {len(token)} bytes, the most are {TOKEN_BYTES_MAX}")
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise SaslError("SASL: a token is not UTF-8") from None
    found: dict[str, str] = {}
    at = 0
    while match := _DIRECTIVE.match(text, at):
        name = match[1].lower()
        if name in found and name in _ONCE:
            raise SaslError(f"SASL: a token says {name} twice")
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        found.setdefault(name, value)
        at = match.end()
    if text[at:].strip(" \t\r\n,\0"):
        raise SaslError("SASL: a token is not a list of names and values")
    return found


def _need(said: Mapping[str, str], name: str) -> str:
    if name not in said:
        raise SaslError(f"SASL: a token does not say {name}")
    return said[name]


def _quoted(text: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _octets(text: str) -> bytes:
    """Latin-1 where that is possible, as the RFC wants it for hashing."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
