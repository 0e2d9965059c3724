"""DIGEST-MD5: the vector of the RFC, both sides together, and everybody who should not get in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.digest_md5 import TOKEN_BYTES_MAX, DigestMd5Client, DigestMd5Server, SaslError

USER, PASSWORD = "alice", "a planted secret"


def server(**passwords: str) -> DigestMd5Server:
    return DigestMd5Server(
        passwords or {USER: PASSWORD},
        service="bookkeeper",
        host="bookkeeper",
        realm="bookkeeper",
        nonce="the-nonce",
    )


def client(user: str = USER, password: str = PASSWORD) -> DigestMd5Client:
    return DigestMd5Client(
        user, password, service="bookkeeper", host="bookkeeper", cnonce="the-cnonce"
    )


def test_the_exchange_of_the_rfc() -> None:
    """Section 4 of RFC 2831, from the server's side; its client sends no authzid."""
    ours = DigestMd5Server(
        {"chris": "secret"},
        service="imap",
        host="elwood.innosoft.com",
        realm="elwood.innosoft.com",
        nonce="OA6MG9tEQGm2hh",
    )
    response = (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",'
        b'nc=00000001,cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    assert ours.answer(response) == b"rspauth=ea40f60335c427b5527b84dbabcdfffd"
    assert ours.user == "chris"


@pytest.mark.parametrize(
    ("user", "password"),
    [(USER, PASSWORD), ('quo"ted\\', 'p"w\\'), ("jörg", "größe"), ("名前", "パス")],
)
def test_both_sides_convince_each_other(user: str, password: str) -> None:
    theirs, ours = server(**{user: password}), client(user, password)
    proof = theirs.answer(ours.answer(theirs.challenge()))
    assert ours.answer(proof) == b""
    assert ours.is_complete
    assert theirs.user == user


@pytest.mark.parametrize(
    ("user", "password"), [(USER, "another"), ("bob", PASSWORD), (USER, ""), ("", "")]
)
def test_whoever_does_not_know_the_password_is_refused(user: str, password: str) -> None:
    theirs = server()
    with pytest.raises(SaslError, match="user or the password") as refused:
        theirs.answer(client(user, password).answer(theirs.challenge()))
    assert theirs.user is None
    assert PASSWORD not in str(refused.value)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    ours = client()
    ours.answer(server().challenge())
    with pytest.raises(SaslError, match="does not know the password itself"):
        ours.answer(b"rspauth=" + b"0" * 32)
    assert not ours.is_complete


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b'nonce="the-nonce"', b'nonce="an-older-one"'),
        (b"nc=00000001", b"nc=00000002"),
        (b"qop=auth", b"qop=auth-int"),
        (b'authzid="alice"', b'authzid="root"'),
        (b'digest-uri="bookkeeper/bookkeeper"', b'digest-uri="imap/elsewhere"'),
        (b'realm="bookkeeper"', b'realm="elsewhere"'),
        (b'username="alice"', b'username="alice",username="bob"'),
        (b"nc=00000001,", b""),
    ],
)
def test_a_response_that_was_tampered_with_is_refused(part: bytes, instead: bytes) -> None:
    theirs = server()
    response = client().answer(theirs.challenge())
    assert part in response
    with pytest.raises(SaslError):
        theirs.answer(response.replace(part, instead, 1))


def test_a_token_beyond_any_size_is_refused() -> None:
    with pytest.raises(SaslError, match="bytes"):
        server().answer(b"a" * (TOKEN_BYTES_MAX + 1))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_being_refused(token: bytes) -> None:
    for side in (server(), client()):
        with pytest.raises(SaslError):
            side.answer(token)
