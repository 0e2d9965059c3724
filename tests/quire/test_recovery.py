"""Verbs and commands on re-replication. The cluster runs no autorecovery: nobody interferes."""

from __future__ import annotations

from tests.quire.commands import Cluster, Result, quire
from tests.quire.shapes import apache, shapes


def verb(cluster: Cluster, *arguments: object) -> Result:
    result = quire("shell", "--uri", cluster.uri, *arguments)
    assert result.code == 0, result.err
    return result


def refused(cluster: Cluster, *arguments: object, code: int = 1) -> str:
    result = quire("shell", "--uri", cluster.uri, *arguments)
    assert result.code == code
    return result.error


def people(cluster: Cluster, *arguments: object) -> Result:
    return quire(*arguments, "--uri", cluster.uri)


def test_marked_ledgers_are_listed_with_what_they_miss(marked: Cluster) -> None:
    dead, alive = marked.bookies[3]["id"], marked.bookies[0]["id"]
    listing = verb(marked, "listunderreplicated")
    assert shapes(listing.lines) == apache("listunderreplicated")
    named = verb(marked, "listunderreplicated", "-pmr", "-prw")
    assert shapes(named.lines) == apache("listunderreplicated", "listunderreplicated -pmr")
    assert f"Missing replica {{missingReplica={dead}}}" in named.lines
    none = ["Under replicated ledger count {count=0}"]
    assert verb(marked, "listunderreplicated", "-mr", alive).lines == none
    assert verb(marked, "listunderreplicated", "-emr", dead).lines == none
    assert verb(marked, "listunderreplicated", "-c").lines == [none[0].replace("0", "1")]
    assert verb(marked, "queryautorecoverystatus").lines == ["CurrentRecoverLedgerInfo:"]
    assert verb(marked, "clusterinfo", "--json").json["clusterUnderReplicated"]

    (row,) = people(marked, "recovery", "list", "--json").json
    assert (row["ledgerId"], row["missing"], row["state"]) == (0, [dead], "waiting for a worker")
    assert "waiting for a worker" in people(marked, "recovery", "list").out
    status = people(marked, "recovery", "status", "--json").json
    assert (status["ledgers"], status["auditor"], status["secondsLeft"]) == (1, None, None)
    assert status["bytesLeft"] > 0
    assert "1 ledgers" in people(marked, "recovery", "status").out


def test_nothing_missing_is_said_so(cluster: Cluster) -> None:
    assert people(cluster, "recovery", "list").lines == ["no ledger lacks copies"]
    watched = people(cluster, "recovery", "status", "--watch")
    assert watched.lines[-1] == "nothing"


def test_auditor_is_named_or_missed(cluster: Cluster) -> None:
    assert "No auditor elected" in refused(cluster, "whoisauditor")
    assert verb(cluster, "whoisauditor", "--json").json == {"auditor": None}
    assert "nobody is auditor" in refused(cluster, "triggeraudit")


def test_rereplication_is_switched_off_and_on(cluster: Cluster) -> None:
    for arguments, said in (
        ([], "Autorecovery status {status=enabled}"),
        (["-d"], "Disabling autorecovery"),
        (["-d"], "Autorecovery already disabled. Doing nothing"),
        ([], "Autorecovery status {status=disabled}"),
        (["-e"], "Enabling autorecovery"),
        (["-e"], "Autorecovery already enabled. Doing nothing"),
    ):
        assert verb(cluster, "autorecovery", *arguments).lines == [said]
    assert people(cluster, "recovery", "disable").lines == ["re-replication is disabled"]
    assert "is disabled" in refused(cluster, "triggeraudit")
    assert not people(cluster, "recovery", "disable", "--json").json["changed"]
    assert people(cluster, "recovery", "enable").lines == ["re-replication is enabled"]


def test_delay_is_set_and_shown(cluster: Cluster) -> None:
    assert "one of -g and -s is needed" in refused(cluster, "lostbookierecoverydelay", code=2)
    done = verb(cluster, "lostbookierecoverydelay", "-s", 5)
    assert shapes(done.lines) == apache("lostbookierecoverydelay", "lostbookierecoverydelay -s 5")
    assert verb(cluster, "lostbookierecoverydelay", "-s", 0, "--json").json == {"delay": 0}
    shown = verb(cluster, "lostbookierecoverydelay", "-g")
    assert shown.lines == ["LostBookieRecoveryDelay value in ZK {delay=0}"]


def test_checks_are_made_due(cluster: Cluster) -> None:
    assert "at least one of" in refused(cluster, "forceauditchecks", code=2)
    done = verb(cluster, "forceauditchecks", "-calc", "-ppc", "-rc")
    assert shapes(done.lines) == apache("forceauditchecks")
    checks = people(cluster, "recovery", "status", "--json").json["lastChecks"]
    assert set(checks) == {"all ledgers", "placement policy", "replicas"}
    assert all(checks.values())


def test_bookie_is_not_stopped_or_forgotten_lightly(cluster: Cluster) -> None:
    alive = cluster.bookies[0]["id"]
    unsafe = people(cluster, "bookies", "safe-to-stop", alive)
    assert unsafe.code == 1
    assert "ledgers would be below their ack quorum" in unsafe.out
    unknown = people(cluster, "bookies", "safe-to-stop", "127.0.0.1:1", "--json")
    assert (unknown.json["ledgers"], unknown.json["bookie"]) == (0, "127.0.0.1:1")
    for command in (
        ["shell", "decommissionbookie", "-bookieid", alive],
        ["bookies", "decommission", alive],
    ):
        assert people(cluster, *command).code == 2
        running = people(cluster, *command, "--yes")
        assert running.code == 1
        assert "is running: stop it first" in running.error


def test_loss_that_nobody_found_is_not_accepted(cluster: Cluster) -> None:
    assert people(cluster, "recovery", "accept-loss", 1).code == 2
    refusal = people(cluster, "recovery", "accept-loss", 1, "--yes")
    assert refusal.code == 1
    assert "ledger 1 has no verdict" in refusal.error
