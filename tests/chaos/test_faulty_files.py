"""The files under a bookie of a chaos run: what is not synced is gone with the process."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.faulty_files import FaultyFiles


def in_a_process_that_is_killed(work: Callable[[], None]) -> int:
    """Run `work` in a child that ends with SIGKILL, at the latest after it; the signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status)


def files_in(folder: Path, *, broken: bool = False) -> FaultyFiles:
    return FaultyFiles(folder / "orders", broken=broken)


def test_reads_see_what_was_written_and_not_synced(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    path = str(tmp_path / "1.log")
    file = files.open(path, create=True)
    file.write(b"abcdef", 0)
    file.write_pieces([b"XY", memoryview(b"Z")], 4)
    other = files.open(path, read_only=True)
    assert other.read(100, 0) == b"abcdXYZ"
    assert other.read(2, 5) == b"YZ"
    assert other.size() == 7
    assert Path(path).read_bytes() == bytes(7)
    file.sync()
    assert Path(path).read_bytes() == b"abcdXYZ"


def test_a_kill_takes_what_was_not_synced(tmp_path: Path) -> None:
    def work() -> None:
        file = files_in(tmp_path).open(str(tmp_path / "1.log"), create=True)
        file.write(b"kept", 0)
        file.sync()
        file.write(b"gone", 4)

    in_a_process_that_is_killed(work)
    assert (tmp_path / "1.log").read_bytes() == b"kept" + bytes(4)


def test_durable_writes_survive_a_kill_and_those_of_the_broken_build_do_not(tmp_path: Path) -> None:
    for broken, found in ((False, b"block"), (True, b"")):
        path = tmp_path / f"{broken}.jnl"
        path.touch()

        def work(path: Path = path, broken: bool = broken) -> None:
            file = files_in(tmp_path, broken=broken).open(str(path), durable=True)
            file.write_pieces([b"blo", b"ck"], 0)
            assert file.read(5, 0) == b"block"

        in_a_process_that_is_killed(work)
        assert path.read_bytes() == found


def test_an_ordered_crash_tears_the_write(tmp_path: Path) -> None:
    crash = {"suffix": ".jnl", "after": 2, "sync": False}
    (tmp_path / "orders").write_text(json.dumps({"crash": crash}))
    (tmp_path / "1.jnl").touch()

    def work() -> None:
        file = files_in(tmp_path).open(str(tmp_path / "1.jnl"), durable=True)
        file.write(b"11", 0)
        file.write(b"2222", 2)
        os._exit(0)  # not reached

    assert in_a_process_that_is_killed(work) == signal.SIGKILL
    assert (tmp_path / "1.jnl").read_bytes() == b"1122"


def test_reads_fail_by_order(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text(json.dumps({"unreadable": 1.0}))
    file = files_in(tmp_path).open(str(tmp_path / "1.log"), create=True)
    file.write(b"x", 0)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.read(1, 0)
