"""Options of TLS and of SASL, by Apache's names. Servers and clients read the same keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from runtime.config import ConfigError, option
from runtime.tls import Certificates, TlsOptions, client_context, server_context

#: Apache's factory, which reads the keys below; the one that we are.
TLS_FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
#: What the two sides of SASL are called in a configuration.
SASL_BOOKIE_FACTORY: Final = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
SASL_CLIENT_FACTORY: Final = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
#: SASL's names, the same for every bookie.
SASL_PLUGIN: Final = "sasl"
SASL_SERVICE: Final = "bookkeeper"
SASL_HOST: Final = "bookkeeper"
SASL_REALM: Final = "bookkeeper"

_TYPE_WHY: Final = "Java's own format cannot be read here; a JKS store is converted by keytool."


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS between clients and bookies."""

    factory: str | None = option(
        "tlsProviderFactoryClass",
        None,
        choices=(TLS_FACTORY,),
        doc="Set it to switch TLS on: a bookie then offers it, a client insists on it.",
    )
    provider: str = option(
        "tlsProvider",
        "OpenSSL",
        choices=("OpenSSL", "JDK"),
        doc="Without effect: TLS is OpenSSL's here, whatever this says.",
    )
    required: bool = option(
        "quire_tlsRequired",
        False,
        doc="A bookie's: refuse everything that comes in clear. False serves both, which is what "
        "Apache's bookies do, and what a change to TLS without an interruption needs.",
    )
    mutual: bool = option(
        "tlsClientAuthentication",
        False,
        doc="A bookie's: want a certificate from every client that begins TLS. A client's: show "
        "one.",
    )
    key_type: str = option(
        "tlsKeyStoreType",
        "PEM",
        choices=("PEM", "PKCS12", "JKS"),
        doc="The format of `tlsKeyStore`.",
        why=_TYPE_WHY,
    )
    key: str | None = option(
        "tlsKeyStore",
        None,
        doc="The file with our key; with PKCS12 it holds our certificate, too.",
    )
    key_password_file: str | None = option(
        "tlsKeyStorePasswordPath", None, doc="A file with the password of that one."
    )
    certificate: str | None = option(
        "tlsCertificatePath",
        None,
        doc="Our certificate and those between it and the authority, in PEM.",
    )
    trust_type: str = option(
        "tlsTrustStoreType",
        "PEM",
        choices=("PEM", "PKCS12", "JKS"),
        doc="The format of `tlsTrustStore`.",
        why=_TYPE_WHY,
    )
    trust: str | None = option(
        "tlsTrustStore",
        None,
        doc="The certificates of the authorities whose word we take for others'. A client "
        "without it takes those of the operating system.",
    )
    trust_password_file: str | None = option(
        "tlsTrustStorePasswordPath", None, doc="A file with the password of that one."
    )
    protocols: tuple[str, ...] = option(
        "tlsEnabledProtocols",
        (),
        doc="`TLSv1.2`, `TLSv1.3` or both. Unset: both.",
    )
    ciphers: tuple[str, ...] = option(
        "tlsEnabledCipherSuites",
        (),
        doc="Suites for TLS 1.2, by Java's or OpenSSL's names. Unset: those with forward secrecy "
        "and authenticated encryption. Those of TLS 1.3 are always on.",
    )
    refresh_seconds: int = option(
        "tlsCertFilesRefreshDurationSeconds",
        60,
        minimum=0,
        maximum=86_400,
        doc="How often to look whether the files have changed; what is new is used from the next "
        "connection on. 0 is never.",
        why="Certificates are renewed, and nobody should have to think of a restart.",
    )
    check_hostname: bool = option(
        "tlsHostnameVerificationEnabled",
        True,
        doc="A client's: want the certificate to name the host, or the address, that it dials.",
        why="Otherwise any machine with a certificate of the same authority can pose as a bookie.",
    )

    def __post_init__(self) -> None:
        if self.factory is None and self.required:
            raise ConfigError(
                "quire_tlsRequired is true, and TLS is off: set "
                f"tlsProviderFactoryClass={TLS_FACTORY}"
            )

    @property
    def is_on(self) -> bool:
        return self.factory is not None

    def _options(self) -> TlsOptions:
        return TlsOptions(
            trust=self.trust,
            trust_type=self.trust_type,
            trust_password_file=self.trust_password_file,
            certificate=self.certificate if self.key_type == "PEM" else None,
            key=self.key,
            key_type=self.key_type,
            key_password_file=self.key_password_file,
            protocols=self.protocols,
            ciphers=self.ciphers,
            check_hostname=self.check_hostname,
            require_certificate=self.mutual,
        )

    def server(self) -> Certificates | None:
        """What a bookie shows; None when TLS is off. ConfigError if the files are no good."""
        if not self.is_on:
            return None
        return Certificates(self._options(), server_context, refresh_seconds=self.refresh_seconds)

    def client(self) -> TlsOptions | None:
        """What a client wants and shows; None when TLS is off."""
        if not self.is_on:
            return None
        options = self._options()
        if self.mutual and self.key is None:
            raise ConfigError(
                "tlsClientAuthentication is true, and there is nothing to show: set tlsKeyStore "
                "and tlsCertificatePath"
            )
        # A file that a bookie and its clients share names a key that only the bookie is to show.
        return (
            options
            if self.mutual
            else TlsOptions(
                trust=options.trust,
                trust_type=options.trust_type,
                trust_password_file=options.trust_password_file,
                protocols=options.protocols,
                ciphers=options.ciphers,
                check_hostname=options.check_hostname,
            )
        )


def client_certificates(options: TlsOptions, refresh_seconds: float = 60.0) -> Certificates:
    return Certificates(options, client_context, refresh_seconds=refresh_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """Users and passwords, for both sides of SASL/DIGEST-MD5."""

    file: str | None = option(
        "quire_jaasFile",
        None,
        doc="The file with users and passwords, in Java's form: what a JVM is told by "
        "`java.security.auth.login.config`.",
    )
    bookie_section: str = option(
        "saslJaasBookieSectionName", "Bookie", doc="The section with those who may come in."
    )
    client_section: str = option(
        "saslJaasClientSectionName", "BookKeeper", doc="The section that says who a client is."
    )
    auditor_section: str = option(
        "saslJaasAuditorSectionName", "Auditor", doc="The same for autorecovery."
    )
    allowed_ids: str = option(
        "saslJaasClientAllowedIds",
        ".*bookkeeper.*",
        doc="A regular expression that the names of users must match as a whole.",
    )

    def __post_init__(self) -> None:
        try:
            re.compile(self.allowed_ids)
        except re.error as error:
            raise ConfigError(
                f"saslJaasClientAllowedIds is no regular expression: {error}"
            ) from None

    def need_file(self, key: str) -> str:
        if self.file is None:
            raise ConfigError(
                f"{key} asks for SASL, which needs users: name their file in quire_jaasFile"
            )
        return self.file
