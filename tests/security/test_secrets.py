"""A planted secret in every place where there may be one, and nobody who shows it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ledger_client import LedgerError, Login, SaslDigest, Secret
from ledger_client.environment import Access
from runtime.jaas import Login as SameLogin
from tests.bookie_server.live import ROOT
from tests.security.guarded_bookie import SECRET, USER, Guarded
from tests.support.zookeeper import access_for
from wire.messages import AddRequest, AuthRequest
from wire.types import DigestType, LedgerId

LEDGER_PASSWORD = f"ledger {SECRET}".encode()
#: As bytes might show it: as it is, as base64, as the text of bytes.
SHAPES = [SECRET, base64.b64encode(LEDGER_PASSWORD).decode(), SECRET.encode().hex()]


def shown(text: str) -> list[str]:
    return [shape for shape in SHAPES if shape in text]


def test_a_bookie_with_everything_switched_on_shows_no_password(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with guarded.client(SECRET) as client:
        with client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=LEDGER_PASSWORD
        ) as ledger:
            ledger.append(b"hello")
        with pytest.raises(LedgerError) as wrong_ledger_password:
            client.open(ledger.id, password=LEDGER_PASSWORD + b"!")
    with guarded.client(SECRET + "!") as client, pytest.raises(LedgerError) as wrong_password:
        client.create(ensemble_size=1, write_quorum=1, ack_quorum=1).append(b"never")
    assert "check user" in str(wrong_password.value)

    texts = {
        "errors": f"{wrong_ledger_password.value!r} {wrong_password.value!r}",
        "our log": caplog.text,
        "the bookie's log": guarded.process.log.read_text(),
        "ps": subprocess.run(
            ["ps", "-o", "args=", "-p", str(guarded.process.pid)],
            capture_output=True, text=True, check=True,
        ).stdout,
    }  # fmt: skip
    for path in (
        "metrics",
        "api/v1/config/server_config",
        f"api/v1/ledger/metadata?ledger_id={ledger.id}",
        "api/v1/ledger/list?print_metadata=true",
    ):
        address = f"http://127.0.0.1:{guarded.http_port}/{path}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            texts[path] = answer.read().decode()
    assert "authentication failed" in texts["the bookie's log"]
    assert "tlsKeyStorePasswordPath" in texts["api/v1/config/server_config"]
    assert {where: shown(text) for where, text in texts.items() if shown(text)} == {}


def test_a_check_and_a_mistake_show_no_password(guarded: Guarded, tmp_path: Path) -> None:
    """`--check`, and a file in which the password stands where it should not."""
    wrong = tmp_path / "bk_server.conf"
    wrong.write_text(f"{guarded.conf.read_text()}quire_zkAuthScheme=perhaps\n")
    for conf, code in ((guarded.conf, 0), (wrong, 1)):
        done = subprocess.run(
            [sys.executable, "-m", "quire", "bookie", "--conf", str(conf), "--check"],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert shown(done.stdout + done.stderr) == []


@pytest.mark.parametrize(
    "value",
    [
        Secret(SECRET),
        SameLogin(USER, Secret(SECRET)),
        SaslDigest(Login(USER, Secret(SECRET))),
        access_for(f"quire:{SECRET}"),
        Access.of(LedgerId(1), DigestType.HMAC, SECRET.encode()),
        AddRequest(ledger_id=LedgerId(1), entry_id=0, master_key=SECRET.encode(), body=b""),
        AuthRequest(plugin="sasl", payload=SECRET.encode()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_hold_a_secret_do_not_show_it(value: object) -> None:
    assert shown(repr(value) + str(value) + f"{value}") == []
    with pytest.raises(TypeError):
        json.dumps(value)
