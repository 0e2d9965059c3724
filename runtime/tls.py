"""TLS: what an operator decides, the contexts made of it, and certificates that change on disk.

Files are PEM, or PKCS12 for those who bring their stores from Java. TLS 1.2 is the oldest version
that is spoken, and only with suites that keep a recorded conversation secret when the key is lost
later. There is no resumption: connections between bookies and clients live long.

A certificate that was renewed on disk is used for the next connection. If it cannot be used, the
one before stays, and the log says so: a mistake in a renewal must not take a cluster down.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime import logs
from runtime.config import ConfigError
from runtime.tls_stores import STORE_TYPES, Identity, load_identity, load_trust, read_password

#: Forward secrecy and authenticated encryption only, for TLS 1.2; those of 1.3 all are like that.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!eNULL:!MD5:!DSS"
VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}

_log = logs.get("runtime.tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Whom we trust, and who we are. For a client, `trust` alone is enough unless it is asked.

    `key` holds the key and, with `key_type="PKCS12"`, the certificates, too. Without `trust` the
    authorities of the operating system are trusted.
    """

    trust: str | None = None
    trust_type: str = "PEM"
    trust_password_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_type: str = "PEM"
    key_password_file: str | None = None
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    #: A client's: whether the bookie's certificate must name the host that was dialled.
    check_hostname: bool = True
    #: A server's: whether clients must have a certificate of an authority in `trust`.
    require_certificate: bool = False

    def __post_init__(self) -> None:
        for kind in (self.key_type, self.trust_type):
            if kind not in STORE_TYPES:
                raise ConfigError(_wrong_type(kind))
        for name in self.protocols:
            if name not in VERSIONS:
                raise ConfigError(
                    f"TLS protocol {name!r} is not offered: want {' or '.join(VERSIONS)}; older "
                    "ones are broken"
                )
        if self.key_type == "PEM" and (self.key is None) != (self.certificate is None):
            raise ConfigError(
                "a PEM key and its certificate belong together: set both files or none"
            )

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that is read to make a context of it."""
        names = (
            self.trust, self.trust_password_file, self.certificate, self.key,
            self.key_password_file,
        )  # fmt: skip
        return tuple(name for name in names if name is not None)


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """For a bookie. ConfigError, in one line, if a file cannot be used."""
    if options.key is None:
        raise ConfigError("TLS needs a key and a certificate: set tlsKeyStore, tlsCertificatePath")
    if options.require_certificate and options.trust is None:
        raise ConfigError(
            "clients are to show certificates, and nothing says whose: set tlsTrustStore"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _complete(context, options)
    if options.require_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """For a client. ConfigError, in one line, if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.check_hostname
    context.options |= ssl.OP_NO_COMPRESSION
    if options.trust is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _complete(context, options)
    return context


def _complete(context: ssl.SSLContext, options: TlsOptions) -> None:
    versions = [VERSIONS[name] for name in options.protocols or VERSIONS]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    ciphers = ":".join(map(openssl_name, options.ciphers)) if options.ciphers else CIPHERS
    # Suites of TLS 1.3 cannot be chosen here; all of them are good.
    chosen = ":".join(name for name in ciphers.split(":") if not name.startswith("TLS_"))
    if chosen:
        try:
            context.set_ciphers(chosen)
        except ssl.SSLError:
            raise ConfigError(
                f"tlsEnabledCipherSuites: none of {chosen} is known here; leave the key out for "
                "good ones"
            ) from None
    if options.trust is not None:
        load_trust(
            context, options.trust, options.trust_type, read_password(options.trust_password_file)
        )
    if options.key is not None:
        identity = Identity(options.key_type, options.key, options.certificate)
        load_identity(context, identity, read_password(options.key_password_file))


def openssl_name(suite: str) -> str:
    """A suite of TLS 1.2 by OpenSSL's name, where Java's was given."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, rest = suite.removeprefix("TLS_").partition("_WITH_")
    words = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").split("_")
    if words[:2] == ["CHACHA20", "POLY1305"]:
        words = words[:2]  # OpenSSL leaves the hash out
    return "-".join([*exchange.split("_"), *words])


def _wrong_type(kind: str) -> str:
    if kind == "JKS":
        return (
            "key stores of type JKS cannot be read here: convert it with `keytool "
            "-importkeystore -srckeystore FILE -destkeystore NEW -deststoretype PKCS12`, or "
            "use PEM files and set the type to PEM"
        )
    return f"key store type {kind!r} is not known: want {' or '.join(STORE_TYPES)}"


class Certificates:
    """The context of the moment. `current` looks at the files now and then."""

    def __init__(
        self,
        options: TlsOptions,
        make: Callable[[TlsOptions], ssl.SSLContext],
        *,
        refresh_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads everything at once, so that mistakes are found at the start."""
        self.options = options
        self.reloads = 0
        self._make = make
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._looked_at = clock()
        self._seen = _look(options)
        self._context = make(options)

    def current(self) -> ssl.SSLContext:
        now = self._clock()
        if self._refresh_seconds > 0 and now - self._looked_at >= self._refresh_seconds:
            self._looked_at = now
            seen = _look(self.options)
            if seen != self._seen:
                self._reload(seen)
        return self._context

    def _reload(self, seen: tuple[object, ...]) -> None:
        self._seen = seen  # files that are wrong are not tried again until they change
        try:
            self._context = self._make(self.options)
        except ConfigError as error:
            _log.warning("the new certificates cannot be used, the old ones stay", error=error)
        else:
            self.reloads += 1
            _log.info("certificates were read again", files=" ".join(self.options.files))


def _look(options: TlsOptions) -> tuple[object, ...]:
    """What tells one state of the files from another."""
    return tuple(_stat(name) for name in options.files)


def _stat(name: str) -> object:
    try:
        found = os.stat(Path(name))
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino
