"""The commands of `docs/security.md` make what its settings name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bookie.auth_providers import role_of
from bookie.security_config import read_security
from runtime.config import Settings
from runtime.memory_sockets import MemoryNetwork
from runtime.tls import TlsOptions
from tests.bookie_server.live import ROOT
from tests.security.test_tls_stream import server_side, shake_hands

PAGE = (ROOT / "docs" / "security.md").read_text()


def block(language: str, holding: str) -> str:
    """The one block of the page, of this language, that holds these words."""
    blocks = PAGE.split("```")[1::2]
    [found] = [text for text in blocks if text.startswith(f"{language}\n") and holding in text]
    return found.removeprefix(language)


@pytest.fixture
def conf(tmp_path: Path) -> str:
    """What the page says about a bookie, with the files that its commands make."""
    command = ["sh", "-euc", block("sh", "openssl")]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    path = tmp_path / "bk_server.conf"
    path.write_text(block("", "tlsCertificatePath").replace("/etc/quire/", f"{tmp_path}/"))
    return str(path)


async def test_the_commands_and_the_settings_of_the_page_work_together(conf: str) -> None:
    found = read_security(Settings.read(conf, {})).certificates
    assert found is not None
    own = found.options
    assert own.certificate is not None
    assert own.key is not None
    trust = TlsOptions(trust=own.trust, certificate=own.certificate, key=own.key)
    network = MemoryNetwork()
    listener = await network.host("bookie").listen("bookie", 0)
    client = await network.host("client").connect("bookie", listener.port)
    context = server_side(own, trust=own.trust, require_certificate=True)  # type: ignore[arg-type]
    _, inside = await shake_hands(
        client, await listener.accept(), trust, context, "bookie1.example.org"
    )
    assert role_of(inside.certificate_subject) == "bookie"
