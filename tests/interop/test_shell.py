"""Every verb that speaks to a cluster: Apache's shell on ours, and ours on Apache's.

One test serves both directions, because the words and the options are the same. What a verb says is
compared with what our client or the metadata know, and what it does with what they then find. Verbs
on a bookie's own files are left out: each make has its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from autorecovery.context import RecoveryContext
from bench.peers.cluster import PeerCluster
from bench.peers.process import PeerBookie
from ledger_client.sync import LedgerClient
from metadata.cookie import encode_cookie
from metadata.cookies import NoCookieError
from metadata.rereplication_settings import PeriodicCheck
from tests.interop.conftest import OwnCluster
from tests.interop.healing import (
    Written,
    check_copies,
    healer,
    looking,
    payloads,
    until_auditor,
    until_gone,
)
from tests.interop.java_client import PASSWORD
from tests.interop.java_shell import java_shell
from tests.interop.table import APACHE, OURS
from tests.quire.commands import quire
from wire.types import BookieId, LedgerId

T = TypeVar("T")
TABLE = "Shell"
HEADINGS = {"apache": "Apache's shell (4.18.0) on our cluster", "ours": "ours on Apache's (4.18.0)"}


def verb(title: str) -> pytest.MarkDecorator:
    """A row of the table: the test runs with either shell."""
    cases = [
        pytest.param(make, marks=pytest.mark.cell(TABLE, title, heading))
        for make, heading in HEADINGS.items()
    ]
    return pytest.mark.parametrize("shell", cases, indirect=True, scope="module")


@dataclass
class Shell:
    """A shell of one make before a cluster of the other, whose own autorecovery runs."""

    make: str
    cluster: PeerCluster
    client: LedgerClient
    run: Callable[..., str]
    healer_log: Path

    @property
    def uri(self) -> str:
        return self.cluster.uri

    def look(self, job: Callable[[RecoveryContext], Awaitable[T]]) -> T:
        async def main() -> T:
            async with looking(self.uri) as context:
                return await job(context)

        return trio.run(main)

    def write(self, count: int, *, ensemble: int = 3) -> tuple[int, list[bytes]]:
        data = payloads(count, "shell")
        with self.client.create(
            ensemble_size=ensemble, write_quorum=2, ack_quorum=2, password=PASSWORD
        ) as ledger:
            if data:
                ledger.append_many(data)
        return ledger.id, data

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody but us repairs anything."""
        self.look(lambda context: context.marks.settings.disable())
        try:
            yield
        finally:
            self.look(lambda context: context.marks.settings.enable())


@pytest.fixture(scope="module")
def shell(request: pytest.FixtureRequest, own_cluster: OwnCluster, folder: Path) -> Iterator[Shell]:
    make: str = request.param
    cluster = own_cluster(f"{make}-shell", OURS if make == "apache" else APACHE)
    place = folder / f"{make}-shell"
    with ExitStack() as stack:
        client = stack.enter_context(LedgerClient(cluster.uri))
        other = "ours" if make == "apache" else "apache"
        process = stack.enter_context(healer(place / "healer", cluster.uri, other))
        run = _ours(cluster)
        if make == "apache":
            peer = stack.enter_context(java_shell(place / "java"))
            port = cluster.bookies[0].port

            def run(*arguments: object) -> str:
                return peer.ok(cluster.uri, *arguments, port=port).text

        found = Shell(make, cluster, client, run, process.log)
        found.look(lambda context: until_auditor(context, None))
        yield found
        complaints = [line for bookie in cluster.bookies for line in bookie.new_alarms()]
        assert not complaints, "\n".join(complaints)


def _ours(cluster: PeerCluster) -> Callable[..., str]:
    def run(*arguments: object) -> str:
        found = quire("shell", "--uri", cluster.uri, *arguments)
        assert found.code == 0, found.err
        return found.out

    return run


# ---------------------------------------------------------------------- the cluster


@verb("listbookies")
def test_bookies_are_listed(shell: Shell) -> None:
    for kind in ("-rw", "-a"):
        said = shell.run("listbookies", kind)
        assert all(f"BookieID:{b.bookie_id}, " in said for b in shell.cluster.bookies)
    assert "No bookie exists!" in shell.run("listbookies", "-ro")


@verb("bookieinfo")
def test_space_of_every_bookie_is_told(shell: Shell) -> None:
    said = shell.run("bookieinfo")
    for bookie in shell.cluster.bookies:
        [line] = [line for line in said.splitlines() if f"BookieID:{bookie.bookie_id}, " in line]
        total = shell.client.bookie_info(bookie.bookie_id).total_bytes
        assert f"total={total}(" in line
    assert "Total free disk space in the cluster" in said


@verb("clusterinfo")
def test_cluster_is_counted(shell: Shell) -> None:
    said = shell.run("clusterinfo")
    for name, value in {
        "auditorElected": "true",
        "ledgerReplicationEnabled": "true",
        "totalBookiesCount": "4",
        "writableBookiesCount": "4",
        "unavailableBookiesCount": "0",
    }.items():
        assert f'"{name}" : {value}' in said


