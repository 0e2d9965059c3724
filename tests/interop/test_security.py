"""TLS and authentication between both makes: Apache's client on our bookie, ours on Apache's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.peers.cluster import PeerCluster
from bench.peers.jars import NEWEST
from ledger_client import LedgerError
from ledger_client.sync import LedgerClient
from runtime.local_zookeeper import LocalZookeeper
from tests.interop.conftest import Peers
from tests.interop.guarded import (
    PASSWORD,
    ROLES,
    SASL,
    TLS,
    GuardedClusters,
    Guards,
    guarded_clusters,
)
from tests.interop.java_client import UNAUTHORIZED, JavaClient, Shape, entries_of, refused
from tests.interop.table import APACHE, OURS

_ONE = Shape(1, 1, 1)
_NOT_ENOUGH_BOOKIES = -6
_PAYLOADS = [b"%d" % number for number in range(100)] + [b"l" * 300_000]

Settings = Callable[[Guards], dict[str, object]]


@pytest.fixture(scope="module")
def guards(tmp_path_factory: pytest.TempPathFactory) -> Guards:
    return Guards(tmp_path_factory.mktemp("guards"))


@pytest.fixture(scope="module")
def guarded(folder: Path, zookeeper: LocalZookeeper, guards: Guards) -> Iterator[GuardedClusters]:
    with guarded_clusters(folder, zookeeper, guards) as clusters:
        yield clusters


# ---------------------------------------------------------------------- Apache's client, our bookie

_JAVA_WAYS: dict[str, tuple[str, Settings]] = {
    "TLS": (TLS, lambda guards: guards.java_tls()),
    "mutual TLS and a role": (ROLES, lambda guards: guards.java_tls(guards.app)),
    "SASL": (SASL, lambda guards: guards.java_sasl()),
    "SASL inside TLS": (SASL, lambda guards: guards.java_sasl() | guards.java_tls()),
}
_JAVA_REFUSED: dict[str, tuple[str, Settings, int]] = {
    "in clear, TLS required": (TLS, lambda guards: {}, UNAUTHORIZED),
    "no certificate": (ROLES, lambda guards: guards.java_tls(), _NOT_ENOUGH_BOOKIES),
    "another role": (ROLES, lambda guards: guards.java_tls(guards.guest), _NOT_ENOUGH_BOOKIES),
    "a wrong password": (SASL, lambda guards: guards.java_sasl("Guessing"), UNAUTHORIZED),
    "no password": (SASL, lambda guards: {}, UNAUTHORIZED),
}


@pytest.fixture
def java(
    peers: Peers, guarded: GuardedClusters, guards: Guards
) -> Iterator[Callable[..., JavaClient]]:
    """Apache's clients on a bookie of ours with this guard."""
    made: list[JavaClient] = []

    def make(guard: str, settings: Settings, wire: str) -> JavaClient:
        peer = peers(NEWEST)
        peer.jvm.java.lang.System.setProperty("java.security.auth.login.config", str(guards.jaas))
        # Whoever asked for logins before in this JVM has made it read the file that was named then.
        peer.jvm.javax.security.auth.login.Configuration.setConfiguration(None)
        cluster = guarded.get(OURS, guard, NEWEST)
        # Slow is no failure here: a handshake of three rounds counts as part of the first add.
        patient = {"addEntryTimeoutSec": 60, "readEntryTimeoutSec": 60} | settings(guards)
        client = JavaClient(peer, cluster.uri, v2=wire == "v2", settings=patient)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("way", _JAVA_WAYS)
def test_apaches_client_gets_into_our_bookie(
    java: Callable[..., JavaClient], way: str, wire: str
) -> None:
    guard, settings = _JAVA_WAYS[way]
    client = java(guard, settings, wire)
    writer = client.create(_ONE)
    client.append_all(writer, _PAYLOADS)
    writer.close()
    reader = client.open(writer.getId())
    assert entries_of(reader.readEntries(0, len(_PAYLOADS) - 1)) == _PAYLOADS


@pytest.mark.parametrize("way", _JAVA_REFUSED)
def test_apaches_client_does_not_get_into_our_bookie(
    java: Callable[..., JavaClient], guarded: GuardedClusters, way: str
) -> None:
    guard, settings, code = _JAVA_REFUSED[way]
    client = java(guard, settings, "v3")
    writer = client.create(_ONE)
    with refused(code):
        writer.addEntry(b"never")
    [bookie] = guarded.get(OURS, guard, NEWEST).bookies
    assert PASSWORD not in bookie.log()


# ---------------------------------------------------------------------- our client, Apache's bookie

_OUR_WAYS: dict[str, tuple[str, Settings]] = {
    "TLS": (TLS, lambda guards: {"tls": guards.tls()}),
    "mutual TLS and a role": (ROLES, lambda guards: {"tls": guards.tls(guards.app)}),
    "SASL": (SASL, lambda guards: {"auth": guards.sasl()}),
    "SASL inside TLS": (SASL, lambda guards: {"auth": guards.sasl(), "tls": guards.tls()}),
}
_OUR_REFUSED: dict[str, tuple[str, Settings, str]] = {
    "no certificate": (ROLES, lambda guards: {"tls": guards.tls()}, "requires a certificate"),
    "another role": (ROLES, lambda guards: {"tls": guards.tls(guards.guest)}, "its role is not"),
    "a wrong password": (SASL, lambda guards: {"auth": guards.sasl("guessed")}, "check user"),
    "no password": (SASL, lambda guards: {}, "UNAUTHORIZED"),
}


def _write_and_read(cluster: PeerCluster, **security: object) -> list[bytes]:
    with LedgerClient(cluster.uri, **security) as client:  # type: ignore[arg-type]
        with client.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many(_PAYLOADS)
        with client.open(writer.id) as reader:
            # By a question, too: both kinds of connections must get in.
            assert client.bookie_info(cluster.bookies[0].bookie_id).total_bytes > 0
            return [entry.payload for entry in reader.read(0, reader.last_confirmed)]


@pytest.mark.parametrize("kind", [APACHE, OURS])
@pytest.mark.parametrize("way", _OUR_WAYS)
def test_our_client_gets_into_a_bookie(
    guarded: GuardedClusters, guards: Guards, way: str, kind: str
) -> None:
    guard, security = _OUR_WAYS[way]
    assert _write_and_read(guarded.get(kind, guard, NEWEST), **security(guards)) == _PAYLOADS


@pytest.mark.parametrize("kind", [APACHE, OURS])
@pytest.mark.parametrize("way", _OUR_REFUSED)
def test_our_client_does_not_get_in_and_says_why(
    guarded: GuardedClusters, guards: Guards, way: str, kind: str
) -> None:
    guard, security, said = _OUR_REFUSED[way]
    with pytest.raises(LedgerError, match=said):
        _write_and_read(guarded.get(kind, guard, NEWEST), **security(guards))
