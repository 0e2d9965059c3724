"""Commands, admin paths and autorecovery get in by configuration alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request

from tests.bookie_server.live import ROOT
from tests.security.guarded_bookie import Guarded


def test_a_command_gets_in_by_the_configuration(guarded: Guarded) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quire", "shell", "-conf", str(guarded.conf), "bookiesanity"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout


def test_the_client_command_gets_in_by_the_environment(guarded: Guarded) -> None:
    settings = dict(line.split("=", 1) for line in guarded.conf.read_text().splitlines())
    wanted = (
        "tlsProviderFactoryClass", "tlsTrustStore", "clientAuthProviderFactoryClass",
        "quire_jaasFile", "quire_zkAuthScheme", "quire_zkAuthUser", "quire_zkAuthPassword",
        "zkEnableSecurity",
    )  # fmt: skip
    environment = os.environ | {f"BK_{key}": settings[key] for key in wanted}
    command = [sys.executable, "-m", "ledger_client", "--uri", guarded.uri]
    listed = subprocess.run(
        [*command, "bookies"], env=environment,
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert "bytes free" in listed.stdout, "the bookie itself has answered"


def test_the_process_beside_the_bookie_gets_in(guarded: Guarded) -> None:
    address = f"http://127.0.0.1:{guarded.http_port}/api/v1/bookie/sanity"
    with urllib.request.urlopen(address, timeout=120) as answer:
        assert json.loads(answer.read()) == {"passed": True, "readOnly": False}
