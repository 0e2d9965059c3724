"""Who a client is and whom it trusts, from a configuration that BookKeeper's operators know.

    LedgerClient(uri, **read_security("client.conf"))

For programs that have no file of their own (commands, Spark tasks) the environment will do: a
variable `BK_<key>` counts as a line of the file.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final, TypedDict

from ledger_client.entrance import ClientAuth, SaslDigest, SecureNetwork
from metadata.access import ANONYMOUS, ZookeeperAccess, access_of
from runtime.config import ConfigError, Settings, option
from runtime.jaas import read_login
from runtime.shared_options import MetadataConfig
from runtime.sockets import Network, SocketNetwork
from runtime.tls import TlsOptions
from runtime.tls_config import SASL_CLIENT_FACTORY, SaslConfig, TlsConfig

_KEY: Final = "clientAuthProviderFactoryClass"


class Security(TypedDict, total=False):
    """Arguments of a `LedgerClient`."""

    tls: TlsOptions | None
    auth: ClientAuth | None
    zookeeper: ZookeeperAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAuthConfig:
    """Who a client says it is."""

    provider: str | None = option(
        _KEY,
        None,
        doc=f"How to say who we are to bookies: `{SASL_CLIENT_FACTORY}` (user and password), or "
        "the path of a Python callable (`module.name`) that gives a `ClientAuth` of "
        "`ledger_client/entrance.py`. Unset: not at all; a certificate needs none.",
    )

    def auth(self, sasl: SaslConfig, *, section: str) -> ClientAuth | None:
        if self.provider is None:
            return None
        if self.provider == SASL_CLIENT_FACTORY:
            return SaslDigest(read_login(sasl.need_file(_KEY), section))
        module, _, name = self.provider.rpartition(".")
        try:
            made: ClientAuth = getattr(importlib.import_module(module), name)()
        except (ImportError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{_KEY} is {self.provider!r}, which cannot be had ({error}): want "
                f"{SASL_CLIENT_FACTORY} or the path of a Python callable"
            ) from None
        return made


def security_of(settings: Settings, *, is_daemon: bool = False) -> Security:
    """What the file says. A daemon is autorecovery, which has a section of its own for SASL."""
    sasl = settings.build(SaslConfig)
    section = sasl.auditor_section if is_daemon else sasl.client_section
    return Security(
        tls=settings.build(TlsConfig).client(),
        auth=settings.build(ClientAuthConfig).auth(sasl, section=section),
        zookeeper=access_of(settings.build(MetadataConfig)),
    )


def read_security(path: str | None = None) -> Security:
    """The same, from a file and the variables `BK_<key>`, or from these alone."""
    return security_of(Settings.read(path))


def secure_network(security: Security, below: Network | None = None) -> Network:
    """The network by which bookies are reached."""
    tls, auth = security.get("tls"), security.get("auth")
    below = below or SocketNetwork()
    return below if tls is None and auth is None else SecureNetwork(below, tls=tls, auth=auth)


def zookeeper_of(security: Security) -> ZookeeperAccess:
    return security.get("zookeeper", ANONYMOUS)
