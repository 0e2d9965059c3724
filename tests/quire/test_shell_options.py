"""Options that BookKeeper's operators know: all of them are there, and do what they did."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from quire.shell import VERBS, shell
from tests.quire.commands import Cluster, Result, quire
from tests.quire.shapes import VECTORS, apache, captured, shapes


def verb(cluster: Cluster, *arguments: object) -> Result:
    result = quire("shell", "--uri", cluster.uri, *arguments)
    assert result.code == 0, result.err
    return result


def refused(cluster: Cluster, *arguments: object, code: int = 1) -> str:
    result = quire("shell", "--uri", cluster.uri, *arguments)
    assert result.code == code
    return result.error


@pytest.mark.parametrize("name", sorted(set(VERBS) - {"help"}))
def test_every_option_of_apaches_verb_is_known(name: str) -> None:
    command = shell.get_command(click.Context(shell), name)
    assert command is not None
    ours = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    theirs = {
        option
        for row in captured(name)["options"]
        for option in re.sub(r"\(required\)|\s", "", row["name"]).split(",")
    }
    assert theirs - ours <= {"-h", "--help"}


def test_verbs_that_are_not_here_are_told(cluster: Cluster) -> None:
    """The rest of Apache's verbs, each with its reason in docs/operations.md."""
    rows: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    theirs = {row["verb"] for row in rows} - {"nosuchverb", "(none)"}
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = text.partition("## Verbs that are not here")[2]
    for name in sorted(theirs - set(VERBS)):
        assert f"`{name}`" in section


def test_help_is_a_verb(cluster: Cluster) -> None:
    assert quire("shell", "help").out == quire("shell", "--help").out
    assert quire("shell", "help", "recover").out == quire("shell", "recover", "--help").out
    unknown = quire("shell", "help", "nothing")
    assert unknown.code == 2
    assert "No such command 'nothing'" in unknown.error


# ---------------------------------------------------------------------- one bookie's entries


def test_entries_of_one_bookie_are_read_from_it_alone(cluster: Cluster) -> None:
    made = verb(cluster, "simpletest", "-e", 3, "-w", 2, "-a", 2, "-n", 9, "--json").json
    ledger_id = made["ledgerId"]
    try:
        record = verb(cluster, "ledgermetadata", "-l", ledger_id, "--json").json
        holders = record["allEnsembles"]["0"]
        found = [
            verb(cluster, "readledger", "-l", ledger_id, "-b", holder, "--json")
            for holder in holders
        ]
        ids = [[json.loads(line)["entryId"] for line in result.lines] for result in found]
        assert ids == [[0, 2, 3, 5, 6, 8], [0, 1, 3, 4, 6, 7], [1, 2, 4, 5, 7, 8]]
        part = ("readledger", "-l", ledger_id, "-b", holders[0], "-fe", 2, "-le", 3, "-m")
        lines = verb(cluster, *part).lines
        assert [line.startswith("Entry {entryId=") for line in lines] == [True, False] * 2
        none = refused(cluster, *part[:-3], "-le", 1, "-fe", 1)
        assert f"has no entry of 1..1 on bookie {holders[0]}: its bookies are " in none
        assert "exclude each other" in refused(cluster, *part, "-r", code=2)
    finally:
        verb(cluster, "deleteledger", "-l", ledger_id, "-f")


def test_entries_that_a_bookie_lacks_are_named(cluster: Cluster, tmp_path: Path) -> None:
    """Here by a record that names bookies which never saw the ledger."""
    file = tmp_path / "record"
    verb(cluster, "ledgermetadata", "-l", 0, "-dumptofile", file)
    verb(cluster, "ledgermetadata", "-l", 701, "-restorefromfile", file)
    alive, dead = cluster.bookies[0]["id"], cluster.bookies[3]["id"]
    try:
        read = ("shell", "--uri", cluster.uri, "readledger", "-l", 701, "-le", 2, "-b")
        lacking = quire(*read, alive)
        assert lacking.code == 1
        assert "lacks 3 entries of ledger 701 that it should have" in lacking.error
        assert lacking.lines[0] == "Failed to read entry {entryId=0, error=NO_SUCH_LEDGER}"
        coded = [json.loads(line) for line in quire(*read, alive, "--json").lines]
        assert [row["error"] for row in coded] == ["NO_SUCH_LEDGER"] * 3
        silent = quire(*read, dead)
        assert silent.code == 1
        assert f"bookie {dead} cannot be read (NOT_CONNECTED)" in silent.error
    finally:
        verb(cluster, "deleteledger", "-l", 701, "-f")


