"""A real ZooKeeper that wants TLS, a certificate or a password: who gets in, and what for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from metadata.access import ZookeeperAccess
from metadata.store import NotAuthorizedError, StoreUnavailableError
from metadata.zookeeper_store import ZookeeperStore
from runtime.local_zookeeper import LocalZookeeper, free_port
from runtime.logs import Secret
from runtime.tls import TlsOptions
from tests.security.certificates import Authority

_SECONDS = 20.0
_SHORT_SECONDS = 3.0
#: What TLS takes in ZooKeeper, beside the jars of a server without.
_NETTY = [
    *("netty-buffer", "netty-codec", "netty-codec-base", "netty-common", "netty-handler"),
    *("netty-resolver", "netty-transport", "netty-transport-classes-epoll"),
    *("netty-transport-native-unix-common", "netty-tcnative-classes"),
]
PASSWORD = "a planted secret"
SASL = ZookeeperAccess(scheme="sasl", user="zoe", password=Secret(PASSWORD), private=True)


@dataclass(frozen=True, slots=True)
class Server:
    address: str  # in clear
    secure_address: str
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    """It takes passwords on both ports, and a certificate of ours on the secure one."""
    folder = tmp_path_factory.mktemp("zookeeper")
    own = authority.issue("zookeeper", "127.0.0.1")
    both = folder / "own.pem"
    both.write_bytes(Path(own.key).read_bytes() + Path(own.certificate).read_bytes())
    jaas = folder / "jaas.conf"
    jaas.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
        f'user_zoe="{PASSWORD}"; }};'
    )
    port = free_port()
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPortAddress": "127.0.0.1",
        "secureClientPort": port,
        "ssl.keyStore.location": both,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": authority.trust,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "want",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }
    jvm = [
        f"-Djava.security.auth.login.config={jaas}",
        "-Dzookeeper.fips-mode=false",  # which forbids MD5
    ]
    started = LocalZookeeper(folder, durable=False, settings=settings, jvm=jvm, jars=_NETTY)
    with started:
        yield Server(started.address, f"127.0.0.1:{port}", started.log_path)


@asynccontextmanager
async def opened(
    address: str, access: ZookeeperAccess, seconds: float = _SECONDS
) -> AsyncIterator[ZookeeperStore]:
    store = await ZookeeperStore.connect(
        address, session_seconds=_SECONDS, timeout_seconds=seconds, access=access
    )
    try:
        yield store
    finally:
        await store.close()


async def test_nodes_made_by_a_user_are_for_that_user_alone(server: Server) -> None:
    async with opened(server.address, SASL) as ours:
        await ours.create("/by-sasl", b"ours")
        await ours.create("/by-sasl-open", b"everybody's", open_acl=True)
        async with opened(server.address, replace(SASL, private=False)) as same:
            assert (await same.get("/by-sasl")).data == b"ours"
        async with opened(server.address, ZookeeperAccess()) as other:
            assert (await other.get("/by-sasl-open")).data == b"everybody's"
            with pytest.raises(NotAuthorizedError):
                await other.get("/by-sasl")


async def test_a_wrong_password_is_refused_and_not_shown(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = replace(SASL, password=Secret("guessed"))
    with pytest.raises(NotAuthorizedError, match="refused the credentials") as refused:
        async with opened(server.address, wrong):
            pass
    assert "guessed" not in str(refused.value) + caplog.text


async def test_tls_carries_requests_watches_and_passwords(
    server: Server, authority: Authority
) -> None:
    access = replace(SASL, tls=TlsOptions(trust=authority.trust))
    async with opened(server.secure_address, access) as store:
        await store.create("/by-tls", b"x" * 100_000)
        node, watch = await store.get_and_watch("/by-tls")
        assert len(node.data) == 100_000
        await store.set("/by-tls", b"new", version=node.stat.version)
        await watch.wait()
        names, _ = await store.children("/")
        assert "by-tls" in names
        for number in range(50):
            await store.create(f"/by-tls-{number}")
        nodes = await store.get_many([f"/by-tls-{number}" for number in range(50)])
        assert None not in nodes


async def test_a_certificate_is_a_user_to_zookeeper(server: Server, authority: Authority) -> None:
    own = authority.issue("own")
    tls = TlsOptions(trust=authority.trust, certificate=own.certificate, key=own.key)
    access = ZookeeperAccess(private=True, tls=tls)
    async with opened(server.secure_address, access) as store:
        await store.create("/by-certificate")
        ticket = store.ticket
        assert ticket is not None
        # Ended by another process, as a bookie does with the session of its last life.
        async with opened(server.secure_address, access) as next_life:
            assert await next_life.end_session(ticket)


@pytest.mark.parametrize("what", ["authority", "name", "clear"])
async def test_why_tls_fails_is_said(
    server: Server, authority: Authority, stranger: Authority, what: str
) -> None:
    address, tls, said = {
        "authority": (
            server.secure_address,
            TlsOptions(trust=stranger.trust),
            "not of an authority that is trusted",
        ),
        "name": (
            server.secure_address.replace("127.0.0.1", "localhost"),
            TlsOptions(trust=authority.trust),
            "for another name than localhost",
        ),
        "clear": (server.address, TlsOptions(trust=authority.trust), "TLS|closed|EOF|reset"),
    }[what]
    with pytest.raises(StoreUnavailableError, match=said):
        async with opened(address, ZookeeperAccess(tls=tls), _SHORT_SECONDS):
            pass