@verb("whatisinstanceid")
def test_instance_id_is_told(shell: Shell) -> None:
    async def instance_id(context: RecoveryContext) -> str | None:
        return context.cluster.instance_id

    assert f"readInstanceId={shell.look(instance_id)}" in shell.run("whatisinstanceid")


@verb("endpointinfo")
def test_endpoints_of_a_bookie_are_told(shell: Shell) -> None:
    bookie = shell.cluster.bookies[1]
    said = shell.run("endpointinfo", "-b", bookie.bookie_id)
    assert f"{{host=127.0.0.1, port={bookie.port}}}" in said
    assert "{protocol=bookie-rpc}" in said


# ---------------------------------------------------------------------- ledgers


@verb("listledgers")
def test_ledgers_are_listed(shell: Shell) -> None:
    ledger_id, _ = shell.write(3)
    ensemble = shell.client.metadata(ledger_id).fragments[0].ensemble
    said = shell.run("listledgers", "-m")
    [line] = [line for line in said.splitlines() if f"{{ledgerId={ledger_id}, " in line]
    assert f"ensembles={{0=[{', '.join(ensemble)}]}}" in line
    assert "state=CLOSED, " in line
    mine = shell.run("listledgers", "-bookieid", ensemble[0])
    assert f"{{ledgerId={ledger_id}}}" in mine
    [other] = {bookie.bookie_id for bookie in shell.cluster.bookies} - set(ensemble)
    assert f"{{ledgerId={ledger_id}}}" not in shell.run("listledgers", "-bookieid", other)


@verb("ledgermetadata; -dumptofile and -restorefromfile")
def test_record_is_shown_saved_and_restored(shell: Shell, tmp_path: Path) -> None:
    ledger_id, data = shell.write(5)
    said = shell.run("ledgermetadata", "-l", ledger_id)
    assert "lastEntryId=4, " in said
    assert f"length={sum(map(len, data))}, " in said
    before = shell.client.metadata(ledger_id)
    file = tmp_path / "record"
    shell.run("ledgermetadata", "-l", ledger_id, "-dumptofile", file)
    shell.client.delete(ledger_id)
    shell.run("ledgermetadata", "-l", ledger_id, "-restorefromfile", file)
    assert shell.client.metadata(ledger_id).fragments == before.fragments
    with shell.client.open(ledger_id, password=PASSWORD) as reader:
        assert [entry.payload for entry in reader.read(0, 4)] == data


@verb("readledger")
def test_entries_are_read(shell: Shell) -> None:
    ledger_id, data = shell.write(4)
    said = shell.run("readledger", "-l", ledger_id, "-fe", 1, "-le", 2, "-m")
    entries = [line for line in said.splitlines() if line.startswith("Entry {entryId=")]
    assert [line.split("=")[1].split(",")[0] for line in entries] == ["1", "2"]
    assert all(payload.decode() in said for payload in data[1:3])
    assert data[3].decode() not in said


@verb("simpletest")
def test_simple_test_writes_a_ledger(shell: Shell) -> None:
    said = shell.run("simpletest", "-e", 3, "-w", 2, "-a", 2, "-n", 10)
    assert "(lastEntryId 9)" in said
    ledger_id = int(said.partition("ledgerId=")[2].partition("}")[0])
    if shell.make == "apache":
        assert not shell.client.exists(ledger_id)  # it tidies up
        return
    record = shell.client.metadata(ledger_id)
    assert (record.is_closed, record.last_entry_id) == (True, 9)
    with shell.client.open(ledger_id) as reader:
        assert len(list(reader.read(0, 9))) == 10


@verb("deleteledger")
def test_ledger_is_deleted(shell: Shell) -> None:
    ledger_id, _ = shell.write(1)
    shell.run("deleteledger", "-l", ledger_id, "-f")
    assert not shell.client.exists(ledger_id)


# ---------------------------------------------------------------------- re-replication


@verb("listunderreplicated")
def test_marks_are_listed(shell: Shell) -> None:
    ledger_id, _ = shell.write(1)
    lost = shell.cluster.bookies[0].bookie_id
    with shell.paused():
        shell.look(lambda c: c.marks.mark(LedgerId(ledger_id), [BookieId(lost)]))
        said = shell.run("listunderreplicated", "-pmr")
        assert f"{{ledgerId={ledger_id}}}" in said
        assert f"{{missingReplica={lost}}}" in said
        assert "{count=1}" in said
        assert "{count=0}" in shell.run("listunderreplicated", "-mr", "elsewhere:1")


@verb("whoisauditor")
def test_auditor_is_told(shell: Shell) -> None:
    name = shell.look(lambda context: until_auditor(context, None))
    assert name in shell.run("whoisauditor")


@verb("autorecovery -d, -e")
def test_autorecovery_is_switched(shell: Shell) -> None:
    def is_enabled() -> bool:
        return shell.look(lambda context: context.marks.settings.is_enabled())

    assert "{status=enabled}" in shell.run("autorecovery")
    assert "Disabling autorecovery" in shell.run("autorecovery", "-d")
    assert not is_enabled()
    assert "{status=disabled}" in shell.run("autorecovery")
    assert "already disabled. Doing nothing" in shell.run("autorecovery", "-d")
    assert "Enabling autorecovery" in shell.run("autorecovery", "-e")
    assert is_enabled()


