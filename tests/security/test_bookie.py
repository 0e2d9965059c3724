"""A bookie that wants TLS, a role or a password: who gets in, and what strangers are told."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from bookie.auth_providers import CertificateRoles, SaslDigest, role_of
from bookie.authentication import AUTH_DISABLED, BookieSecurity, NewAuthenticator
from runtime.logs import Secret
from runtime.tls import Certificates, TlsOptions, client_context, server_context
from runtime.tls_stream import encrypt
from tests.bookie_server.world import KEY, Client, World, entry_of, running
from tests.security.certificates import Authority, Issued
from wire import codec_v2, codec_v3
from wire.digest_md5 import DigestMd5Client
from wire.errors import Status
from wire.messages import (
    AddRequest,
    AuthRequest,
    AuthResponse,
    BareResponse,
    BatchReadRequest,
    BookieInfoRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
    StartTlsResponse,
)
from wire.types import LedgerId, Operation

LEDGER = LedgerId(7)
PASSWORD = "a planted secret"
YES = StartTlsResponse(status=Status.OK)


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("bookie", "bookie")


def certificates(authority: Authority, issued: Issued, *, mutual: bool = False) -> Certificates:
    options = TlsOptions(
        certificate=issued.certificate,
        key=issued.key,
        trust=authority.trust,
        require_certificate=mutual,
    )
    return Certificates(options, server_context, refresh_seconds=0)


def sasl() -> NewAuthenticator:
    return partial(SaslDigest, {"alice": Secret(PASSWORD), "eve": Secret("x")}, re.compile("a.*"))


def add(entry_id: int = 0) -> AddRequest:
    body = entry_of(LEDGER, entry_id)
    return AddRequest(ledger_id=LEDGER, entry_id=entry_id, master_key=KEY, body=body)


@asynccontextmanager
async def secured(
    authority: Authority,
    issued: Issued,
    *,
    required: bool = False,
    mutual: bool = False,
    new_authenticator: NewAuthenticator = None,
    seconds_max: float = 30.0,
) -> AsyncIterator[World]:
    security = BookieSecurity(
        certificates=certificates(authority, issued, mutual=mutual),
        tls_required=required,
        new_authenticator=new_authenticator,
        seconds_max=seconds_max,
    )
    async with running(security=security) as world:
        yield world


async def start_tls(client: Client, authority: Authority, own: Issued | None = None) -> Client:
    """The same connection, inside."""
    assert await client.ask_v3(StartTlsRequest()) == YES
    options = TlsOptions(trust=authority.trust)
    if own is not None:
        options = TlsOptions(trust=authority.trust, certificate=own.certificate, key=own.key)
    stream = await encrypt(client.stream, client_context(options), server_side=False, host="bookie")
    return Client(stream)  # type: ignore[arg-type]


async def ends(client: Client) -> None:
    """Until the bookie has closed the connection; an alert may come first."""
    with trio.fail_after(5), contextlib.suppress(OSError):
        while await client.stream.receive_some(1 << 16):
            pass


async def is_untouched(world: World) -> bool:
    """Whether no request has reached the engine."""
    found = world.bookie.engine.statistics()
    return found.entries_added == found.entries_read == 0


# ---------------------------------------------------------------------- TLS


async def test_v3_and_then_v2_are_served_inside_tls(authority: Authority, issued: Issued) -> None:
    async with secured(authority, issued, required=True) as world:
        inside = await start_tls(await world.connect(), authority)
        assert (await inside.ask_v3(add())).status is Status.OK
        await inside.add_v2(LEDGER, 1, 2)
        for _ in range(2):
            assert (await inside.answer_v2()).status is Status.OK
        found = await inside.ask_v2(ReadRequest(ledger_id=LEDGER, entry_id=1))
        assert found.status is Status.OK


async def test_both_are_served_where_tls_is_only_offered(
    authority: Authority, issued: Issued
) -> None:
    async with secured(authority, issued) as world:
        plain = await world.connect()
        assert (await plain.ask_v3(add())).status is Status.OK
        inside = await start_tls(await world.connect(), authority)
        assert (await inside.ask_v3(add(1))).status is Status.OK


async def test_requests_in_clear_are_refused_before_any_work_where_tls_is_required(
    authority: Authority, issued: Issued
) -> None:
    async with secured(authority, issued, required=True) as world:
        client = await world.connect()
        for request in (add(), BookieInfoRequest(requested=3)):
            operation = Operation.ADD_ENTRY
            if isinstance(request, BookieInfoRequest):
                operation = Operation.GET_BOOKIE_INFO
            refused = BareResponse(operation=operation, status=Status.UNAUTHORIZED)
            assert await client.ask_v3(request) == refused
        old = await world.connect()
        await old.add_v2(LEDGER, 0)
        assert (await old.answer_v2()).status is Status.UNAUTHORIZED
        read = await old.ask_v2(ReadRequest(ledger_id=LEDGER, entry_id=0))
        assert read.status is Status.UNAUTHORIZED
        batch = BatchReadRequest(
            request_id=1, ledger_id=LEDGER, first_entry_id=0, count_max=1, bytes_max=9
        )
        await old.send(codec_v2.encode_request(batch))
        assert await old.is_closed()
        assert await is_untouched(world)


async def test_start_tls_is_refused_where_there_is_none_and_the_connection_goes_on() -> None:
    async with running() as world:
        client = await world.connect()
        refused = await client.ask_v3(StartTlsRequest())
        assert refused == BareResponse(operation=Operation.START_TLS, status=Status.BAD_REQUEST)
        assert (await client.ask_v3(add())).status is Status.OK


@pytest.mark.parametrize("authenticates", [False, True])
async def test_a_request_smuggled_in_behind_start_tls_is_not_carried_out(
    authority: Authority, issued: Issued, authenticates: bool
) -> None:
    """Whoever can write to the connection must not add to what is inside TLS."""
    new = sasl() if authenticates else None
    async with secured(authority, issued, new_authenticator=new) as world:
        client = await world.connect()
        await client.send(
            codec_v3.encode_request(StartTlsRequest(), transaction_id=1)
            + codec_v3.encode_request(add(), transaction_id=2)
        )
        assert (await client.answer_v3())[1] == YES
        await ends(client)
        assert await is_untouched(world)


async def test_tls_is_begun_once_only(authority: Authority, issued: Issued) -> None:
    async with secured(authority, issued) as world:
        inside = await start_tls(await world.connect(), authority)
        await inside.send_v3(StartTlsRequest())
        assert await inside.is_closed()


async def test_a_client_without_a_certificate_does_not_get_in_where_one_is_wanted(
    authority: Authority, issued: Issued
) -> None:
    async with secured(authority, issued, mutual=True) as world:
        inside = await start_tls(await world.connect(), authority)
        await inside.send_v3(add())
        assert await inside.is_closed()
        own = authority.issue("own")
        inside = await start_tls(await world.connect(), authority, own)
        assert (await inside.ask_v3(add())).status is Status.OK


async def test_a_certificate_of_a_stranger_does_not_get_in(
    authority: Authority, stranger: Authority, issued: Issued
) -> None:
    async with secured(authority, issued, mutual=True) as world:
        theirs = stranger.issue("theirs")
        inside = await start_tls(await world.connect(), authority, theirs)
        await inside.send_v3(add())
        assert await inside.is_closed()
        assert await is_untouched(world)


async def test_a_handshake_that_does_not_go_on_ends(authority: Authority, issued: Issued) -> None:
    async with secured(authority, issued, seconds_max=0.01) as world:
        client = await world.connect()
        assert await client.ask_v3(StartTlsRequest()) == YES
        assert await client.is_closed()
        assert not world.bookie.connections


async def test_a_client_that_does_not_say_who_it_is_is_disconnected(
    authority: Authority, issued: Issued
) -> None:
    async with secured(authority, issued, required=True, seconds_max=0.01) as world:
        client = await world.connect()
        assert (await client.ask_v3(add())).status is Status.UNAUTHORIZED
        await trio.sleep(0.02)
        world.bookie.sweep()
        assert await client.is_closed()


# ---------------------------------------------------------------------- roles


@pytest.mark.parametrize(
    ("unit", "role"),
    [
        ("0:app", "app"),
        ("0: app , other;1:here", "app"),
        ("1:here;0:app", "app"),
        ("app", None),
        ("1:app", None),
        ("", None),
        ("0:", None),
        ("0:a;0:b", "b"),  # the last one, as a map in Java would have it
    ],
)
def test_a_role_is_read_as_apache_reads_it(unit: str, role: str | None) -> None:
    subject = (("commonName", "x"), ("organizationalUnitName", unit))
    assert role_of((*subject, ("organizationalUnitName", "0:second"))) == role


async def test_a_role_that_is_not_allowed_is_told_inside_tls(
    authority: Authority, issued: Issued
) -> None:
    new = partial(CertificateRoles, frozenset({"app"}))
    async with secured(authority, issued, mutual=True, new_authenticator=new) as world:
        plain = await world.connect()
        assert (await plain.ask_v3(add())).status is Status.UNAUTHORIZED
        for unit in ("0:reader", None):
            other = authority.issue("other", unit=unit)
            inside = await start_tls(await world.connect(), authority, other)
            _, said = await inside.answer_v3()
            assert said == BareResponse(operation=Operation.START_TLS, status=Status.IO_ERROR)
            assert await inside.is_closed()
        assert await is_untouched(world)
        app = authority.issue("app", unit="0:app;1:here")
        inside = await start_tls(await world.connect(), authority, app)
        assert (await inside.ask_v3(add())).status is Status.OK


async def test_a_client_whose_role_is_not_allowed_is_heard_out_so_that_it_hears_why(
    authority: Authority, issued: Issued
) -> None:
    """Closing on bytes that nobody has read resets the connection, and the reason is lost."""
    new = partial(CertificateRoles, frozenset({"app"}))
    async with secured(authority, issued, mutual=True, new_authenticator=new) as world:
        guest = authority.issue("guest", unit="0:guest")
        inside = await start_tls(await world.connect(), authority, guest)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.bookie.connections) == 1
        await inside.send_v3(add())
        _, said = await inside.answer_v3()
        assert said == BareResponse(operation=Operation.START_TLS, status=Status.IO_ERROR)
        assert await inside.is_closed()
        inside.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not world.bookie.connections
        assert await is_untouched(world)


# ---------------------------------------------------------------------- SASL


def token(payload: bytes) -> AuthRequest:
    return AuthRequest(plugin="sasl", payload=payload)


def ours(user: str = "alice", password: str = PASSWORD) -> DigestMd5Client:
    return DigestMd5Client(user, password, service="bookkeeper", host="bookkeeper", cnonce="c")


async def log_in(client: Client, exchange: DigestMd5Client, first: bytes | None = None) -> None:
    if first is None:
        challenge = await client.ask_v3(token(b""))
        assert isinstance(challenge, AuthResponse)
        first = challenge.payload
    proof = await client.ask_v3(token(exchange.answer(first)))
    assert isinstance(proof, AuthResponse), f"refused: {proof}"
    exchange.answer(proof.payload)


async def test_whoever_knows_a_password_gets_in_by_v3() -> None:
    async with running(new_authenticator=sasl()) as world:
        client = await world.connect()
        exchange = ours()
        await log_in(client, exchange)
        assert exchange.is_complete
        # Apache's client sends one token more.
        assert await client.ask_v3(token(b"")) == AUTH_DISABLED
        assert (await client.ask_v3(add())).status is Status.OK


async def test_whoever_knows_a_password_gets_in_by_v2() -> None:
    async with running(new_authenticator=sasl()) as world:
        client = await world.connect()
        challenge = await client.ask_v2(token(b""))
        assert isinstance(challenge, AuthResponse)
        proof = await client.ask_v2(token(ours().answer(challenge.payload)))
        assert isinstance(proof, AuthResponse)
        assert await client.ask_v2(token(b"")) == AUTH_DISABLED
        await client.add_v2(LEDGER, 0)
        assert (await client.answer_v2()).status is Status.OK


@pytest.mark.parametrize(
    "exchange",
    [ours("alice", "another"), ours("nobody"), ours("eve", "x")],
    ids=["password", "unknown", "not allowed"],
)
async def test_whoever_does_not_is_told_so_and_disconnected(
    exchange: DigestMd5Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(new_authenticator=sasl()) as world:
        client = await world.connect()
        with pytest.raises(AssertionError, match="UNAUTHORIZED"):
            await log_in(client, exchange)
        assert await client.is_closed()
        assert await is_untouched(world)
    assert PASSWORD not in caplog.text
    assert "authentication failed" in caplog.text


async def test_tokens_that_apaches_client_sends_in_clear_are_answered_inside_tls(
    authority: Authority, issued: Issued
) -> None:
    for encode in (codec_v3.encode_request, None):
        async with secured(authority, issued, required=True, new_authenticator=sasl()) as world:
            client = await world.connect()
            await client.send(codec_v3.encode_request(StartTlsRequest(), transaction_id=1))
            if encode is None:
                await client.send(codec_v2.encode_request(token(b"")))
            else:
                await client.send(encode(token(b""), transaction_id=2))
            assert (await client.answer_v3())[1] == YES
            context = client_context(TlsOptions(trust=authority.trust))
            stream = await encrypt(client.stream, context, server_side=False, host="bookie")
            inside = Client(stream)  # type: ignore[arg-type]
            if encode is None:
                challenge = await inside.answer_v2()
                assert isinstance(challenge, AuthResponse)
                proof = await inside.ask_v2(token(ours().answer(challenge.payload)))
                assert isinstance(proof, AuthResponse)
            else:
                _, challenge = await inside.answer_v3()
                assert isinstance(challenge, AuthResponse)
                await log_in(inside, ours(), challenge.payload)
                assert (await inside.ask_v3(add())).status is Status.OK


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 9, None], ids=lambda cut: f"cut {cut}")
async def test_a_v2_token_that_comes_before_start_tls_is_answered_inside_tls(
    authority: Authority,
    issued: Issued,
    cut: int | None,
    required: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Apache's client sends both at once, in either order, and over v2 it cannot read the answer
    to START_TLS any more once it has read one to its token. START_TLS comes in one receive with
    the token, or after it, cut anywhere.
    """
    async with secured(authority, issued, required=required, new_authenticator=sasl()) as world:
        client = await world.connect()
        first = codec_v2.encode_request(token(b""))
        then = codec_v3.encode_request(StartTlsRequest(), transaction_id=1)
        if cut is None:
            await client.send(first + then)
        else:
            for part in (first + then[:cut], then[cut:]):
                await client.send(part)
                await trio.testing.wait_all_tasks_blocked()
        assert (await client.answer_v3())[1] == YES
        context = client_context(TlsOptions(trust=authority.trust))
        stream = await encrypt(client.stream, context, server_side=False, host="bookie")
        inside = Client(stream)  # type: ignore[arg-type]
        challenge = await inside.answer_v2()
        assert isinstance(challenge, AuthResponse)
        proof = await inside.ask_v2(token(ours().answer(challenge.payload)))
        assert isinstance(proof, AuthResponse)
        await inside.add_v2(LEDGER, 0)
        assert (await inside.answer_v2()).status is Status.OK


