"""Autorecovery inside another process: it comes, it leaves, and it takes nobody with it."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from autorecovery import daemon
from autorecovery.daemon import beside_bookie, run_autorecovery
from autorecovery.settings import ProcessSettings, own_id, process_settings
from metadata.cluster import init_new_cluster
from metadata.election import current_auditor
from metadata.paths import ClusterPaths
from metadata.uri import parse_metadata_uri
from runtime.config import Settings
from runtime.metrics import Registry
from runtime.properties import parse_properties
from runtime.service import Readiness
from tests.metadata.places import until
from tests.support.zookeeper import fresh_root_path, opened_store, shared_zookeeper
from wire.types import BookieId


def settings_of(uri: str, **changes: object) -> ProcessSettings:
    keys = {"metadataServiceUri": uri, "bookieId": "recovery:1", "zkTimeout": 4000, **changes}
    text = "".join(f"{key}={value}\n" for key, value in keys.items())
    return process_settings(Settings(parse_properties(text, "test.conf")))


async def new_cluster() -> str:
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"
    async with opened_store() as store:
        await init_new_cluster(store, parse_metadata_uri(uri), chance=random.Random(1))
    return uri


async def test_autorecovery_runs_beside_a_bookie_and_leaves_with_it() -> None:
    uri = await new_cluster()
    root = parse_metadata_uri(uri).root
    registry = Registry()
    async with opened_store() as store:
        async with beside_bookie(
            settings_of(uri), bookie_id=BookieId("bookie:1"), registry=registry
        ):
            with trio.fail_after(60):
                while await current_auditor(store, root) != "bookie:1":  # noqa: ASYNC110
                    await trio.sleep(0.05)
            assert "auditor_AUDIT_BOOKIES_TIME" in registry.render()
            assert "replication_worker_rereplicate" in registry.render()
        votes, _ = await store.children(ClusterPaths(root).election)
        assert votes == []


async def test_a_bookie_goes_on_when_autorecovery_cannot_start(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def refused(*_: object, **__: object) -> object:
        nonlocal attempts
        attempts += 1
        raise OSError("no way")

    monkeypatch.setattr(daemon, "running_autorecovery", refused)
    async with beside_bookie(
        settings_of("zk://nowhere:1/ledgers"), bookie_id=BookieId("b:1"), registry=Registry()
    ):
        await trio.sleep(100)
    assert attempts == 4


async def test_a_process_of_its_own_stops_when_told() -> None:
    uri = await new_cluster()
    ready = trio.Event()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, settings_of(uri), stop, ready)
        with trio.fail_after(60):
            await ready.wait()
        stop.set()
    async with opened_store() as store:
        votes, _ = await store.children(ClusterPaths(parse_metadata_uri(uri).root).election)
    assert votes == []


async def _run(settings: ProcessSettings, stop: trio.Event, ready: trio.Event) -> None:
    await run_autorecovery(settings, stop, readiness=Readiness(callback=ready.set))


def test_a_process_without_a_name_is_called_like_a_bookie_there() -> None:
    named = settings_of("zk://a:1/ledgers", bookieId="", advertisedAddress="host-7", bookiePort=4)
    assert own_id(named.process) == "host-7:4"


async def test_half_a_process_only_audits() -> None:
    uri = await new_cluster()
    registry = Registry()
    settings = settings_of(uri, quire_replicationWorkerEnabled="false")
    async with beside_bookie(settings, bookie_id=BookieId("b:1"), registry=registry):
        await until(lambda: "auditor_AUDIT_BOOKIES_TIME" in registry.render())
        assert "replication_worker" not in registry.render()
