"""Keys and certificates from files into an SSL context, with one clear line when that fails.

PKCS12 needs the package `cryptography`, whose only door this is. Python's `ssl` takes keys from
files alone, so what comes out of a PKCS12 store goes through a file in memory, never one on disk.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.config import ConfigError
from runtime.logs import Secret

STORE_TYPES: Final = ("PEM", "PKCS12")
_PEM_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a key and its certificate are."""

    kind: str  # one of STORE_TYPES
    key: str
    certificate: str | None


def read_password(path: str | None) -> Secret | None:
    """The password in a file, as Java reads it: surrounding white space is not part of it."""
    return None if path is None else Secret(_read(path).decode(errors="replace").strip())


def load_trust(context: ssl.SSLContext, path: str, kind: str, password: Secret | None) -> None:
    if kind == "PKCS12":
        _, _, others = _open_pkcs12(path, password)
        pem = b"".join(_as_pem(certificate) for certificate in others)
    else:
        pem = _read(path)
    if _PEM_CERTIFICATE not in pem:
        raise ConfigError(f"{path} holds no certificate of an authority to trust: want {kind}")
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", errors="replace"))
    except ssl.SSLError as error:
        raise ConfigError(
            f"{path} holds a certificate that cannot be read: {_words(error)}"
        ) from None


def load_identity(context: ssl.SSLContext, identity: Identity, password: Secret | None) -> None:
    if identity.kind == "PKCS12":
        key, own, others = _open_pkcs12(identity.key, password)
        if key is None or own is None:
            raise ConfigError(f"{identity.key} holds no key with its certificate: export both")
        pem = _key_pem(key) + b"".join(map(_as_pem, (own, *others)))
        with _unwritten_file(pem) as path:
            _load_chain(context, path, path, identity.key, None)
    else:
        assert identity.certificate is not None, "PEM files come in pairs"
        for path, what in ((identity.certificate, "certificate"), (identity.key, "key")):
            if b"-----BEGIN " not in _read(path):
                raise ConfigError(f"{path} is no PEM file with a {what}: convert it with openssl")
        _load_chain(context, identity.certificate, identity.key, identity.key, password)


def _load_chain(
    context: ssl.SSLContext, certificate: str, key: str, shown: str, password: Secret | None
) -> None:
    def reveal() -> str:
        # Without this, OpenSSL would ask whoever sits at the terminal.
        if password is None:
            raise ConfigError(
                f"the key in {shown} is encrypted: name a file with its password in "
                "tlsKeyStorePasswordPath"
            )
        return password.reveal()

    try:
        context.load_cert_chain(certificate, key, reveal)
    except ssl.SSLError as error:
        if "mismatch" in str(error).lower():
            why = f"is not the key of the certificate in {certificate}: give both of one pair"
        elif password is not None:
            why = f"cannot be read ({_words(error)}): check the file and its password"
        else:
            why = f"cannot be read with {certificate} ({_words(error)}): check both files"
        raise ConfigError(f"the key in {shown} {why}") from None
    except OSError as error:
        raise ConfigError(f"{shown}: {error.strerror}; check the path and its owner") from None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; check the path and its owner"
        ) from None


def _words(error: ssl.SSLError) -> str:
    return (error.reason or "no reason is known").lower().replace("_", " ")


# ---------------------------------------------------------------------- PKCS12


def _open_pkcs12(path: str, password: Secret | None) -> tuple[Any, Any, list[Any]]:
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ModuleNotFoundError:
        raise ConfigError(
            f"{path}: PKCS12 stores need the package cryptography: run pip install cryptography, "
            "or use PEM files"
        ) from None
    secret = None if password is None else password.reveal().encode()
    try:
        return pkcs12.load_key_and_certificates(_read(path), secret)
    except ValueError:
        raise ConfigError(
            f"{path} is no PKCS12 store, or its password is another: check the file and the "
            "password file"
        ) from None


def _as_pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = certificate.public_bytes(Encoding.PEM)
    return pem


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


@contextmanager
def _unwritten_file(data: bytes) -> Iterator[str]:
    """A path under which these bytes can be read by this process, and by nobody afterwards."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:  # readable by its owner only
            file.write(data)
            file.flush()
            yield file.name
