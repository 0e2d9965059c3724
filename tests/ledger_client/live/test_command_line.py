"""`python -m ledger_client`, as somebody types it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ledger_client import LedgerClient
from ledger_client.command_line import main
from tests.ledger_client.live.cluster import LiveCluster

ROOT = Path(__file__).parent.parent.parent.parent


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ledger_client", *arguments],
        cwd=ROOT, input=stdin, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


class Shell:
    """Commands run in this process, which is much faster."""

    def __init__(self, uri: str, capture: pytest.CaptureFixture[bytes]) -> None:
        self._uri = uri
        self._capture = capture

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        code = main([f"--uri={self._uri}", *arguments])
        out, err = self._capture.readouterr()
        return code, out.decode(), err.decode()

    def said(self, *arguments: str) -> str:
        """The output of a command that ends well."""
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, "")
        return out


@pytest.fixture
def shell(cluster: LiveCluster, capsysbinary: pytest.CaptureFixture[bytes]) -> Shell:
    return Shell(cluster.uri, capsysbinary)


def test_lines_become_a_ledger_and_come_back(cluster: LiveCluster, shell: Shell) -> None:
    lines = b"".join(b"line %d\n" % i for i in range(500))
    uri = f"--uri={cluster.uri}"
    written = run(uri, "append", stdin=lines)
    assert (written.returncode, written.stderr) == (0, b"")
    ledger_id = written.stdout.decode().strip()
    assert run(uri, "read", ledger_id).stdout == lines
    assert shell.said("read", ledger_id, "--first=498") == "line 498\nline 499\n"
    assert "state: CLOSED\n" in shell.said("show", ledger_id)
    assert ledger_id in shell.said("list").split()
    shell.said("delete", "--yes", ledger_id)
    gone = run(uri, "read", ledger_id)
    assert gone.returncode == 1
    assert b"deleted, or never made" in gone.stderr
    assert b"Traceback" not in gone.stderr


def test_every_command_speaks_json(shell: Shell, cluster: LiveCluster, tmp_path: Path) -> None:
    """Before the command or behind it; bytes that are no text are kept."""
    said = shell.said
    file = tmp_path / "lines"
    file.write_bytes(b"text\n\xff\x00\nunfinished")
    made = json.loads(said("append", "--json", "--meta=owner=me", str(file)))
    assert made["entries"] == 3
    ledger = str(made["ledger"])
    entries = [json.loads(line) for line in said("--json", "read", ledger).splitlines()]
    assert entries == [
        {"id": 0, "payload": "text"},
        {"id": 1, "payload_base64": "/wA="},
        {"id": 2, "payload": "unfinished"},
    ]
    followed = said("tail", ledger, "--first=2", "--json")
    assert json.loads(followed) == {"id": 2, "payload": "unfinished"}
    shown = json.loads(said("show", ledger, "--json"))
    assert (shown["custom"], shown["ack_quorum"]) == ({"owner": "me"}, 2)
    recovered = json.loads(said("recover", ledger, "--json"))
    assert recovered == {"ledger": made["ledger"], "last_entry": 2, "length": 16}
    empty = json.loads(said("create", "--json", "--id=666666"))
    assert empty == {"ledger": 666666, "entries": 0}
    listed = [json.loads(line)["ledger"] for line in said("list", "--json").splitlines()]
    assert {made["ledger"], 666666} <= set(listed)
    bookies = [json.loads(line) for line in said("bookies", "--json").splitlines()]
    assert {bookie["bookie"] for bookie in bookies} == set(cluster.bookies)
    assert all(bookie["free_bytes"] > 0 for bookie in bookies)
    assert json.loads(said("delete", ledger, "--json"))["deleted"]


def test_errors_are_one_line_or_one_value(shell: Shell) -> None:
    code, out, err = shell.run("show", "555555")
    assert (code, out, err.count("\n")) == (1, "", 1)
    value = json.loads(shell.run("show", "--json", "555555")[2])
    assert (value["error"], value["ledger"]) == ("LedgerGoneError", 555555)
    code, _, err = shell.run("append", "no such file")
    assert code == 1
    assert "no such file cannot be read" in err


def test_address_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BK_metadataServiceUri", raising=False)
    assert main(["list"]) == 2
    assert "--uri zk://" in capsys.readouterr().err


def test_file_that_is_missing_leaves_no_open_ledger(shell: Shell) -> None:
    assert shell.run("append", "--id=777777", "no such file")[0] == 1
    shown = json.loads(shell.said("show", "777777", "--json"))
    assert (shown["state"], shown["last_entry"]) == ("CLOSED", -1)


def test_progress_is_shown_on_a_terminal_only(cluster: LiveCluster) -> None:
    leader, follower = pty.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "ledger_client", f"--uri={cluster.uri}", "append"],
            cwd=ROOT, input=b"a\nb\n", stdout=subprocess.PIPE, stderr=follower, timeout=60,
            env=os.environ | {"TERM": "xterm"}, check=True,
        )  # fmt: skip
        os.close(follower)
        shown = os.read(leader, 1 << 16)
    finally:
        os.close(leader)
    assert b"ledger " in shown
    assert ended.stdout.strip().isdigit()


async def test_lines_from_a_pipe_are_written_as_they_come(cluster: LiveCluster) -> None:
    """Nobody waits for the end of the input, nor for company."""
    async with LedgerClient(cluster.uri) as client:
        command = [
            sys.executable, "-m", "ledger_client", f"--uri={cluster.uri}", "append", "--id=444444",
        ]  # fmt: skip
        with subprocess.Popen(  # noqa: ASYNC220
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"first\n")
            process.stdin.flush()
            with trio.fail_after(60):
                while not await client.exists(444444):
                    pass
                async with await client.tail(444444) as tail:
                    assert (await anext(tail)).payload == b"first"
                    process.stdin.close()
                    with pytest.raises(StopAsyncIteration):
                        await anext(tail)


async def test_interrupt_ends_a_tail_without_a_traceback(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
        await ledger.append(b"x")
        command = [
            sys.executable, "-m", "ledger_client", f"--uri={cluster.uri}", "tail", str(ledger.id),
        ]  # fmt: skip
        with subprocess.Popen(  # noqa: ASYNC220
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert await trio.to_thread.run_sync(process.stdout.readline) == b"x\n"
            process.send_signal(signal.SIGINT)
            _, err = await trio.to_thread.run_sync(process.communicate)
        assert (process.returncode, err) == (130, b"")
