"""The fuzzing itself: it would see what it looks for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.hostile import BURST, FRAME_BYTES_MAX, delivered, hostile_bursts
from tests.fuzz.http_connection import HttpBugError, check_answers, converse
from tests.fuzz.http_requests import raw_request
from tests.fuzz.http_world import TOKEN, Denied, admin_app
from tests.fuzz.minimise import minimised, steps

GET = raw_request("GET", "/page")
OK = b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nOK"


def answering(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


# ---------------------------------------------------------------------- HTTP


def test_answers_come_back_however_the_request_is_cut() -> None:
    app = answering(200, b"body", [(b"content-length", b"4")])
    for cut in (0, 1, 7, len(GET) - 1):
        assert converse(app, [GET[:cut], GET[cut:]]).endswith(b"\r\n\r\nbody")


def test_an_application_that_fails_is_found() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        converse(broken, [GET])


def test_an_answer_that_admits_a_bug_is_found() -> None:
    with pytest.raises(HttpBugError, match="answered 500"):
        converse(answering(500, b"oh", [(b"content-length", b"2")]), [GET])


def test_an_answer_without_end_is_found() -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(9999), "more_body": True})

    with pytest.raises(HttpBugError, match="without end"):
        converse(endless, [GET])


@pytest.mark.parametrize(
    "sent",
    [
        b"OK",
        b"HTTP/1.1 20x \r\n\r\n",
        b"HTTP/1.1 200 \r\nno header\r\n\r\n",
        b"HTTP/1.1 200 \r\na: b\nset-cookie: c\r\n\r\n",
        b"HTTP/1.1 200 \r\ncontent-length: 3\r\n\r\nOK",
        OK + b"!",
        b"HTTP/1.1 500 \r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_bytes_that_are_no_answers_are_found(sent: bytes) -> None:
    with pytest.raises(HttpBugError):
        check_answers(sent, ["GET"])


def test_bytes_that_are_answers_are_fine() -> None:
    chunked = b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 \r\ncontent-length: 99\r\n\r\n"
    check_answers(OK + chunked + b"HTTP/1.1 100 \r\n\r\n" + head + OK, ["GET", "GET", "HEAD", "X"])


def test_the_admin_paths_are_behind_their_token() -> None:
    change = ("PUT", "/api/v1/bookie/gc", b"{}")
    token = f"Authorization: Bearer {TOKEN}\r\n".encode()
    assert converse(admin_app(), [raw_request(*change)]).startswith(b"HTTP/1.1 401 ")
    assert converse(admin_app(), [raw_request(*change, token)]).startswith(b"HTTP/1.1 200 ")
    read = raw_request("GET", "/api/v1/ledger/metadata?ledger_id=7")
    assert b'"password" : ""' in converse(admin_app(), [read])


def test_a_guard_that_lets_everybody_pass_is_found() -> None:
    app = Denied(answering(200, b"", []), frozenset())
    converse(app, [GET])
    with pytest.raises(AssertionError, match="without a token"):
        converse(app, [raw_request("PUT", "/page")])


# ---------------------------------------------------------------------- corpora and bursts


def test_a_corpus_keeps_the_shortest_input_that_adds_something() -> None:
    target = TARGETS["uris"]
    seeds = list(target.seeds())
    assert minimised(target, seeds) == []
    new = [b"http://x/y", b"http://xx/y", b"http://xxx/y"]
    assert not steps(target, new[1]) <= set().union(*(steps(target, seed) for seed in seeds))
    assert minimised(target, reversed([*new, *seeds])) == new[:1]


def test_bursts_are_of_bounded_size_and_the_same_for_the_same_seed() -> None:
    first, again = (hostile_bursts(random.Random(3)) for _ in range(2))
    for _, one, other in zip(range(30), first, again, strict=False):
        assert one.data == other.data or one.requests == 1  # what TLS begins with is chance
        assert b"".join(one.packets()) == one.data
        assert len(one.data) <= (BURST + 2) * FRAME_BYTES_MAX


def test_packets_are_all_of_a_burst() -> None:
    rng = random.Random(1)
    cut = [delivered(bytes(range(100)), rng) for _ in range(50)]
    assert any(len(burst.cuts) > 1 for burst in cut)
    assert any(burst.is_deserted for burst in cut)
    assert all(b"".join(burst.packets()) == bytes(range(100)) for burst in cut)
