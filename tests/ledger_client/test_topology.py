"""Where bookies stand, by table and by script: what is wrong is named, and nobody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import trio

from ledger_client.core.topology import Location
from ledger_client.topology import Topology, TopologyScript, TopologyTable, host_of
from metadata.discovery import Bookies
from metadata.service_info import bookie_service_info
from wire.errors import BadRequestError
from wire.types import BookieId

A, B = BookieId("10.0.0.1:3181"), BookieId("blue")


def bookies(*names: BookieId) -> Bookies:
    info = {B: bookie_service_info(host="10.0.0.2", port=3181)}
    return Bookies(frozenset(names), info={name: info[name] for name in names if name in info})


def script(folder: Path, body: str) -> TopologyScript:
    path = folder / "where.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return TopologyScript(path)


async def test_table_gives_places_by_host_and_by_id(tmp_path: Path) -> None:
    table = tmp_path / "racks"
    table.write_text("# ours\n10.0.0.1 /eu/r1  # first\n\nblue /eu/r2\n")
    topology = Topology(TopologyTable(table))
    await topology.learn(bookies(A, B))
    assert topology.locations.of(A) == ("eu", "r1")
    assert topology.locations.of(B) == ("eu", "r2")


async def test_table_is_read_anew_for_a_bookie_that_it_did_not_have(tmp_path: Path) -> None:
    table = tmp_path / "racks"
    table.write_text("10.0.0.1 /r1\n")
    topology = Topology(TopologyTable(table))
    await topology.learn(bookies(A, B))
    assert not topology.locations.is_known(B)
    table.write_text("10.0.0.1 /r1\n10.0.0.2 /r2\n")
    await topology.learn(bookies(A, B))
    assert topology.locations.of(B) == ("r2",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("lonely\n", "line 1: 'lonely'"), ("ok /r\nhost rack\n", "line 2: 'rack' is not")],
)
async def test_table_that_cannot_be_understood_names_the_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    table = tmp_path / "racks"
    table.write_text(text)
    with pytest.raises(BadRequestError, match=complaint):
        await TopologyTable(table).resolve(["host"])


async def test_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="nowhere cannot be read"):
        await TopologyTable(tmp_path / "nowhere").resolve(["host"])


async def test_script_is_asked_about_all_hosts(tmp_path: Path) -> None:
    found = await script(tmp_path, 'for h in "$@"; do echo "/dc/$h"; done').resolve(["x", "y"])
    assert found == {"x": ("dc", "x"), "y": ("dc", "y")}


async def test_script_is_asked_in_bounded_portions(tmp_path: Path) -> None:
    asked = script(tmp_path, f'echo $# >> {tmp_path}/runs; for h in "$@"; do echo /r; done')
    assert len(await asked.resolve([f"h{n}" for n in range(250)])) == 250
    assert (tmp_path / "runs").read_text().split() == ["100", "100", "50"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("echo broken >&2; exit 3", "ended with 3: broken"),
        ("echo /r1; echo /r2", "printed 2 locations for 1 hosts"),
        ("echo rack", "'rack' is not a network location"),
    ],
)
async def test_script_that_fails_is_named_with_its_reason(
    tmp_path: Path, body: str, complaint: str
) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        await script(tmp_path, body).resolve(["host"])


async def test_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="cannot be run"):
        await TopologyScript(tmp_path / "nowhere").resolve(["host"])


async def test_resolver_that_fails_leaves_bookies_unplaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topology = Topology(TopologyTable(tmp_path / "nowhere"))
    with caplog.at_level(logging.WARNING):
        await topology.learn(bookies(A))
    assert topology.locations.of(A) == ("default-rack",)
    assert "count as one rack" in caplog.text


async def test_newcomers_are_looked_up_as_they_come() -> None:
    class Hosts:
        def __init__(self) -> None:
            self.asked: list[set[str]] = []

        async def resolve(self, hosts: Collection[str]) -> Mapping[str, Location]:
            self.asked.append(set(hosts))
            return dict.fromkeys(hosts, ("r1",))

    hosts = Hosts()
    topology = Topology(hosts)
    send, receive = trio.open_memory_channel[Bookies](1)

    async def changed(seen: Bookies) -> Bookies:
        return await receive.receive()

    async with trio.open_nursery() as nursery:
        await nursery.start(topology.follow, lambda: bookies(A), changed)
        assert topology.locations.is_known(A)
        await send.send(bookies(A, B))
        await trio.testing.wait_all_tasks_blocked()
        assert topology.locations.is_known(B)
        nursery.cancel_scope.cancel()
    assert hosts.asked == [{A, "10.0.0.1"}, {B, "10.0.0.2"}]


def test_host_of_a_bookie_is_the_one_it_announces() -> None:
    assert host_of(B, bookies(B)) == "10.0.0.2"
    assert host_of(A, bookies(A)) == "10.0.0.1"
    assert host_of(BookieId("green"), bookies()) == "green"
