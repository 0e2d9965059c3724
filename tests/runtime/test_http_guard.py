"""Who may do what over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.http_guard import Guard, TokenError, read_token
from runtime.logs import Secret

TOKEN = "0123456789abcdef-long"
CLOSED = Guard(token=Secret(TOKEN), names=frozenset({"bookie-1"}), open_paths=frozenset({"/up"}))
LOCAL = Guard(open_paths=frozenset({"/up"}))


def status(guard: Guard, method: str = "GET", path: str = "/x", **changes: str) -> int:
    """What it comes to; 200 for whoever may pass. Names of headers have _ for -."""
    client = changes.pop("client", "127.0.0.1")
    headers = {"host": "127.0.0.1:8080"} | {
        name.replace("_", "-"): value for name, value in changes.items()
    }
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    refusal = guard.refusal(method=method, path=path, client=client, headers=pairs)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "ODD"])
def test_changes_need_the_token_where_there_is_one(method: str) -> None:
    assert status(CLOSED, method) == 401
    assert status(CLOSED, method, authorization="Bearer wrong") == 401
    assert status(CLOSED, method, authorization=f"Basic {TOKEN}") == 401
    assert status(CLOSED, method, authorization=f"Bearer {TOKEN}x") == 401
    assert status(CLOSED, method, authorization="Bearer \xff") == 401
    assert status(CLOSED, method, authorization=f"Bearer {TOKEN}") == 200
    assert status(CLOSED, method, authorization=f"bearer {TOKEN}", client="10.0.0.9") == 200


@pytest.mark.parametrize(
    ("client", "expected"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.9", 403), ("", 403)],
)
def test_changes_come_from_this_machine_where_there_is_no_token(client: str, expected: int) -> None:
    assert status(LOCAL, "PUT", client=client) == expected
    assert status(LOCAL, "PUT", client=client, authorization="Bearer whatever") == expected
    assert status(LOCAL, "GET", client=client) == 200


@pytest.mark.parametrize("guard", [CLOSED, LOCAL], ids=["token", "no token"])
def test_pages_of_other_sites_are_refused(guard: Guard) -> None:
    for method in ("GET", "PUT", "POST"):
        assert status(guard, method, origin="http://evil.example") == 403
        assert status(guard, method, origin="null") == 403
        assert status(guard, method, sec_fetch_site="cross-site") == 403
        assert status(guard, method, sec_fetch_site="same-site") == 403
    assert status(guard, origin="http://127.0.0.1:8080", sec_fetch_site="same-origin") == 200
    assert status(guard, sec_fetch_site="none") == 200


def test_link_from_another_site_may_be_followed_but_not_framed() -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert status(LOCAL, sec_fetch_dest="document", **link) == 200
    assert status(LOCAL, sec_fetch_dest="iframe", **link) == 403
    assert status(LOCAL, "POST", sec_fetch_dest="document", **link) == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8080", 200),
        ("10.0.0.1", 200),
        ("[::1]:8080", 200),
        ("Bookie-1:8080", 200),
        ("rebound.evil.example:8080", 403),
        ("bookie-1.evil.example", 403),
        ("", 403),
    ],
)
def test_strange_names_are_not_ours(host: str, expected: int) -> None:
    assert status(CLOSED, host=host) == expected
    assert status(CLOSED, host=host, authorization=f"Bearer {TOKEN}") == 200


def test_host_given_twice_is_a_trick() -> None:
    headers = [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]
    refusal = LOCAL.refusal(method="GET", path="/x", client="127.0.0.1", headers=headers)
    assert refusal is not None
    assert refusal.status == 403


def test_open_paths_answer_everybody() -> None:
    assert status(CLOSED, "PUT", "/up", host="any.example", origin="http://a") == 200
    assert status(CLOSED, "PUT", "/up/", host="any.example") == 403


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_token_is_the_line_of_its_file(tmp_path: Path) -> None:
    assert read_token(write(tmp_path / "token", f"{TOKEN}\n")).reveal() == TOKEN


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("short\n", 0o600, "has 5 characters"),
        ("", 0o600, "has 0 characters"),
        ("x" * 5000, 0o600, "characters"),
        (f"{TOKEN}\n{TOKEN}\n", 0o600, "one line of printable ASCII"),
        ("with a space in it!", 0o600, "one line of printable ASCII"),
        (f"{TOKEN}\n", 0o644, "chmod 600"),
    ],
)
def test_file_that_is_no_token_is_refused(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    with pytest.raises(TokenError, match=reason) as raised:
        read_token(write(tmp_path / "token", text, mode))
    assert TOKEN not in str(raised.value)


def test_missing_file_of_a_token_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match=r"nowhere: no such file or directory"):
        read_token(str(tmp_path / "nowhere"))
