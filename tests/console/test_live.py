"""The console of a cluster whose ZooKeeper goes away for a while, and what it reads of ledgers."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from ledger_client import LedgerClient
from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from quire.console import cluster_view, ledger_view
from quire.console.serving import ConsoleSettings, running_console
from tests.console.conftest import PASSWORD, PAYLOADS, Site
from tests.console.requests import Events, ask, events
from tests.support.proxy import Proxy
from tests.support.zookeeper import fresh_root_path, shared_zookeeper


@asynccontextmanager
async def console_of(uri: str) -> AsyncIterator[str]:
    parsed = parse_metadata_uri(uri)
    settings = ConsoleSettings(uri=parsed, open_metadata=partial(open_store, parsed), port=0)
    async with running_console(settings) as url:
        yield url.rstrip("/")


async def until(feed: Events, wanted: str) -> list[str]:
    """Snapshots until one has lost something of this name, or nothing for an empty name."""
    while True:
        lost = list(map(str, (await feed.next())["lost"]))
        if (not lost) if not wanted else any(wanted in line for line in lost):
            return lost


async def test_feed_says_that_zookeeper_is_away_and_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_view, "_STORE_SECONDS", 0.3)
    root = fresh_root_path()
    uri = parse_metadata_uri(f"zk://{shared_zookeeper().address}{root}")
    async with open_store(uri) as store:
        await init_new_cluster(store, uri, chance=random.Random(1))
    async with (
        Proxy(shared_zookeeper().address).running() as proxy,
        console_of(f"zk://{proxy.address}{root}") as url,
        events(url) as feed,
    ):
        await until(feed, "")
        proxy.accepts = False
        proxy.cut()
        assert "as last seen" in (await until(feed, "ZooKeeper"))[0]
        proxy.accepts = True
        await until(feed, "")


async def test_ledgers_are_shown_as_they_are(site: Site) -> None:
    async with console_of(site.cluster.uri) as url:
        page = (await ask("GET", f"{url}/console/ledgers?count=2&before={site.growing}")).json
        assert [row["id"] for row in page["ledgers"]] == [str(site.large), str(site.locked)]
        assert page["next"] == str(site.locked)
        last = (await ask("GET", f"{url}/console/ledgers?before={page['next']}")).json
        assert ([row["id"] for row in last["ledgers"]], last["next"]) == ([str(site.small)], None)
        shown = (await ask("GET", f"{url}/console/ledgers/{site.locked}")).json
        assert (shown["state"], shown["lac"], shown["hasPassword"]) == ("CLOSED", "5", True)
        assert PASSWORD.decode() not in str(shown)
        (fragment,) = shown["fragments"]
        assert (fragment["first"], fragment["last"]) == ("0", "5")
        assert len(fragment["ensemble"]) == 3


async def test_entries_come_as_they_are_within_bounds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def entries(url: str, ledger: int, **body: object) -> Any:
        return await ask("POST", f"{url}/console/ledgers/{ledger}/entries", body)

    async with console_of(site.cluster.uri) as url:
        found = (await entries(url, site.small)).json["entries"]
        assert [base64.b64decode(row["payload"]) for row in found] == PAYLOADS
        some = (await entries(url, site.small, first="4", count=100)).json
        assert ([row["id"] for row in some["entries"]], some["lastConfirmed"]) == (["4", "5"], "5")
        beyond = await entries(url, site.small, first=2**63 - 1)
        assert (beyond.status, beyond.json["entries"]) == (200, [])
        assert (await entries(url, site.locked)).status == 403
        assert (await entries(url, site.locked, password="wrong")).status == 403
        assert (await entries(url, site.locked, password=PASSWORD.decode())).status == 200
        assert (await entries(url, 987654321)).status == 404
        monkeypatch.setattr(ledger_view, "ENTRY_BYTES_SHOWN", 100)
        monkeypatch.setattr(ledger_view, "ANSWER_BYTES_MAX", 250)
        few = (await entries(url, site.large, count=100)).json["entries"]
        assert [len(base64.b64decode(row["payload"])) for row in few] == [100, 100, 100]
        assert {row["bytes"] for row in few} == {10_000}


async def test_looking_at_a_ledger_does_not_fence_its_writer(site: Site) -> None:
    async with (
        LedgerClient(site.cluster.uri) as client,
        await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2) as ledger,
        console_of(site.cluster.uri) as url,
        events(url, f"?ledger={ledger.id}") as feed,
    ):
        assert (await feed.next())["ledger"]["lac"] == "-1"
        await ledger.append_many([b"x"] * 30)
        while (await feed.next())["ledger"]["lac"] != "29":
            pass  # an idle writer tells its bookies how far it is
        answer = await ask("POST", f"{url}/console/ledgers/{ledger.id}/entries", {})
        assert len(answer.json["entries"]) == 30
        assert (await client.metadata(ledger.id)).state.name == "OPEN"
        await ledger.append(b"still its writer")
