"""Who may do what over HTTP: the guard in front of the admin paths and the console.

Three dangers, three checks:

- Somebody else changes something. What is not GET or HEAD needs `Authorization: Bearer <token>`;
  where no token is configured, it must come from this machine.
- A page in the operator's browser speaks for them. There are no cookies to steal, but a browser
  on this machine is this machine. It tells where a request comes from (`Origin`,
  `Sec-Fetch-Site`); what does not come from a page of our own is refused. Programs send neither.
- Such a page calls us by a name of its own that resolves to our address (DNS rebinding). So we
  answer to addresses and to our own names only. Whoever has the token is not such a page.

`/heartbeat` and the like answer everybody: probes and scrapers reach us under any name, and there
is nothing to steal.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime import logs
from runtime.logs import Secret
from runtime.properties import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: A token is for machines; a short one can be guessed.
TOKEN_CHARACTERS_MIN: Final = 16
TOKEN_CHARACTERS_MAX: Final = 4096

_log = logs.get("runtime.http_guard")


class TokenError(ConfigError):
    """The file of the token cannot be used."""


class Refusal(NamedTuple):
    status: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules. `names` are host names that we answer to beside addresses and `localhost`.

    `open_paths` answer everybody, whatever the method: nothing there changes or is secret.
    """

    token: Secret | None = None
    names: frozenset[str] = field(default_factory=frozenset)
    open_paths: frozenset[str] = frozenset()

    def refusal(
        self, *, method: str, path: str, client: str | None, headers: Sequence[tuple[bytes, bytes]]
    ) -> Refusal | None:
        """Why this request is refused; None when it may pass."""
        if path in self.open_paths:
            return None
        reading = method in ("GET", "HEAD", "OPTIONS")
        given = _header(headers, b"authorization")
        if given is not None and self.token is not None:
            return _check_token(given, self.token)
        host = _header(headers, b"host") or ""
        if not self._is_ours(host):
            return Refusal(
                403,
                f"{_short(host)} is not a name of this server: use its address, or list the name "
                "in quire_httpServerNames",
            )
        if not _same_origin(headers, host) and not (reading and _followed_link(headers)):
            return Refusal(403, "a page of another site may not use this server")
        if reading:
            return None
        if self.token is not None:
            return Refusal(401, "a token is needed: send Authorization: Bearer <token>")
        if not _is_loopback(client):
            return Refusal(
                403,
                "no token is configured here, so changes are taken from this machine only: set "
                "quire_httpTokenFile",
            )
        return None

    def _is_ours(self, host: str) -> bool:
        name = _without_port(host)
        return name == "localhost" or name in self.names or _address(name) is not None


class Guarded:
    """An application behind a guard."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        refusal = self._guard.refusal(
            method=scope["method"],
            path=scope["path"],
            client=client[0] if client else None,
            headers=scope["headers"],
        )
        if refusal is None:
            await self._app(scope, receive, send)
            return
        _log.warning(
            "request refused",
            client=client[0] if client else "",
            method=scope["method"],
            path=scope["path"],
            status=refusal.status,
            reason=refusal.text,
        )
        body = f"{refusal.text}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        if refusal.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="quire"'))
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def read_token(path: str) -> Secret:
    """The token in a file: one line. A file that everybody may read keeps no secret."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(TOKEN_CHARACTERS_MAX + 2)
    except OSError as error:
        raise TokenError(
            f"cannot read the token in {path}: {(error.strerror or str(error)).lower()}; "
            "quire_httpTokenFile names a file with one line"
        ) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise TokenError(f"everybody may read the token in {path}: run chmod 600 on it")
    token = text.strip()
    if not token.isascii() or not token.decode("ascii").isprintable() or b" " in token:
        raise TokenError(f"the token in {path} must be one line of printable ASCII without spaces")
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise TokenError(
            f"the token in {path} has {len(token)} characters: take {TOKEN_CHARACTERS_MIN} to "
            f"{TOKEN_CHARACTERS_MAX}, from `openssl rand -hex 32` for example"
        )
    return Secret(token.decode("ascii"))


def own_names(*more: str) -> frozenset[str]:
    """The names that this machine is known to have by itself, and `more`."""
    return frozenset(name.lower().rstrip(".") for name in (socket.gethostname(), *more) if name)


def _check_token(given: str, token: Secret) -> Refusal | None:
    scheme, _, text = given.partition(" ")
    sent = text.strip().encode("latin-1")
    if scheme.lower() == "bearer" and hmac.compare_digest(sent, token.reveal().encode()):
        return None
    return Refusal(401, "the token is not the right one")


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    found = [value for name, value in headers if name.lower() == wanted]
    # Two of a kind that matter here are a trick, and match nothing.
    return ",".join(value.decode("latin-1") for value in found) if found else None


def _same_origin(headers: Sequence[tuple[bytes, bytes]], host: str) -> bool:
    site = _header(headers, b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = _header(headers, b"origin")
    return origin is None or origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())


def _followed_link(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """A person came here from elsewhere, in a window of its own; that page sees nothing of it."""
    wanted = {b"sec-fetch-mode": "navigate", b"sec-fetch-dest": "document"}
    return all(_header(headers, name) == value for name, value in wanted.items())


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(client: str | None) -> bool:
    address = _address(client or "")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def _short(text: str) -> str:
    return repr(text[:100])
