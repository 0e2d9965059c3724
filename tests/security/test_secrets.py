"""A planted secret in every place where there may be one, and nobody who shows it."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from ledger_client import LedgerError, Login, SaslDigest, Secret, TlsOptions, ZookeeperAccess
from ledger_client.environment import Access
from ledger_client.sync import LedgerClient
from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.jaas import Login as SameLogin
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import ROOT, Process, daemon_process, write_conf
from tests.security.certificates import Authority
from tests.support.zookeeper import access_for, fresh_root_path, shared_zookeeper
from wire.messages import AddRequest, AuthRequest
from wire.types import DigestType, LedgerId

SECRET = "pl4nted-secret"
USER = "bookkeeper-alice"
LEDGER_PASSWORD = f"ledger {SECRET}".encode()
#: As bytes might show it: as it is, as base64, as the text of bytes.
SHAPES = [SECRET, base64.b64encode(LEDGER_PASSWORD).decode(), SECRET.encode().hex()]


def shown(text: str) -> list[str]:
    return [shape for shape in SHAPES if shape in text]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A bookie with everything switched on that takes a password."""

    process: Process
    uri: str
    http_port: int
    zookeeper: ZookeeperAccess
    tls: TlsOptions
    conf: Path

    def client(self, password: str) -> LedgerClient:
        auth = SaslDigest(Login(USER, Secret(password)))
        return LedgerClient(self.uri, tls=self.tls, auth=auth, zookeeper=self.zookeeper)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    own = authority.issue("locked", password=f"key {SECRET}".encode())
    password_file = folder / "password"
    password_file.write_text(f"key {SECRET}\n")
    jaas = folder / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    jaas.write_text(f'Bookie {{ {module} user_{USER}="{SECRET}"; }};')
    jaas.chmod(0o600)
    uri = f"zk+hierarchical://{shared_zookeeper().address}{fresh_root_path()}"
    zookeeper = access_for(f"quire:zookeeper {SECRET}", private=True)
    trio.run(_initialise, uri, zookeeper)
    http_port = free_port()
    conf = write_conf(
        folder,
        uri,
        free_port(),
        quire_logLevel="debug",
        tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
        tlsKeyStore=own.key,
        tlsKeyStorePasswordPath=password_file,
        tlsCertificatePath=own.certificate,
        quire_tlsRequired="true",
        bookieAuthProviderFactoryClass=("org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"),
        quire_jaasFile=jaas,
        zkEnableSecurity="true",
        quire_zkAuthScheme="digest",
        quire_zkAuthUser="quire",
        quire_zkAuthPassword=f"zookeeper {SECRET}",
        httpServerEnabled="true",
        httpServerPort=http_port,
        statsProviderClass=("org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"),
    )
    with daemon_process("quire", conf, folder / "bookie.log", "bookie") as process:
        tls = TlsOptions(trust=authority.trust)
        yield Guarded(process, uri, http_port, zookeeper, tls, conf)


async def _initialise(uri: str, access: ZookeeperAccess) -> None:
    parsed = parse_metadata_uri(uri)
    async with open_store(parsed, access=access) as store:
        await init_new_cluster(store, parsed, chance=random.Random(1))


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