# ---------------------------------------------------------------------- another id


def test_ledgers_are_told_another_id_of_a_bookie(cluster: Cluster, tmp_path: Path) -> None:
    file, dead = tmp_path / "record", cluster.bookies[3]["id"]
    verb(cluster, "ledgermetadata", "-l", 0, "-dumptofile", file)
    rename = ("updateBookieInLedger", "-sb", dead, "-db", "127.0.0.1:9", "-s", 1000, "-l", 1)
    back = ("updateBookieInLedger", "-sb", "127.0.0.1:9", "-db", dead, "-s", 1000, "-v", "true")
    assert "Nobody is there to ask" in refused(cluster, *rename, code=2)
    running = refused(cluster, *rename[:1], "-sb", cluster.bookies[0]["id"], *rename[3:], "--yes")
    assert "is running: stop it first" in running
    same = refused(cluster, *rename[:3], "-db", dead, code=2)
    assert "both the old and the new id" in same
    assert verb(cluster, *rename, "--yes", "--json").json["changed"] == 1
    assert "127.0.0.1:9" in verb(cluster, "ledgermetadata", "-l", 0).out
    assert verb(cluster, *back, "--yes").lines[0].startswith("1 ledgers changed from")
    after = tmp_path / "after"
    verb(cluster, "ledgermetadata", "-l", 0, "-dumptofile", after)
    assert after.read_bytes() == file.read_bytes()


# ---------------------------------------------------------------------- recover


def test_lost_copies_are_restored_where_and_as_far_as_wanted(cluster: Cluster) -> None:
    """One ledger to one bookie first, then the rest; ledger 0 cannot be restored at all."""
    dead, alive = cluster.bookies[3]["id"], cluster.bookies[0]["id"]
    assert f"bookie {alive} is running: stop it first" in refused(cluster, "recover", "-f", alive)
    assert "Nobody is there to ask" in refused(cluster, "recover", dead, code=2)
    plan = verb(cluster, "recover", "-dr", dead, "--json").json["ledgers"]
    assert plan == [0, 1, 2]
    one = verb(cluster, "recover", "-dr", "-l", 2, dead)
    assert one.lines == ["Ledger {ledgerId=2}"]

    order = ("recover", "-f", "-l", 2, "-sku", "-rate", 1_000_000, dead)
    unwritable = refused(cluster, *order, "127.0.0.1:9")
    assert "bookie 127.0.0.1:9 is not writable" in unwritable
    assert verb(cluster, *order, alive).lines == ["1 of 1 ledgers restored"]
    record = verb(cluster, "ledgermetadata", "-l", 2, "--json").json
    assert set(record["allEnsembles"]["0"]) == {cluster.bookies[2]["id"], alive}

    stuck = quire("shell", "--uri", cluster.uri, "recover", "-f", f"{dead},127.0.0.1:9", "--json")
    assert stuck.code == 1
    assert "1 ledgers still need bookie" in stuck.error
    first, second = map(json.loads, stuck.lines)
    assert list(first["stuck"]) == ["0"]
    assert (second["bookieId"], second["ledgers"]) == ("127.0.0.1:9", 0)
    assert verb(cluster, "recover", "-q", dead).lines == ["Ledger {ledgerId=0}"]
    record = verb(cluster, "ledgermetadata", "-l", 1, "--json").json
    assert dead not in record["allEnsembles"]["0"]
    read = quire("ledgers", "read", 1, "--uri", cluster.uri)
    assert read.lines == ["one", "two"]


def test_reading_looks_like_apaches(cluster: Cluster) -> None:
    some = verb(cluster, "readledger", "-l", 0, "-fe", 0, "-le", 2, "-b", cluster.bookies[0]["id"])
    assert shapes(some.lines) == apache("readledger")
