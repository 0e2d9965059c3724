"""Orders that autorecovery carries out, on a cluster that runs it: decommission, accepted loss."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from metadata.connect import open_store
from metadata.underreplication import UnderReplication
from metadata.uri import parse_metadata_uri
from tests.quire.commands import Cluster, Result, quire, running_cluster, wait_until
from tests.quire.shapes import apache, shapes
from tests.support.zookeeper import fresh_root_path, shared_zookeeper
from wire.types import BookieId, LedgerId

#: A ledger that only its record knows.
LOST = 900


@pytest.fixture(scope="module")
def healing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("healing") / "data"
    zookeeper = f"{shared_zookeeper().address}{fresh_root_path()}"
    options = ("--bookies", 3, "--autorecovery", "--zk", zookeeper)
    with running_cluster(folder, *options, rwRereplicateBackoffMs=100) as running:
        yield running


def ask(cluster: Cluster, *arguments: object) -> Result:
    result = quire(*arguments, "--uri", cluster.uri)
    assert result.code == 0, result.err
    return result


def write(cluster: Cluster, *shape: object) -> int:
    made = ask(cluster, "shell", "simpletest", *shape, "-n", 50, "--json")
    return int(made.json["ledgerId"])


def test_stopped_bookie_is_decommissioned(healing: Cluster) -> None:
    """Also: the auditor is named, and told to look."""
    ledgers = [write(healing, "-e", 2, "-w", 2, "-a", 2) for _ in range(3)]
    record = ask(healing, "ledgers", "show", ledgers[0], "--json").json
    victim = record["allEnsembles"]["0"][1]
    ask(healing, "recovery", "disable")
    pid = next(bookie["pid"] for bookie in healing.bookies if bookie["id"] == victim)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: victim not in ask(healing, "shell", "listbookies", "-rw").out)
    refused = quire("bookies", "decommission", victim, "--yes", "--uri", healing.uri)
    assert "re-replication is disabled" in refused.error
    ask(healing, "recovery", "enable")
    assert shapes(ask(healing, "shell", "whoisauditor").lines) <= {
        "Current auditor {auditor=autorecovery}"
    }
    assert "was told to look" in ask(healing, "shell", "triggeraudit").out

    done = ask(healing, "shell", "decommissionbookie", "-bookieid", victim, "--yes")
    assert shapes(done.lines) == apache("decommissionbookie")
    for ledger_id in ledgers:
        assert victim not in ask(healing, "ledgers", "show", ledger_id, "--json").out
        assert len(ask(healing, "ledgers", "read", ledger_id).lines) == 50
    assert victim not in ask(healing, "bookies", "list").out
    again = ask(healing, "bookies", "decommission", victim, "--yes", "--json").json
    assert (again["ledgers"], again["cookieDeleted"]) == (0, False)


def test_loss_is_found_accepted_and_left_behind(healing: Cluster, tmp_path: Path) -> None:
    """A record whose entries nobody has: what is left when all their bookies were replaced."""
    ledger_id, file = write(healing, "-e", 2, "-w", 2, "-a", 2), tmp_path / "record"
    ask(healing, "shell", "ledgermetadata", "-l", ledger_id, "-dumptofile", file)
    ask(healing, "shell", "ledgermetadata", "-l", LOST, "-restorefromfile", file)
    holder = ask(healing, "ledgers", "show", LOST, "--json").json["allEnsembles"]["0"][0]
    trio.run(_mark, healing.uri, holder)
    wait_until(lambda: "unrecoverable: these entries" in ask(healing, "recovery", "list").out)
    (task,) = ask(healing, "sql", "select * from recovery_tasks", "--json").lines
    assert '"state": "stuck"' in task
    watched = ask(healing, "recovery", "status", "--watch").lines
    assert "1 of them stuck" in watched[-1]  # nobody waits for it

    accepted = ask(healing, "recovery", "accept-loss", LOST, "--yes")
    assert f"ledger {LOST}: unrecoverable: these entries are lost: 0-49" in accepted.out
    wait_until(lambda: ask(healing, "recovery", "list").lines == ["no ledger lacks copies"])


async def _mark(uri_text: str, missing: BookieId) -> None:
    uri = parse_metadata_uri(uri_text)
    async with open_store(uri) as store:
        marks = UnderReplication(
            store, uri.root, owner="tests", chance=random.Random(1), now_ms=lambda: 1_000
        )
        await marks.mark(LedgerId(LOST), [missing])
