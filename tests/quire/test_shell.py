"""The shell's verbs on a live cluster: what they do, and that their output looks like Apache's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.shell import VERBS
from tests.quire.commands import Cluster, Result, quire
from tests.quire.conftest import ENTRIES, PASSWORD
from tests.quire.shapes import apache, captured, shapes


def verb(cluster: Cluster, *arguments: object) -> Result:
    result = quire("shell", "--uri", cluster.uri, *arguments)
    assert result.code == 0, result.err
    return result


def refused(cluster: Cluster, *arguments: object, code: int = 1) -> str:
    result = quire("shell", "--uri", cluster.uri, *arguments)
    assert result.code == code
    return result.error


@pytest.mark.parametrize("name", VERBS)
def test_verb_is_one_of_apaches_and_explains_itself(name: str) -> None:
    captured(name)
    result = quire("shell", name, "--help")
    assert result.code == 0
    assert "Example: quire shell" in result.out
    assert name in result.out


# ---------------------------------------------------------------------- the cluster


def test_bookies_are_listed_by_their_state(cluster: Cluster) -> None:
    writable = verb(cluster, "listbookies", "-rw")
    assert shapes(writable.lines) == apache("listbookies")
    assert len(writable.lines) == 4
    assert all(bookie["id"] in writable.out for bookie in cluster.bookies[:3])
    assert verb(cluster, "listbookies", "-ro").lines == ["No bookie exists!"]
    everybody = verb(cluster, "listbookies", "-a", "-h")
    assert shapes(everybody.lines) == apache("listbookies", "listbookies -a")
    assert "one of -rw, -ro and -a is needed" in refused(cluster, "listbookies", code=2)


def test_space_of_bookies_is_shown_each_and_in_all(cluster: Cluster) -> None:
    result = verb(cluster, "bookieinfo")
    assert shapes(result.lines) == apache("bookieinfo")
    found = verb(cluster, "bookieinfo", "--json").json
    assert set(found["bookies"]) == {bookie["id"] for bookie in cluster.bookies[:3]}
    assert found["total"] == sum(space["total"] for space in found["bookies"].values())
    assert 0 < found["free"] < found["total"]


def test_cluster_is_counted(cluster: Cluster) -> None:
    result = verb(cluster, "clusterinfo")
    title, text = result.out.split("\n", 1)
    assert title in apache("clusterinfo")
    assert list(json.loads(text)) == [
        line.split('"')[1] for line in captured("clusterinfo")["example_output"].splitlines()
        if '"' in line
    ]  # fmt: skip
    found = verb(cluster, "clusterinfo", "--json").json
    assert (found["totalBookiesCount"], found["unavailableBookiesCount"]) == (4, 1)


def test_instance_and_endpoints_are_shown(cluster: Cluster) -> None:
    assert shapes(verb(cluster, "whatisinstanceid").lines) == apache("whatisinstanceid")
    bookie_id = cluster.bookies[0]["id"]
    result = verb(cluster, "endpointinfo", "-b", bookie_id)
    assert apache("endpointinfo") <= shapes(result.lines)
    found = verb(cluster, "endpointinfo", "-b", bookie_id, "--json").json
    assert found["properties"] == {"quire.addBatch": "1"}
    assert "is not registered; registered are: " in refused(
        cluster, "endpointinfo", "-b", "127.0.0.1:1"
    )


def test_new_cluster_is_made_formatted_and_removed(cluster: Cluster) -> None:
    at = ("shell", "--uri", f"{cluster.uri}-second")
    assert quire(*at, "nukeexistingcluster", "-p", "/elsewhere", "-f").code == 1
    assert "cluster not initialised" in quire(*at, "listledgers").error
    made = quire(*at, "--json", "initnewcluster").json
    assert "exists already" in quire(*at, "initnewcluster").error
    again = quire(*at, "--json", "initnewcluster", "--if-missing").json
    assert again == {**made, "done": "was there already"}

    assert quire(*at, "metaformat", "-n").code == 1
    assert "Nobody is there to ask" in quire(*at, "metaformat").error
    assert quire(*at, "whatisinstanceid", "--json").json == {"instanceId": made["instanceId"]}
    formatted = quire(*at, "--json", "metaformat", "-n", "-f").json
    assert formatted["instanceId"] != made["instanceId"]

    root = made["root"]
    assert (
        "nothing was removed"
        in quire(*at, "nukeexistingcluster", "-p", root, "-i", "wrong", "--yes").error
    )
    assert quire(*at, "nukeexistingcluster", "-p", root, "-f", "-i", "x").code == 1
    identified = ("-p", root, "-i", formatted["instanceId"])
    assert quire(*at, "nukeexistingcluster", *identified).code == 2
    assert quire(*at, "nukeexistingcluster", *identified, "--yes", "--json").json["removed"]
    assert not quire(*at, "nukeexistingcluster", "-p", root, "-f", "--json").json["removed"]


# ---------------------------------------------------------------------- ledgers


def test_ledgers_are_listed_with_and_without_their_records(cluster: Cluster) -> None:
    assert "log entry {ledgerId=0}" in verb(cluster, "listledgers").lines
    assert shapes(verb(cluster, "listledgers").lines) == apache("listledgers")
    dead = cluster.bookies[3]["id"]
    assert verb(cluster, "listledgers", "-bookieid", dead).lines[0] == "log entry {ledgerId=0}"
    assert verb(cluster, "listledgers", "-bookieid", "127.0.0.1:1").lines == []
    full = verb(cluster, "listledgers", "-m", "--json")
    first = json.loads(full.lines[0])["metadata"]
    assert (first["state"], first["lastEntryId"], first["ensembleSize"]) == (
        "CLOSED", ENTRIES - 1, 4,
    )  # fmt: skip
    assert PASSWORD.decode() not in verb(cluster, "listledgers", "-m").out


def test_record_is_shown_saved_and_restored(cluster: Cluster, tmp_path: Path) -> None:
    result = verb(cluster, "ledgermetadata", "-l", 0)
    ours, theirs = shapes(result.lines), apache("ledgermetadata")
    assert "ledgerID {ledgerId=N}" in ours & theirs
    (long,) = (line for line in ours if "metadata=" in line)
    (cut,) = (line for line in theirs if "metadata=" in line)
    head = cut[: cut.index("customMetadata")]
    assert long.startswith(head)

    file = tmp_path / "record"
    verb(cluster, "ledgermetadata", "-l", 0, "-dumptofile", file)
    verb(cluster, "ledgermetadata", "-l", 700, "-restorefromfile", file)
    again = refused(cluster, "ledgermetadata", "-l", 700, "-restorefromfile", file)
    assert "ledger 700 exists already" in again
    update = ("ledgermetadata", "-l", 700, "-restorefromfile", file, "-update")
    assert "Nobody is there to ask" in refused(cluster, *update, code=2)
    verb(cluster, *update, "--yes")
    restored = verb(cluster, "ledgermetadata", "-l", 700, "--json").json
    assert restored == {**verb(cluster, "ledgermetadata", "-l", 0, "--json").json, "ledgerId": 700}
    verb(cluster, "deleteledger", "-l", 700, "-f")
    missing = refused(cluster, "ledgermetadata", "-l", 1, "-restorefromfile", tmp_path / "none")
    assert "No such file" in missing
    file.write_bytes(b"no record")
    assert "ledger 1" in refused(cluster, "ledgermetadata", "-l", 1, "-restorefromfile", file)


def test_entries_are_read_in_ranges_and_formats(cluster: Cluster) -> None:
    some = verb(cluster, "readledger", "-l", 0, "-fe", 0, "-le", 2)
    assert shapes(some.lines) == apache("readledger")
    assert len(some.lines) == 3
    assert len(verb(cluster, "readledger", "-l", 0).lines) == ENTRIES
    texts = verb(cluster, "readledger", "-l", 0, "-le", 1, "-m").lines
    assert texts[1::2] == ["entry 0", "entry 1"]
    hexed = verb(cluster, "-entryformat", "hex", "readledger", "-m", "-l", 0, "-le", 0).lines
    assert hexed[1] == f"00000000 {'65 6E 74 72 79 20 30':<47} entry 0"
    named = verb(cluster, "-ledgeridformat", "uuid", "readledger", "-l", f"{0:032x}", "-le", 0)
    assert "ledgerId=00000000-0000-0000-0000-000000000000" in named.out
    coded = json.loads(verb(cluster, "readledger", "-l", 0, "-le", 0, "-m", "--json").out)
    assert coded == {"ledgerId": 0, "entryId": 0, "entrySize": 7, "payload": "ZW50cnkgMA=="}


def test_ledger_is_written_read_with_recovery_and_deleted(cluster: Cluster) -> None:
    written = verb(cluster, "simpletest", "-e", 2, "-w", 2, "-a", 2, "-n", 20)
    assert shapes(written.lines) == apache("simpletest")
    ledger_id = int(written.out.split("ledgerId=")[1].split("}")[0])
    assert len(verb(cluster, "readledger", "-r", "-l", ledger_id).lines) == 20
    assert "Nobody is there to ask" in refused(cluster, "deleteledger", "-l", ledger_id, code=2)
    verb(cluster, "deleteledger", "-l", ledger_id, "-f")
    gone = f"ledger {ledger_id} is not in the metadata store"
    assert gone in refused(cluster, "deleteledger", "-l", ledger_id, "-f")
    assert gone in refused(cluster, "readledger", "-l", ledger_id)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nosuchverb"], 2, "No such command 'nosuchverb'"),
        (["readledger"], 2, "Missing option '-l'"),
        (["readledger", "-l", "abc"], 2, "'abc' is no ledger id"),
        (["readledger", "-l", "-1"], 2, "'-1' is no ledger id"),
        (["readledger", "-l", 0, "-fe", 5, "-le", 3], 1, "ledger 0"),
        (["readledger", "-l", 0, "-le", 1000], 1, "ledger 0"),
        (["-ledgeridformat", "roman", "listledgers"], 2, "'roman' is not one of"),
        (["simpletest", "-e", 9], 1, "9"),
        (["simpletest", "-e", 2, "-w", 3], 1, "3"),
        (["endpointinfo", "-b", "a b"], 1, "a b"),
        (["lastmark"], 2, "which bookie? Give its configuration with --conf FILE"),
        (["-conf", "missing.conf", "lastmark"], 1, "missing.conf: cannot read the configuration"),
    ],
)
def test_bad_input_is_one_line(
    cluster: Cluster, arguments: list[object], code: int, said: str
) -> None:
    assert said in refused(cluster, *arguments, code=code)


def test_cluster_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BK_zkTimeout", "1000")
    result = quire("shell", "--uri", "zk://127.0.0.1:1/ledgers", "listledgers")
    assert result.code == 1
    assert "no connection to ZooKeeper at 127.0.0.1:1 within 1 s" in result.error
    monkeypatch.chdir(tmp_path)
    assert "which cluster? Give --uri" in quire("ledgers", "list").error
    assert "metadata service URI 'x'" in quire("ledgers", "list", "--uri", "x").error
    assert "there is no gone" in quire("ledgers", "list", "--dir", "gone").error
