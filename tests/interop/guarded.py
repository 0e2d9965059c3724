"""Bookies of either make that want TLS, a role or a password, and the same files for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.peers.cluster import MakeBookie, PeerCluster, bookies_on
from bench.peers.java_bookie import SMALL_JVM, JavaBookie
from bench.peers.process import OurBookie
from ledger_client import Login, SaslDigest, Secret, TlsOptions
from runtime.local_zookeeper import LocalZookeeper
from tests.interop.table import OURS
from tests.security.certificates import Authority, Issued

TLS, ROLES, SASL = "tls", "roles", "sasl"
#: Both must hold what `saslJaasClientAllowedIds` wants by default.
USER, PASSWORD = "bookkeeper-alice", "a planted secret"
ROLE: Final = "app"

_TLS_FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule required"


class Guards:
    """Keys, certificates and passwords, in one folder; settings and options made of them."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.bookie = self.authority.issue("bookie")
        self.app = self.authority.issue("app", unit=f"0:{ROLE},other;1:here")
        self.guest = self.authority.issue("guest", unit="0:guest,app")
        self.jaas = folder / "jaas.conf"
        self.jaas.write_text(
            f'Bookie {{ {_MODULE} user_{USER}="{PASSWORD}"; }};\n'
            f'BookKeeper {{ {_MODULE} username="{USER}" password="{PASSWORD}"; }};\n'
            f'Guessing {{ {_MODULE} username="{USER}" password="guessed"; }};\n'
        )
        self.jaas.chmod(0o600)

    # ------------------------------------------------------------------ bookies

    def maker(self, kind: str, guard: str, version: str) -> MakeBookie:
        settings = self._settings(guard)
        if kind == OURS:
            settings["quire_jaasFile"] = self.jaas
            settings["quire_tlsRequired"] = "true" if guard == TLS else "false"
            return partial(OurBookie, journalMaxSizeMB=32, **settings)
        jvm = (*SMALL_JVM, f"-Djava.security.auth.login.config={self.jaas}")
        return partial(JavaBookie, version=version, journalPreAllocSizeMB=4, jvm=jvm, **settings)

    def _settings(self, guard: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "tlsProviderFactoryClass": _TLS_FACTORY,
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": self.bookie.key,
            "tlsCertificatePath": self.bookie.certificate,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.trust,
        }
        if guard == ROLES:
            settings["tlsClientAuthentication"] = "true"
            settings["bookieAuthProviderFactoryClass"] = (
                "org.apache.bookkeeper.tls.BookieAuthZFactory"
            )
            settings["authorizedRoles"] = ROLE
        elif guard == SASL:
            settings["bookieAuthProviderFactoryClass"] = (
                "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
            )
        return settings

    # ------------------------------------------------------------------ Apache's client

    def java_tls(self, own: Issued | None = None) -> dict[str, object]:
        settings: dict[str, object] = {
            "tlsProviderFactoryClass": _TLS_FACTORY,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.trust,
        }
        if own is not None:
            settings["tlsClientAuthentication"] = "true"
            settings["tlsKeyStoreType"] = "PEM"
            settings["tlsKeyStore"] = own.key
            settings["tlsCertificatePath"] = own.certificate
        return settings

    def java_sasl(self, section: str = "BookKeeper") -> dict[str, object]:
        return {
            "clientAuthProviderFactoryClass": (
                "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
            ),
            "saslJaasClientSectionName": section,
        }

    # ------------------------------------------------------------------ ours

    def tls(self, own: Issued | None = None) -> TlsOptions:
        if own is None:
            return TlsOptions(trust=self.authority.trust)
        return TlsOptions(trust=self.authority.trust, certificate=own.certificate, key=own.key)

    def sasl(self, password: str = PASSWORD) -> SaslDigest:
        return SaslDigest(Login(USER, Secret(password)))


class GuardedClusters:
    """Clusters of one bookie each, started when first asked for."""

    def __init__(
        self, folder: Path, zookeeper: LocalZookeeper, guards: Guards, stack: ExitStack
    ) -> None:
        self._folder = folder
        self._zookeeper = zookeeper
        self._guards = guards
        self._stack = stack
        self._started: dict[str, PeerCluster] = {}

    def get(self, kind: str, guard: str, version: str) -> PeerCluster:
        name = f"guarded-{kind}-{guard}-{version}"
        if name not in self._started:
            self._started[name] = self._stack.enter_context(
                bookies_on(
                    self._folder / name,
                    f"zk+hierarchical://{self._zookeeper.address}/{name}",
                    [self._guards.maker(kind, guard, version)],
                )
            )
        return self._started[name]


@contextmanager
def guarded_clusters(
    folder: Path, zookeeper: LocalZookeeper, guards: Guards
) -> Iterator[GuardedClusters]:
    with ExitStack() as stack:
        yield GuardedClusters(folder, zookeeper, guards, stack)
