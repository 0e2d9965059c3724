"""The shell's jobs under names for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.quire.commands import Cluster
from tests.quire.commands import quire as command
from tests.quire.conftest import ENTRIES, PASSWORD


def test_ledgers_are_listed_shown_and_read(cluster: Cluster, tmp_path: Path) -> None:
    at = ("--uri", cluster.uri)
    rows = command("ledgers", "list", *at, "--json").json
    assert (rows[0]["ledgerId"], rows[0]["state"]) == (0, "CLOSED")
    assert "4/4/4" in command("ledgers", "list", *at).out
    dead = cluster.bookies[3]["id"]
    assert [r["ledgerId"] for r in command("ledgers", "list", *at, "--bookie", dead, "--json").json]
    shown = command("ledgers", "show", 0, *at)
    assert "CLOSED" in shown.out
    assert dead in shown.out
    assert PASSWORD.decode() not in shown.out
    assert command("ledgers", "show", 0, *at, "--json").json == rows[0]

    texts = [f"entry {number}" for number in range(ENTRIES)]
    assert command("ledgers", "read", 0, *at).lines == texts
    assert command("ledgers", "read", 0, *at, "--first", 2, "--last", 3).lines == texts[2:4]
    found = [json.loads(line) for line in command("ledgers", "read", 0, *at, "--json").lines]
    assert found[-1] == {"entryId": ENTRIES - 1, "payload": texts[-1]}
    file = tmp_path / "payloads"
    assert command("ledgers", "read", 0, *at, "--output", file).out == ""
    assert file.read_text().splitlines() == texts
    assert (
        "No such file"
        in command("ledgers", "read", 0, *at, "--output", tmp_path / "no" / "f").error
    )


def test_cluster_is_found_by_the_folder_it_runs_in(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_uri = command("bookies", "list", "--uri", cluster.uri, "--json").json
    assert command("bookies", "list", "--dir", cluster.folder, "--json").json == by_uri
    monkeypatch.setenv("QUIRE_DIR", str(cluster.folder))
    assert command("bookies", "list", "--json").json == by_uri
    monkeypatch.setenv("BK_metadataServiceUri", cluster.uri)
    monkeypatch.setenv("QUIRE_DIR", "missing")
    assert command("bookies", "list", "--json").json == by_uri


def test_bookies_are_listed_with_their_space(cluster: Cluster) -> None:
    at = ("--uri", cluster.uri)
    states = {r["bookie"]: r["state"] for r in command("bookies", "list", *at, "--json").json}
    assert [states[bookie["id"]] for bookie in cluster.bookies] == ["writable"] * 3 + ["absent"]
    assert "absent" in command("bookies", "list", *at).out
    spaces = command("bookies", "info", *at, "--json").json
    assert [set(space) for space in spaces] == [{"bookie", "freeBytes", "totalBytes"}] * 3
    assert "free in all: " in command("bookies", "info", *at).out


def test_ledger_is_deleted_only_after_a_yes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--uri", cluster.uri)
    made = command("shell", *at, "simpletest", "-e", 1, "-w", 1, "-a", 1, "-n", 1, "--json").json
    delete = ("ledgers", "delete", made["ledgerId"], *at)
    monkeypatch.setattr("sys.stdin", _Terminal())
    monkeypatch.setattr("click.confirm", lambda question, err: False)
    refused = command(*delete)
    assert refused.code == 1
    assert "nothing was changed" in refused.error
    monkeypatch.setattr("click.confirm", lambda question, err: True)
    assert command(*delete, "--json").json["deleted"]
    assert command(*delete, "--yes").code == 1


class _Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("group", ["ledgers", "bookies"])
def test_group_without_a_command_shows_its_commands(group: str) -> None:
    result = command(group)
    assert result.code == 2
    assert len(result.err.splitlines()) > 5
    assert "list" in result.err
