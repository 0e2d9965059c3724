"""Our client's way in, against our bookie: a stream that is inside, or the reason why not."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import trio

from bookie.auth_providers import CertificateRoles, SaslDigest
from bookie.authentication import BookieSecurity, NewAuthenticator
from ledger_client import entrance
from ledger_client.entrance import EntranceError, SecureNetwork
from ledger_client.entrance import SaslDigest as SaslLogin
from ledger_client.security import read_security, secure_network
from runtime.config import ConfigError
from runtime.jaas import Login
from runtime.logs import Secret
from runtime.memory_sockets import MemoryNetwork
from runtime.sockets import SocketNetwork
from runtime.tls import Certificates, TlsOptions, server_context
from tests.bookie_server.world import KEY, Client, World, entry_of, running
from tests.security.certificates import Authority, Issued
from wire.codec_v3 import decode_request, encode_response
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import AddRequest, AuthResponse, BareResponse
from wire.types import LedgerId, Operation

LEDGER = LedgerId(7)
ALICE = SaslLogin(Login("alice", Secret("a planted secret")))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("bookie", "bookie")


def security(
    authority: Authority,
    issued: Issued,
    *,
    mutual: bool = False,
    new_authenticator: NewAuthenticator = None,
) -> BookieSecurity:
    options = TlsOptions(
        certificate=issued.certificate,
        key=issued.key,
        trust=authority.trust,
        require_certificate=mutual,
    )
    return BookieSecurity(
        certificates=Certificates(options, server_context, refresh_seconds=0),
        tls_required=True,
        new_authenticator=new_authenticator,
    )


SASL = partial(SaslDigest, {"alice": Secret("a planted secret")}, re.compile("alice"))


async def serves(world: World, network: SecureNetwork) -> bool:
    """Whether adds by v3 and by v2 get through this way."""
    for v2 in (False, True):
        client = Client(await network.connect("bookie", world.port))  # type: ignore[arg-type]
        if v2:
            await client.add_v2(LEDGER, 1)
            answer = await client.answer_v2()
        else:
            add = AddRequest(ledger_id=LEDGER, entry_id=0, master_key=KEY, body=entry_of(LEDGER, 0))
            answer = await client.ask_v3(add)
        if answer.status is not Status.OK:
            return False
    return True


async def test_tls_and_a_password_lead_inside(authority: Authority, issued: Issued) -> None:
    guarded = security(authority, issued, new_authenticator=SASL)
    async with running(security=guarded) as world:
        tls = TlsOptions(trust=authority.trust)
        assert await serves(world, SecureNetwork(world.host, tls=tls, auth=ALICE))


async def test_a_role_leads_inside_and_another_is_told(
    authority: Authority, issued: Issued
) -> None:
    roles = partial(CertificateRoles, frozenset({"app"}))
    guarded = security(authority, issued, mutual=True, new_authenticator=roles)
    async with running(security=guarded) as world:
        own = authority.issue("own", unit="0:app")
        tls = TlsOptions(trust=authority.trust, certificate=own.certificate, key=own.key)
        assert await serves(world, SecureNetwork(world.host, tls=tls))
        own = authority.issue("own", unit="0:guest")
        tls = TlsOptions(trust=authority.trust, certificate=own.certificate, key=own.key)
        stream = await SecureNetwork(world.host, tls=tls).connect("bookie", world.port)
        with pytest.raises(EntranceError, match="its role is not among those"):
            await stream.receive_some(1000)


@pytest.mark.parametrize("wants_tls", [True, False])
async def test_a_bookie_that_wants_nothing_of_it_is_told_apart(
    authority: Authority, wants_tls: bool
) -> None:
    async with running() as world:
        if wants_tls:
            network = SecureNetwork(world.host, tls=TlsOptions(trust=authority.trust))
            with pytest.raises(EntranceError, match="does not offer TLS"):
                await network.connect("bookie", world.port)
        else:  # it says so, and we are content, as Apache's client is
            assert await serves(world, SecureNetwork(world.host, auth=ALICE))


@pytest.mark.parametrize(
    ("trust", "auth", "said"),
    [
        ("stranger", ALICE, "not of an authority that is trusted"),
        ("authority", SaslLogin(Login("alice", Secret("guessed"))), "does not let us in by sasl"),
        ("authority", SaslLogin(Login("bob", Secret("guessed"))), "does not let us in by sasl"),
    ],
)
async def test_why_there_is_no_way_in_is_said_without_the_password(
    request: pytest.FixtureRequest,
    authority: Authority,
    issued: Issued,
    trust: str,
    auth: SaslLogin,
    said: str,
) -> None:
    guarded = security(authority, issued, new_authenticator=SASL)
    async with running(security=guarded) as world:
        tls = TlsOptions(trust=request.getfixturevalue(trust).trust)
        with pytest.raises(EntranceError, match=said) as refused:
            await SecureNetwork(world.host, tls=tls, auth=auth).connect("bookie", world.port)
        assert "guessed" not in str(refused.value)


async def test_a_bookie_that_never_answers_a_wrong_password_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apache's says nothing at all."""
    monkeypatch.setattr(entrance, "AUTH_SECONDS", 0.02)
    network = MemoryNetwork()
    listener = await network.host("bookie").listen("bookie", 0)
    with pytest.raises(EntranceError, match="does not answer to sasl"):
        await SecureNetwork(network.host("client"), auth=ALICE).connect("bookie", listener.port)


