"""A bookie with everything switched on that takes a password, as a process; and its clients."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from ledger_client import Login, SaslDigest, Secret, TlsOptions, ZookeeperAccess
from ledger_client.sync import LedgerClient
from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import Process, daemon_process, write_conf
from tests.security.certificates import Authority
from tests.support.zookeeper import access_for, fresh_root_path, shared_zookeeper

SECRET = "pl4nted-secret"
USER = "bookkeeper-alice"


@dataclass(frozen=True, slots=True)
class Guarded:
    """A bookie with everything switched on that takes a password."""

    process: Process
    uri: str
    http_port: int
    zookeeper: ZookeeperAccess
    tls: TlsOptions
    conf: Path

    def client(self, password: str) -> LedgerClient:
        auth = SaslDigest(Login(USER, Secret(password)))
        return LedgerClient(self.uri, tls=self.tls, auth=auth, zookeeper=self.zookeeper)


@contextmanager
def guarded_bookie(folder: Path, authority: Authority) -> Iterator[Guarded]:
    own = authority.issue("locked", password=f"key {SECRET}".encode())
    password_file = folder / "password"
    password_file.write_text(f"key {SECRET}\n")
    jaas = folder / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    login = f'{module} username="{USER}" password="{SECRET}";'
    jaas.write_text(
        f'Bookie {{ {module} user_{USER}="{SECRET}"; }};\n'
        f"BookKeeper {{ {login} }};\nAuditor {{ {login} }};\n"
    )
    jaas.chmod(0o600)
    uri = f"zk+hierarchical://{shared_zookeeper().address}{fresh_root_path()}"
    zookeeper = access_for(f"quire:zookeeper {SECRET}", private=True)
    trio.run(_initialise, uri, zookeeper)
    http_port = free_port()
    conf = write_conf(
        folder,
        uri,
        free_port(),
        quire_logLevel="debug",
        tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
        tlsKeyStore=own.key,
        tlsKeyStorePasswordPath=password_file,
        tlsCertificatePath=own.certificate,
        tlsTrustStore=authority.trust,
        quire_tlsRequired="true",
        bookieAuthProviderFactoryClass=("org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"),
        clientAuthProviderFactoryClass=("org.apache.bookkeeper.sasl.SASLClientProviderFactory"),
        quire_jaasFile=jaas,
        zkEnableSecurity="true",
        quire_zkAuthScheme="digest",
        quire_zkAuthUser="quire",
        quire_zkAuthPassword=f"zookeeper {SECRET}",
        autoRecoveryDaemonEnabled="true",
        httpServerEnabled="true",
        httpServerPort=http_port,
        statsProviderClass=("org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"),
    )
    with daemon_process("quire", conf, folder / "bookie.log", "bookie") as process:
        tls = TlsOptions(trust=authority.trust)
        yield Guarded(process, uri, http_port, zookeeper, tls, conf)


async def _initialise(uri: str, access: ZookeeperAccess) -> None:
    parsed = parse_metadata_uri(uri)
    async with open_store(parsed, access=access) as store:
        await init_new_cluster(store, parsed, chance=random.Random(1))
