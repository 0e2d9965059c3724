"""A stream inside a stream: every byte, in order, whatever the one below takes at a time."""

from __future__ import annotations

import random
import ssl

import pytest
import trio

from runtime.memory_sockets import MemoryNetwork, MemoryStream
from runtime.sockets import ByteStream
from runtime.tls import TlsOptions, client_context, server_context
from runtime.tls_stream import AHEAD_BYTES, TlsBrokenError, TlsError, TlsStream, encrypt
from tests.security.certificates import Authority, Issued

HOST = "bookie"


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("stream", HOST)


async def connected(buffer_bytes: int = 64 * 1024) -> tuple[MemoryStream, MemoryStream]:
    """Both ends of a connection in clear: the client's and the server's."""
    network = MemoryNetwork(buffer_bytes=buffer_bytes)
    listener = await network.host(HOST).listen(HOST, 0)
    client = await network.host("client").connect(HOST, listener.port)
    return client, await listener.accept()


def server_side(issued: Issued, **changes: object) -> ssl.SSLContext:
    given = {"certificate": issued.certificate, "key": issued.key} | changes
    return server_context(TlsOptions(**given))  # type: ignore[arg-type]


async def shake_hands(
    client: ByteStream,
    server: ByteStream,
    trust: TlsOptions,
    context: ssl.SSLContext,
    host: str = HOST,
) -> tuple[TlsStream, TlsStream]:
    found: dict[str, TlsStream] = {}
    failures: list[Exception] = []

    async def one(name: str, stream: ByteStream, ours: ssl.SSLContext, to: str | None) -> None:
        try:
            found[name] = await encrypt(stream, ours, server_side=to is None, host=to)
        except TlsError as error:
            failures.append(error)
            stream.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "client", client, client_context(trust), host)
        nursery.start_soon(one, "server", server, context, None)
    for failure in failures:
        if "closed" not in str(failure):
            raise failure
    return found["client"], found["server"]


async def pair(
    authority: Authority, issued: Issued, buffer_bytes: int = 64 * 1024
) -> tuple[TlsStream, TlsStream]:
    client, server = await connected(buffer_bytes)
    return await shake_hands(client, server, TlsOptions(trust=authority.trust), server_side(issued))


