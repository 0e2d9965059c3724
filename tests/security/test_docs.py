"""The commands of `docs/security.md` make what its settings name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from bookie.auth_providers import role_of
from bookie.security_config import read_security
from runtime.config import Settings
from runtime.memory_sockets import MemoryNetwork
from runtime.tls import TlsOptions
from tests.bookie_server.live import ROOT
from tests.security.test_tls_stream import server_side, shake_hands

PAGE = (ROOT / "docs" / "security.md").read_text()


def block(language: str, holding: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    [found] = [text for text in blocks if holding in text]
    return str(found)


async def test_the_commands_and_the_settings_of_the_page_work_together(tmp_path: Path) -> None:
    subprocess.run(
        ["sh", "-euc", block("sh", "openssl")], cwd=tmp_path, check=True, capture_output=True
    )
    settings = block("", "tlsCertificatePath").replace("/etc/quire/", f"{tmp_path}/")
    conf = tmp_path / "bk_server.conf"
    conf.write_text(settings)
    found = read_security(Settings.read(str(conf), {})).certificates
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
