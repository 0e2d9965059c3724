"""The shell's verbs on one bookie: its cookie, its files, its storage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.quire.commands import Cluster, Result, quire
from tests.quire.conftest import ENTRIES
from tests.quire.shapes import apache, shapes


def verb(conf: Path, *arguments: object) -> Result:
    result = quire("shell", "-conf", conf, *arguments)
    assert result.code == 0, result.err
    return result


def refused(conf: Path, *arguments: object, code: int = 1) -> str:
    result = quire("shell", "-conf", conf, *arguments)
    assert result.code == code
    return result.error


@pytest.fixture
def stopped(cluster: Cluster, tmp_path: Path) -> Path:
    """The configuration of a stopped bookie, on a copy of its data that may be spoiled."""
    home = cluster.conf(4).parent
    copy = tmp_path / home.name
    shutil.copytree(home, copy)
    conf = copy / "bk_server.conf"
    conf.write_text(conf.read_text().replace(str(home), str(copy)))
    return conf


@pytest.fixture
def unborn(cluster: Cluster, tmp_path: Path) -> Path:
    """The configuration of a bookie that was never started."""
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={cluster.uri}\njournalDirectories={tmp_path}/journal\n"
        f"ledgerDirectories={tmp_path}/ledgers\nbookiePort=1\nadvertisedAddress=127.0.0.1\n"
        "allowLoopback=true\n"
    )
    return conf


# ---------------------------------------------------------------------- a running bookie


def test_running_bookie_passes_its_sanity_test(cluster: Cluster) -> None:
    before = quire("shell", "--uri", cluster.uri, "listledgers").out
    result = verb(cluster.conf(1), "bookiesanity", "-e", 5, "-t", 30)
    assert shapes(result.lines) == apache("bookiesanity")
    assert quire("shell", "--uri", cluster.uri, "listledgers").out == before
    stopped = refused(cluster.conf(4), "bookiesanity")
    assert "is not registered: it cannot be written to" in stopped


def test_mark_and_files_are_shown_while_the_bookie_runs(cluster: Cluster) -> None:
    conf = cluster.conf(1)
    assert shapes(verb(conf, "lastmark").lines) == apache("lastmark")
    assert verb(conf, "lastmark", "--json").json["dir"] == str(conf.parent / "ledgers")
    everything = verb(conf, "listfilesondisc")
    assert shapes(everything.lines) == apache("listfilesondisc")
    journals = verb(conf, "listfilesondisc", "-txn")
    assert shapes(journals.lines) == apache("listfilesondisc", "listfilesondisc -txn")
    assert set(verb(conf, "listfilesondisc", "-log", "--json").json) == {"entrylog"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["ledger", 0],
        ["localconsistencycheck"],
        ["rebuild-db-ledger-locations-index", "--yes"],
        ["bookieformat", "-n", "-f"],
    ],
)
def test_running_bookie_is_left_alone(cluster: Cluster, arguments: list[object]) -> None:
    """What needs the bookie stopped says so, and touches nothing."""
    assert "in use by" in refused(cluster.conf(1), *arguments)
    verb(cluster.conf(1), "bookiesanity")


# ---------------------------------------------------------------------- a stopped bookie


def test_entries_of_a_ledger_are_found_in_their_log(stopped: Path) -> None:
    shown = verb(stopped, "ledger", 0)
    assert shapes(shown.lines) == apache("ledger")
    assert len(shown.lines) == ENTRIES
    about = verb(stopped, "ledger", "-m", 0).lines[0]
    assert f"entries={ENTRIES}, fenced=false, ledgerId=0, limbo=false" in about
    assert "ledger 99 is not on this bookie" in refused(stopped, "ledger", 99)

    (log,) = verb(stopped, "listfilesondisc", "-log", "--json").json["entrylog"]
    name = Path(log["path"]).name
    read = verb(stopped, "readlog", name)
    assert shapes(read.lines) == apache("readlog")
    assert read.out == verb(stopped, "readlog", int(name[:8], 16)).out
    assert len(verb(stopped, "readlog", "-l", 0, "-e", 3, name).lines) == 3
    assert "entry 3" in verb(stopped, "readlog", "-m", "-l", 0, "-e", 3, name).lines[3]
    assert len(verb(stopped, "readlog", "-ep", 0, name).lines) == 1
    places = verb(stopped, "ledger", 0, "--json").lines
    assert f'"position": {shown.lines[0].split("pos: ")[1].rstrip(")")}' in places[0]
    assert "there is no entry log 00000063.log" in refused(stopped, "readlog", 99)
    assert "neither the number nor the file name" in refused(stopped, "readlog", "x", code=2)


def test_records_of_a_journal_are_shown(stopped: Path) -> None:
    files = verb(stopped, "listfilesondisc", "-txn", "--json").json["journal"]
    path = Path(files[0]["path"])
    by_path = verb(stopped, "readjournal", path)
    assert by_path.out == verb(stopped, "readjournal", path.name).out
    assert by_path.out == verb(stopped, "readjournal", int(path.stem, 16)).out
    assert shapes(by_path.lines[:1]) <= apache(
        "readjournal", "readjournal /data/quire-vectors/ops/b5/journal/current/1a1e2c3f8ff.txn"
    )
    assert any("ledgerId=0" in line and "entryId=0" in line for line in by_path.lines)
    assert verb(stopped, "readjournal", path, "-m", "--json").lines
    assert "there is no journal" in refused(stopped, "readjournal", 77777)
    assert "No such file" in refused(stopped, "readjournal", path.parent / "none.jnl")
    assert "neither the number nor the name" in refused(stopped, "readjournal", "ffff", code=2)


def test_damage_is_found_and_a_rebuilt_index_passes_the_check(stopped: Path) -> None:
    passed = verb(stopped, "localconsistencycheck").lines
    assert {passed[0], passed[-1]} <= apache("localconsistencycheck")

    index = stopped.parent / "ledgers" / "current" / "index"
    shutil.rmtree(index)
    missing = refused(stopped, "localconsistencycheck")
    assert "is missing" in missing
    question = refused(stopped, "rebuild-db-ledger-locations-index", code=2)
    assert "Nobody is there to ask" in question
    trial = verb(stopped, "rebuild-db-ledger-locations-index", "--dry-run")
    assert "Would rebuild" in trial.out
    assert not index.exists()
    rebuilt = verb(stopped, "rebuild-db-ledger-locations-index", "--yes")
    first, last = rebuilt.lines[0], rebuilt.lines[-1]
    assert {first, last} <= apache("rebuild-db-ledger-locations-index")
    assert "dataIntegrityChecking=true" in rebuilt.out
    checked = verb(stopped, "localconsistencycheck", "--json").json
    assert checked["problems"] == []
    assert checked["entries"] >= ENTRIES

    log = next((stopped.parent / "ledgers" / "current").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[data.index(b"entry 7")] ^= 1
    log.write_bytes(data)
    assert "1 problems found" in refused(stopped, "localconsistencycheck")


# ---------------------------------------------------------------------- cookies


def test_new_bookie_is_initialised_and_formatted(unborn: Path) -> None:
    assert "was never started" in refused(unborn, "lastmark")
    assert "was never started" in refused(unborn, "listfilesondisc")
    assert "was never started" in refused(unborn, "ledger", 0)
    assert verb(unborn, "initbookie", "--json").json == {"bookieId": "127.0.0.1:1", "new": True}
    assert not verb(unborn, "initbookie", "--json").json["new"]
    stored = verb(unborn, "cookie_get", "127.0.0.1:1")
    assert shapes(stored.lines) <= apache("cookie_get")

    assert "holds data, nothing was erased" in refused(unborn, "bookieformat", "-n")
    assert "Nobody is there to ask" in refused(unborn, "bookieformat", code=2)
    assert (unborn.parent / "journal" / "current" / "VERSION").exists()
    erased = verb(unborn, "bookieformat", "-n", "-f", "-d")
    assert shapes(erased.lines) == apache("bookieformat")
    assert not (unborn.parent / "journal" / "current").exists()
    assert "has no cookie" in refused(unborn, "cookie_get", "127.0.0.1:1")
    assert verb(unborn, "bookieformat").code == 0  # nothing is there, so nothing is asked


def test_cookie_is_generated_stored_changed_and_deleted(unborn: Path, tmp_path: Path) -> None:
    file, name = tmp_path / "cookie", "127.0.0.1:2"
    generate = ("cookie_generate", "-j", "/j", "-o", file)
    made = verb(unborn, *generate, "-l", "/l", name)
    assert shapes(made.lines) == apache("cookie_generate")
    verb(unborn, "cookie_create", "-cf", file, name)
    assert "has a cookie already" in refused(unborn, "cookie_create", "-cf", file, name)
    wrong = refused(unborn, "cookie_update", "-cf", file, "127.0.0.1:3", "--yes")
    assert f"is the cookie of bookie {name}" in wrong

    verb(unborn, *generate, "-l", "/l,/m", name)
    assert "Nobody is there" in refused(unborn, "cookie_update", "-cf", file, name, code=2)
    verb(unborn, "cookie_update", "-cf", file, name, "--yes")
    assert verb(unborn, "cookie_get", name, "--json").json["ledgerDirs"] == ["/l", "/m"]
    verb(unborn, "cookie_delete", name, "--yes")
    for command in (["cookie_get"], ["cookie_delete", "--yes"]):
        assert "has no cookie" in refused(unborn, *command, name)
    assert "No such file" in refused(unborn, "cookie_create", "-cf", tmp_path / "none", name)


def test_bookie_of_a_fixed_id_has_no_other_form(unborn: Path, cluster: Cluster) -> None:
    same = verb(unborn, "updateledgers", "-b", "ip", "--json").json
    assert same["changed"] == 0
    unborn.write_text(unborn.read_text() + "bookieId=one\n")
    assert "there is nothing to update" in refused(unborn, "updateledgers", "-b", "ip")


def test_ledgers_follow_a_bookie_to_its_other_name(unborn: Path, cluster: Cluster) -> None:
    """The record of a ledger that names an address comes to name the host, and back."""
    uri = ("shell", "--uri", cluster.uri)
    ledger = quire(*uri, "simpletest", "-e", 1, "-w", 1, "-a", 1, "-n", 1, "--json").json
    ledger_id = ledger["ledgerId"]
    record = quire(*uri, "ledgermetadata", "-l", ledger_id, "--json").json
    (address,) = record["allEnsembles"]["0"]
    port = address.rpartition(":")[2]
    text = unborn.read_text().replace("bookiePort=1", f"bookiePort={port}")
    unborn.write_text(text.replace("advertisedAddress=127.0.0.1", "advertisedAddress=localhost"))
    rename = ("updateledgers", "-b", "hostname", "-s", 1000)
    assert "Nobody is there to ask" in refused(unborn, *rename, code=2)
    assert verb(unborn, *rename, "--yes", "--json").json["changed"] >= 1
    renamed = quire(*uri, "ledgermetadata", "-l", ledger_id, "--json").json
    assert renamed["allEnsembles"] == {"0": [f"localhost:{port}"]}
    verb(unborn, "updateledgers", "-b", "ip", "-s", 1000, "--yes")
    back = quire(*uri, "ledgermetadata", "-l", ledger_id, "--json").json
    assert back["allEnsembles"] == {"0": [address]}
    quire(*uri, "deleteledger", "-l", ledger_id, "-f")