@pytest.mark.parametrize("says", ["nonsense", "start tls", "nothing"])
async def test_a_server_that_only_poses_as_a_bookie_is_not_believed(says: str) -> None:
    network = MemoryNetwork()
    listener = await network.host("bookie").listen("bookie", 0)

    async def pose() -> None:
        stream = await listener.accept()
        frames = FrameBuffer()
        while (payload := frames.next_frame()) is None:
            frames.feed(await stream.receive_some(1000))
        number = decode_request(payload)[0].transaction_id
        if says == "nothing":
            stream.close()
            return
        if says == "start tls":  # which Apache's sends as well, and which proves nothing
            said = BareResponse(operation=Operation.START_TLS, status=Status.OK)
            await stream.send_all(encode_response(said, transaction_id=number))
        answer = AuthResponse(plugin="sasl", payload=b"rspauth=" + b"0" * 32)
        await stream.send_all(encode_response(answer, transaction_id=number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pose)
        with pytest.raises(EntranceError):
            await SecureNetwork(network.host("client"), auth=ALICE).connect("bookie", listener.port)


# ---------------------------------------------------------------------- configuration


def write_conf(folder: Path, **lines: object) -> str:
    path = folder / "client.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(path)


def test_a_file_of_apaches_says_everything(authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("own")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('BookKeeper { x.DigestLoginModule required username="a" password="b"; };')
    jaas.chmod(0o600)
    found = read_security(
        write_conf(
            tmp_path,
            tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
            tlsTrustStore=authority.trust,
            tlsClientAuthentication="true",
            tlsKeyStore=own.key,
            tlsCertificatePath=own.certificate,
            tlsHostnameVerificationEnabled="false",
            clientAuthProviderFactoryClass=("org.apache.bookkeeper.sasl.SASLClientProviderFactory"),
            quire_jaasFile=jaas,
            quire_zkAuthScheme="sasl",
            quire_zkAuthUser="zoe",
            quire_zkAuthPassword="a planted secret",
            zkEnableSecurity="true",
        )
    )
    assert isinstance(secure_network(found), SecureNetwork)
    tls, auth = found["tls"], found["auth"]
    assert tls is not None
    assert (tls.key, tls.trust, tls.check_hostname) == (own.key, authority.trust, False)
    assert isinstance(auth, SaslLogin)
    assert auth.login.user == "a"
    assert (found["zookeeper"].scheme, found["zookeeper"].private) == ("sasl", True)
    assert "secret" not in repr(found)


def test_without_a_word_of_it_nothing_changes(tmp_path: Path) -> None:
    found = read_security(write_conf(tmp_path))
    assert isinstance(secure_network(found), SocketNetwork)


def test_the_environment_will_do(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    factory = "org.apache.bookkeeper.tls.TLSContextFactory"
    monkeypatch.setenv("BK_tlsProviderFactoryClass", factory)
    monkeypatch.setenv("BK_tlsTrustStore", authority.trust)
    tls = read_security()["tls"]
    assert tls is not None
    assert tls.trust == authority.trust


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"clientAuthProviderFactoryClass": "no.such.thing"}, "cannot be had"),
        (
            {
                "clientAuthProviderFactoryClass": (
                    "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
                )
            },
            "quire_jaasFile",
        ),
        ({"zkEnableSecurity": "true"}, "for one user alone"),
        ({"quire_zkTlsTrustStore": "ca.pem"}, "set it to true"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, lines: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_security(write_conf(tmp_path, **lines))
