"""Who somebody says to be: tokens of SASL/DIGEST-MD5 from either side, and files with passwords."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from runtime import jaas
from tests.fuzz.http_connection import quiet
from tests.fuzz.target import Target, judged
from wire.digest_md5 import TOKEN_BYTES_MAX, DigestMd5Client, DigestMd5Server, SaslError
from wire.errors import LedgerError

_USER, _PASSWORD = "bookkeeper-alice", "her password"


def _server(user: str = _USER, password: str = _PASSWORD, realm: str = "r") -> DigestMd5Server:
    return DigestMd5Server(
        {user: password}, service="bookkeeper", host="bookkeeper", realm=realm, nonce="n0"
    )


def _client(user: str = _USER, password: str = _PASSWORD) -> DigestMd5Client:
    return DigestMd5Client(user, password, service="bookkeeper", host="bookkeeper", cnonce="c0")


def sasl_tokens(data: bytes) -> None:
    """Whatever is sent, nobody is let in who did not know the password; answers are short."""
    server = _server()
    proof = judged(server.answer, data)
    if isinstance(proof, bytes):
        assert server.user == _USER
        assert _right_response() in data.lower(), "let in without the one right response"
    else:
        assert server.user is None
    client = _client()
    response = judged(client.answer, data)
    if isinstance(response, bytes):
        assert len(response) <= 2 * TOKEN_BYTES_MAX + 1024
    assert not client.is_complete, "a challenge is no proof"
    client = _client()
    client.answer(server.challenge())
    judged(client.answer, data)
    assert not client.is_complete or _right_proof() in data


@cache
def _right_response() -> bytes:
    """The hash alone, for the nonces that are always the same here."""
    found = re.search(rb"response=([0-9a-f]{32})", _client().answer(_server().challenge()))
    assert found is not None
    return found[1]


@cache
def _right_proof() -> bytes:
    client, server = _client(), _server()
    return server.answer(client.answer(server.challenge())).removeprefix(b"rspauth=")


def sasl_exchanges(data: bytes) -> None:
    """Any user with any password gets in, and is told so; with another password nobody does."""
    user, password, realm = (data.decode(errors="replace").split("\0") + [""] * 3)[:3]
    server, client = _server(user, password, realm), _client(user, password)
    try:
        response = client.answer(server.challenge())
    except SaslError:
        response = bytes(TOKEN_BYTES_MAX + 1)  # the challenge was too long already
    if len(response) > TOKEN_BYTES_MAX:
        return
    client.answer(server.answer(response))
    assert client.is_complete
    assert server.user == user
    stranger, server = _client(user, password + "?"), _server(user, password, realm)
    refused = judged(server.answer, stranger.answer(server.challenge()))
    assert refused == "SaslError"


def jaas_files(data: bytes) -> None:
    """Passwords are in quotation marks; no error repeats one."""
    path = _file()
    with open(path, "wb") as file:
        file.write(data)
    with quiet():
        for read in (jaas.read_users, jaas.read_login):
            _check_jaas(read, path, data)


def _check_jaas(read: object, path: str, data: bytes) -> None:
    assert callable(read)
    try:
        read(path, "Bookie")
    except LedgerError as error:
        text = str(error).removeprefix(path)
        assert "\n" not in text, f"an error is one line: {text!r}"
        for quoted in re.findall(rb'"([^"\\\s]{8,})"', data):
            password = quoted.decode(errors="replace")
            # What looks like a name may be that of a section.
            assert password.isidentifier() or password not in text, "an error shows a password"


@cache
def _file() -> str:
    descriptor, path = tempfile.mkstemp(prefix="quire-fuzz-")
    os.close(descriptor)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path


def _token_seeds() -> Iterable[bytes]:
    client, server = _client(), _server()
    yield (challenge := server.challenge())
    yield (response := client.answer(challenge))
    yield server.answer(response)
    yield b'realm="a\\"b",nonce=x,qop="auth-int, auth",algorithm=md5-sess,cipher="3des,rc4"'
    yield b'username="\xc3\xa9",realm="\\\\",cnonce=1,nc=00000001,digest-uri=bookkeeper/BOOKKEEPER'


def _exchange_seeds() -> Iterable[bytes]:
    yield b"alice\0her password\0bookkeeper"
    yield b'a"b\\c, d=e\0\\\0"'
    yield "é\0\u4e16\0\U0001f600".encode()


def _jaas_seeds() -> Iterable[bytes]:
    module = b"org.apache.zookeeper.server.auth.DigestLoginModule required"
    yield b'Bookie { %s user_alice="her-password" user_bob="\\"its\\\\own"; };' % module
    yield b'Bookie {\n  %s\n    username="alice" password="her-password";\n};\n' % module
    yield b'// a comment\n# another\n/* and * one */ Bookie { other.Module optional x="y"; };'
    yield b'Bookie { %s password="her-password" "its-own-one"; };' % module


TARGETS = (
    Target("sasl_tokens", sasl_tokens, _token_seeds),
    Target("sasl_exchanges", sasl_exchanges, _exchange_seeds),
    Target("jaas_files", jaas_files, _jaas_seeds),
)
