"""How to reach ZooKeeper, and who we are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from runtime.config import ConfigError
from runtime.logs import Secret
from runtime.shared_options import MetadataConfig
from runtime.tls import TlsOptions

Scheme = Literal["digest", "sasl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperAccess:
    """Anonymous and in clear unless it says more.

    `digest` sends the password to the server, so it belongs inside TLS; `sasl` (DIGEST-MD5) proves
    it. With `private`, nodes are made for this user alone, which is `zkEnableSecurity`.
    """

    scheme: Scheme | None = None
    user: str | None = None
    password: Secret | None = None
    private: bool = False
    tls: TlsOptions | None = None

    def __post_init__(self) -> None:
        if (self.scheme is None) != (self.user is None) or (self.user is None) != (
            self.password is None
        ):
            raise ConfigError("a user, a password and a scheme for ZooKeeper belong together")

    @property
    def credentials(self) -> str | None:
        """For the digest scheme."""
        if self.scheme != "digest" or self.password is None:
            return None
        return f"{self.user}:{self.password.reveal()}"


ANONYMOUS: Final = ZookeeperAccess()


def access_of(config: MetadataConfig) -> ZookeeperAccess:
    """What the operator's file says."""
    if config.restrict_access and config.auth_scheme is None and config.tls_key is None:
        raise ConfigError(
            "zkEnableSecurity makes nodes for one user alone, and there is none: set "
            "quire_zkAuthScheme, quire_zkAuthUser and quire_zkAuthPassword, or show a certificate"
        )
    return ZookeeperAccess(
        scheme=config.auth_scheme,  # type: ignore[arg-type]
        user=config.auth_user,
        password=config.auth_password,
        private=config.restrict_access,
        tls=config.tls_options(),
    )