@pytest.mark.parametrize("more", [b"", codec_v2.encode_request(add())], ids=["alone", "and an add"])
async def test_a_v2_token_that_no_start_tls_follows_is_answered_in_clear(
    authority: Authority, issued: Issued, more: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with secured(authority, issued, new_authenticator=sasl()) as world:
        client = await world.connect()
        await client.send(codec_v2.encode_request(token(b"")) + more)
        challenge = await client.answer_v2()
        assert isinstance(challenge, AuthResponse)
        if more:
            assert (await client.answer_v2()).status is Status.UNAUTHORIZED
        before = trio.current_time()
        proof = await client.ask_v2(token(ours().answer(challenge.payload)))
        assert isinstance(proof, AuthResponse)
        assert trio.current_time() == before, "only the first token waits"
        await client.add_v2(LEDGER, 0)
        assert (await client.answer_v2()).status is Status.OK


@pytest.mark.parametrize("request_", [add(), BookieInfoRequest(requested=3)])
async def test_a_password_does_not_replace_tls_where_that_is_required(
    authority: Authority, issued: Issued, request_: Request
) -> None:
    async with secured(authority, issued, required=True, new_authenticator=sasl()) as world:
        client = await world.connect()
        await log_in(client, ours())
        assert (await client.ask_v3(request_)).status is Status.UNAUTHORIZED


async def test_bytes_that_are_no_tls_end_the_connection(
    authority: Authority, issued: Issued
) -> None:
    async with secured(authority, issued) as world:
        client = await world.connect()
        assert await client.ask_v3(StartTlsRequest()) == YES
        await client.send(b"\x16\x03\x01\x00\x05hello")
        await ends(client)
        client.close()  # until then the bookie listens, so that its alert is heard
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.protocol_errors == 1