@pytest.mark.parametrize("buffer_bytes", [1000, 64 * 1024, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
async def test_bytes_arrive_whole_however_little_is_taken_at_a_time(
    authority: Authority, issued: Issued, buffer_bytes: int, seed: int
) -> None:
    """The sender is a queue of pieces, as both ends of ours are: it may split and join them."""
    client, server = await pair(authority, issued, buffer_bytes)
    chance = random.Random(seed)
    sent = chance.randbytes(4 * AHEAD_BYTES + 12345)
    received = bytearray()

    async def send() -> None:
        at = 0
        while at < len(sent):
            end = at + chance.randrange(1, 3 * AHEAD_BYTES)
            pieces = [sent[at : (at + end) // 2], sent[(at + end) // 2 : end]]
            chosen = chance.choice(["one", "pieces"])
            if chosen == "one":
                taken = client.send_now(sent[at : at + chance.randrange(1, 100_000)])
            else:
                taken = client.send_pieces_now(pieces)
            at += taken
            if not taken:
                await client.wait_writable()
            await trio.lowlevel.checkpoint()
        client.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.fail_after(20):
            while data := await server.receive_some(chance.randrange(1, 300_000)):
                received += data
    assert bytes(received) == sent


async def test_a_receive_brings_all_records_that_have_come(
    authority: Authority, issued: Issued
) -> None:
    client, server = await pair(authority, issued, 1 << 20)
    await client.send_all(bytes(200_000))
    with trio.fail_after(5):
        assert len(await server.receive_some(256 * 1024)) == 200_000
    assert server.receive_now(1000) is None


async def test_what_was_not_asked_for_is_there_at_once_the_next_time(
    authority: Authority, issued: Issued
) -> None:
    client, server = await pair(authority, issued)
    await client.send_all(b"abcdef")
    with trio.fail_after(5):
        assert await server.receive_some(2) == b"ab"
        await server.wait_readable()
        assert server.receive_now(3) == b"cde"
        assert await server.receive_some(9) == b"f"


async def test_both_kinds_of_end_are_an_end(authority: Authority, issued: Issued) -> None:
    for say_goodbye in (True, False):
        client, server = await pair(authority, issued)
        await client.send_all(b"last")
        if say_goodbye:
            client.end_sending()
        else:
            client._below.close()
        with trio.fail_after(5):
            assert await server.receive_some(10) == b"last"
            assert await server.receive_some(10) == b""
            assert await server.receive_some(10) == b""


async def test_bytes_that_somebody_changed_on_the_way_are_not_taken(
    authority: Authority, issued: Issued
) -> None:
    below, other = await connected()
    client, server = await shake_hands(
        below, other, TlsOptions(trust=authority.trust), server_side(issued)
    )
    await client.send_all(b"the first")
    assert await server.receive_some(100) == b"the first"
    await below.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(TlsBrokenError), trio.fail_after(5):
        await server.receive_some(100)


async def test_the_first_bytes_from_inside_are_looked_at_once(
    authority: Authority, issued: Issued
) -> None:
    client, server = await pair(authority, issued)
    seen: list[bytes] = []
    server.first_look = seen.append
    for data in (b"one", b"two"):
        await client.send_all(data)
        assert await server.receive_some(10) == data
    assert seen == [b"one"]


# ---------------------------------------------------------------------- who does not get in


async def test_a_wrong_authority_is_named(authority: Authority, stranger: Authority) -> None:
    theirs = stranger.issue("theirs", HOST)
    client, server = await connected()
    with pytest.raises(TlsError, match="not of an authority that is trusted"):
        await shake_hands(client, server, TlsOptions(trust=authority.trust), server_side(theirs))


async def test_an_expired_certificate_is_named(authority: Authority) -> None:
    old = authority.issue("old", HOST, expired=True)
    client, server = await connected()
    with pytest.raises(TlsError, match="has expired"):
        await shake_hands(client, server, TlsOptions(trust=authority.trust), server_side(old))


@pytest.mark.parametrize("dialled", ["elsewhere", "10.1.2.3"])
async def test_a_wrong_name_is_named_unless_nobody_asks(
    authority: Authority, issued: Issued, dialled: str
) -> None:
    client, server = await connected()
    with pytest.raises(TlsError, match=f"for another name than {dialled}"):
        await shake_hands(
            client, server, TlsOptions(trust=authority.trust), server_side(issued), dialled
        )
    client, server = await connected()
    careless = TlsOptions(trust=authority.trust, check_hostname=False)
    await shake_hands(client, server, careless, server_side(issued), dialled)


async def test_a_client_without_a_certificate_is_told_that_one_is_wanted(
    authority: Authority, issued: Issued
) -> None:
    context = server_side(issued, trust=authority.trust, require_certificate=True)
    client, server = await connected()
    with pytest.raises(TlsError, match="it showed no certificate"):
        await shake_hands(client, server, TlsOptions(trust=authority.trust), context)


async def test_the_subject_of_a_certificate_is_known(authority: Authority, issued: Issued) -> None:
    context = server_side(issued, trust=authority.trust, require_certificate=True)
    own = authority.issue("own", unit="0:reader;1:here")
    client, server = await connected()
    trust = TlsOptions(trust=authority.trust, certificate=own.certificate, key=own.key)
    _, inside = await shake_hands(client, server, trust, context)
    assert ("organizationalUnitName", "0:reader;1:here") in inside.certificate_subject
    assert inside.cipher.startswith("TLSv1.3 ")


async def test_whoever_does_not_speak_tls_is_told_apart(authority: Authority) -> None:
    client, server = await connected()
    await server.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(TlsError, match="does not speak TLS"):
        await encrypt(
            client,
            client_context(TlsOptions(trust=authority.trust)),
            server_side=False,
            host=HOST,
        )
