"""From the operator's file to who may come in."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookie.auth_providers import CertificateRoles, SaslDigest
from bookie.authentication import BookieSecurity, NewAuthenticator
from runtime.config import ConfigError, Settings, option
from runtime.jaas import read_users
from runtime.tls_config import SASL_BOOKIE_FACTORY, SaslConfig, TlsConfig

ROLES_FACTORY: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationConfig:
    """Who may use a bookie."""

    provider: str | None = option(
        "bookieAuthProviderFactoryClass",
        None,
        doc=f"How clients say who they are: `{ROLES_FACTORY}` (the role in their certificate), "
        f"`{SASL_BOOKIE_FACTORY}` (user and password), or the path of a Python callable "
        "(`module.name`, see `bookie/authentication.py`). Unset: everybody may come in.",
    )
    roles: tuple[str, ...] = option(
        "authorizedRoles",
        (),
        doc="With the roles in certificates: those that may come in.",
    )
    seconds_max: int = option(
        "quire_authenticationTimeoutSec",
        30,
        minimum=1,
        maximum=3600,
        doc="Disconnect a client that has not said who it is by then. The handshake of TLS counts.",
    )

    def new_authenticator(self, tls: TlsConfig, sasl: SaslConfig) -> NewAuthenticator:
        """ConfigError if what was asked for cannot be had: nobody is let in by mistake."""
        if self.provider is None:
            if self.roles:
                raise ConfigError(
                    "authorizedRoles is set and nothing looks at it: set "
                    f"bookieAuthProviderFactoryClass={ROLES_FACTORY}"
                )
            return None
        if self.provider == ROLES_FACTORY:
            if not self.roles:
                raise ConfigError(
                    f"bookieAuthProviderFactoryClass={ROLES_FACTORY} lets nobody in without "
                    "authorizedRoles: name the roles"
                )
            if not (tls.is_on and tls.mutual):
                raise ConfigError(
                    "roles stand in the certificates of clients: switch TLS on "
                    "(tlsProviderFactoryClass), and set tlsClientAuthentication=true"
                )
            return partial(CertificateRoles, frozenset(self.roles))
        if self.provider == SASL_BOOKIE_FACTORY:
            users = read_users(
                sasl.need_file("bookieAuthProviderFactoryClass"), sasl.bookie_section
            )
            return partial(SaslDigest, users, re.compile(sasl.allowed_ids))
        return _load(self.provider)


def read_security(settings: Settings) -> BookieSecurity:
    """Everything the file says. Files that it names are read here, before anything is opened."""
    authentication = settings.build(AuthenticationConfig)
    tls = settings.build(TlsConfig)
    sasl = settings.build(SaslConfig)
    return BookieSecurity(
        certificates=tls.server(),
        tls_required=tls.required,
        new_authenticator=authentication.new_authenticator(tls, sasl),
        seconds_max=float(authentication.seconds_max),
    )


def _load(path: str) -> NewAuthenticator:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"bookieAuthProviderFactoryClass is {path!r}, which cannot be had ({error}): want "
            f"{ROLES_FACTORY}, {SASL_BOOKIE_FACTORY} or the path of a Python callable"
        ) from None
    if not callable(found):
        raise ConfigError(f"bookieAuthProviderFactoryClass is {path!r}, which cannot be called")
    return found  # type: ignore[no-any-return]
