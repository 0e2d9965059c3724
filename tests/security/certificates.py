"""Certificates for tests: an authority of their own, and whoever it vouches for."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)


@dataclass(frozen=True, slots=True)
class Issued:
    """A key and its certificate, in files."""

    certificate: str
    key: str


class Authority:
    """`ca.pem` and what it issues, in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._authority = trustme.CA()
        self.trust = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.trust)

    def issue(
        self,
        name: str,
        *hosts: str,
        unit: str | None = None,
        expired: bool = False,
        password: bytes | None = None,
    ) -> Issued:
        """`hosts` are what the certificate is for; `unit` is where a role would stand."""
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        made = self._authority.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            organization_unit_name=unit,
            not_after=past if expired else None,
        )
        issued = Issued(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}-key.pem"))
        chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
        # Java reads keys of this form only; OpenSSL writes it, too.
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        how: KeySerializationEncryption = NoEncryption()
        if password is not None:
            how = BestAvailableEncryption(password)
        Path(issued.certificate).write_bytes(chain)
        Path(issued.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
        return issued

    def store(self, name: str, issued: Issued, password: bytes) -> str:
        """The same as a PKCS12 store."""
        key = load_pem_private_key(Path(issued.key).read_bytes(), None)
        own, *others = x509.load_pem_x509_certificates(Path(issued.certificate).read_bytes())
        path = self.folder / f"{name}.p12"
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"quire",
                key,  # type: ignore[arg-type]
                own,
                others,
                BestAvailableEncryption(password),
            )
        )
        return str(path)

    def trust_store(self, password: bytes) -> str:
        """The authority alone, as a PKCS12 store."""
        own = x509.load_pem_x509_certificate(Path(self.trust).read_bytes())
        path = self.folder / "ca.p12"
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                None, None, None, [own], BestAvailableEncryption(password)
            )
        )
        return str(path)
