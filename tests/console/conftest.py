"""One local cluster with a console, somebody who writes to it, and a browser."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ledger_client.sync import LedgerClient
from tests.quire.commands import ROOT, Cluster, running_cluster
from tests.support.needs import program
from tests.support.zookeeper import fresh_root_path, shared_zookeeper

#: Screenshots, for people to look at; git ignores the folder.
ARTEFACTS = ROOT / ".cache" / "console"
PASSWORD = b"open sesame"
#: What somebody could have written to harm whoever looks.
HOSTILE = b"<img src=x onerror=\"alert('payload')\"><script>alert(1)</script>"
PAYLOADS = [
    HOSTILE,
    b'{"sensor":9223372036854775807,"note":"</pre><script>alert(2)</script>","a":[],"b":[1,{}]}',
    b"plain words",
    bytes(range(32)),
    "Grüße".encode(),
    b"\xff\xfe broken",
]
_WAIT_MS = 90_000
#: Bytes that are restored in a second: slow enough to be seen.
RATE = 200_000


@dataclass(frozen=True)
class Site:
    """The console of a cluster: its address, its token, and ledgers that are there."""

    cluster: Cluster
    url: str
    token: str
    #: Closed, 3/2/2, with `PAYLOADS`; and the same with a password.
    small: int
    locked: int
    #: Closed, 3/2/2, and long enough that restoring its copies takes some seconds here.
    large: int
    #: Open, 3/2/2, and growing.
    growing: int

    @property
    def link(self) -> str:
        return f"{self.url}#token={self.token}"


class Writer:
    """Writes to a ledger until it is stopped. Whatever goes wrong there is told at the end."""

    def __init__(self, client: LedgerClient) -> None:
        self._ledger = client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        self.ledger_id = int(self._ledger.id)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.wait(0.1):
                self._ledger.append_many([f"live {number + i}".encode() for i in range(5)])
                number += 5
            self._ledger.close()
        except BaseException as error:
            self._failure = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("console") / "data"
    zookeeper = f"{shared_zookeeper().address}{fresh_root_path()}"
    arguments = ("--bookies", 4, "--zk", zookeeper, "--autorecovery", "--console")
    with (
        running_cluster(folder, *arguments, replicationRateByBytes=RATE) as cluster,
        LedgerClient(cluster.uri) as client,
    ):
        ids = []
        for password in (b"", PASSWORD):
            with client.create(
                ensemble_size=3, write_quorum=2, ack_quorum=2, password=password,
                custom_metadata={"application": HOSTILE},
            ) as ledger:  # fmt: skip
                ledger.append_many(PAYLOADS)
            ids.append(int(ledger.id))
        with client.create(ensemble_size=3, write_quorum=2, ack_quorum=2) as large:
            large.append_many([bytes(10_000)] * (10 * RATE // 10_000))
        ids.append(int(large.id))
        writer = Writer(client)
        token = json.loads((folder / "console.json").read_text())["token"]
        small, locked, long = ids
        yield Site(
            cluster, cluster.record["console"], token,
            small=small, locked=locked, large=long, growing=writer.ledger_id,
        )  # fmt: skip
        writer.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ended before other tests of this process run: Playwright keeps a loop of its own open."""
    path = program("chromium", "install it, for example with apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox to go into
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own. Nothing it does may break its own rules, or ours."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light")
    context.set_default_timeout(_WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: wrong.append(f"a script ran: {dialog.message}"))
    page.on(
        "console",
        # What the network does is the page's to handle, and is reported here in any case.
        lambda line: (
            wrong.append(line.text)
            if line.type == "error" and "Failed to load resource" not in line.text
            else None
        ),
    )
    yield page
    context.close()
    assert wrong == []


def screenshot(page: Page, name: str, *, whole: bool = True) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    path = ARTEFACTS / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    assert Path(path).stat().st_size > 10_000