@verb("lostbookierecoverydelay")
def test_delay_is_set_and_told(shell: Shell) -> None:
    shell.run("lostbookierecoverydelay", "-s", 7)
    delay = shell.look(lambda context: context.marks.settings.delay())
    assert delay is not None
    assert delay.seconds == 7
    assert "{delay=7}" in shell.run("lostbookierecoverydelay", "-g")
    shell.look(lambda context: context.marks.settings.set_delay(0))


@verb("triggeraudit")
def test_audit_is_asked_for(shell: Shell) -> None:
    """The auditor, of the other make, is told through the delay, which stays what it is."""
    before = shell.look(lambda context: context.marks.settings.delay())
    shell.run("triggeraudit")
    after = shell.look(lambda context: context.marks.settings.delay())
    assert before is not None
    assert after is not None
    assert after.asks_for_audit(before)


@verb("forceauditchecks")
def test_checks_are_made_due(shell: Shell) -> None:
    said = shell.run("forceauditchecks", "-calc", "-ppc", "-rc")
    assert said.count("Resetting ") == 3

    async def times(context: RecoveryContext) -> list[int | None]:
        return [await context.marks.settings.last_check_ms(check) for check in PeriodicCheck]

    assert all(found is not None and found > 0 for found in shell.look(times))


@verb("queryautorecoverystatus")
def test_ledgers_in_work_are_told(shell: Shell) -> None:
    ledger_id, _ = shell.write(1)
    checked = LedgerId(ledger_id)
    with shell.paused():

        async def lock(context: RecoveryContext) -> str:
            await context.marks.mark(checked, [BookieId(shell.cluster.bookies[0].bookie_id)])
            assert await context.marks.take(checked) is not None
            return await trio.to_thread.run_sync(shell.run, "queryautorecoverystatus")

        said = shell.look(lock)
        assert "CurrentRecoverLedgerInfo:" in said
        assert f"ledgerId={ledger_id}" in said


# ---------------------------------------------------------------------- cookies


@verb("cookie_generate, _create, _get, _update, _delete")
def test_cookies_are_kept(shell: Shell, tmp_path: Path) -> None:
    name, file = BookieId("127.0.0.1:9"), tmp_path / "cookie"

    async def stored(context: RecoveryContext) -> bytes:
        return encode_cookie((await context.cookies.read(name)).cookie)

    def generate(journal: str) -> None:
        given = ("-j", journal, "-l", "/l", "-o", file, name)
        shell.run("cookie_generate", *given)

    generate("/one")
    shell.run("cookie_create", "-cf", file, name)
    assert b"/one" in shell.look(stored)
    assert "/one" in shell.run("cookie_get", name)
    file.unlink()
    generate("/two")
    sure = ["--yes"] if shell.make == "ours" else []
    shell.run("cookie_update", "-cf", file, name, *sure)
    assert b"/two" in shell.look(stored)
    shell.run("cookie_delete", name, *sure)
    with pytest.raises(NoCookieError):
        shell.look(stored)


# ---------------------------------------------------------------------- a bookie that is gone


def lose(shell: Shell, number: int) -> tuple[PeerBookie, Written]:
    """A bookie is killed that has copies of every one of these ledgers."""
    victim, written = shell.cluster.bookies[number], Written()
    while len(written.entries) < 3:
        ledger_id, data = shell.write(30)
        if shell.client.metadata(ledger_id).mentions(BookieId(victim.bookie_id)):
            written.entries[ledger_id] = data
    victim.kill()
    shell.look(lambda context: until_gone(context, victim.bookie_id))
    return victim, written


def assert_restored(shell: Shell, victim: PeerBookie, written: Written) -> None:
    for ledger_id in written.entries:
        assert not shell.client.metadata(ledger_id).mentions(BookieId(victim.bookie_id))
    assert shell.look(lambda context: check_copies(context, written)) == 3 * 30 * 2


@verb("recover")
def test_copies_are_restored_by_hand(shell: Shell) -> None:
    with shell.paused():
        victim, written = lose(shell, 3)
        assert all(
            str(i) in shell.run("recover", "-q", "-f", victim.bookie_id) for i in written.entries
        )
        shell.run("recover", "-f", victim.bookie_id)
        assert_restored(shell, victim, written)
        victim.start()


@verb("decommissionbookie")
def test_bookie_is_decommissioned(shell: Shell) -> None:
    victim, written = lose(shell, 2)
    sure = ["--yes"] if shell.make == "ours" else []
    said = shell.run("decommissionbookie", "-bookieid", victim.bookie_id, *sure)
    assert "properly replicated" in said
    assert_restored(shell, victim, written)

    async def cookie(context: RecoveryContext) -> None:
        await context.cookies.read(BookieId(victim.bookie_id))

    with pytest.raises(NoCookieError):
        shell.look(cookie)
