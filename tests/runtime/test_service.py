"""Services: order of starting and stopping, signals, exit codes, connections that misbehave."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from runtime import service
from runtime.memory_sockets import MemoryNetwork
from runtime.properties import ConfigError
from runtime.service import Readiness, background, run_service, serving, signals_into
from runtime.sockets import ByteStream
from wire.errors import LedgerError, ProtocolError

ROOT = Path(__file__).parent.parent.parent


async def echo(stream: ByteStream) -> None:
    while data := await stream.receive_some(1000):
        await stream.send_all(data)


Connect = Callable[[], Awaitable[ByteStream]]


@asynccontextmanager
async def served(
    handler: Callable[[ByteStream], Awaitable[None]], **options: float
) -> AsyncIterator[Connect]:
    network = MemoryNetwork()
    listener = await network.host("server").listen("", 0)
    grace = options.pop("grace_seconds", 1)
    limits = {name: int(value) for name, value in options.items()}
    async with serving(handler, listener, grace_seconds=grace, **limits):
        yield lambda: network.host("client").connect("server", listener.port)


async def test_background_runs_during_the_block_and_is_cancelled_after_it() -> None:
    events: list[str] = []

    async def task() -> None:
        events.append("begin")
        try:
            await trio.sleep_forever()
        finally:
            events.append("end")

    async with background(task):
        await trio.testing.wait_all_tasks_blocked()
        events.append("block")
    assert events == ["begin", "block", "end"]


async def test_background_failure_ends_the_block() -> None:
    async def task() -> None:
        raise ProtocolError("boom")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with background(task):
            await trio.sleep_forever()
    assert caught.group_contains(ProtocolError)


async def test_services_stop_in_the_reverse_order_of_the_text() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def part(name: str) -> AsyncIterator[None]:
        order.append(f"start {name}")
        yield
        order.append(f"stop {name}")

    async with part("storage"), background(trio.sleep_forever), part("server"):
        pass
    assert order == ["start storage", "start server", "stop server", "stop storage"]


async def test_serving_handles_connections_side_by_side() -> None:
    async with served(echo) as connect:
        first, second = await connect(), await connect()
        await second.send_all(b"two")
        await first.send_all(b"one")
        assert await first.receive_some(10) == b"one"
        assert await second.receive_some(10) == b"two"
        first.close()
        second.close()


async def test_serving_stops_accepting_and_lets_connections_finish(
    autojump_clock: trio.testing.MockClock,
) -> None:
    finished: list[float] = []

    async def slow(stream: ByteStream) -> None:
        await trio.sleep(3)
        finished.append(trio.current_time())

    async with served(slow, grace_seconds=5) as connect:
        await connect()
        await trio.sleep(1)
    assert finished == [3.0]
    with pytest.raises(ConnectionRefusedError):
        await connect()


async def test_serving_cancels_connections_when_the_grace_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(echo, grace_seconds=5) as connect:
        stream = await connect()
        await trio.testing.wait_all_tasks_blocked(0)
    assert trio.current_time() == 5.0
    assert await stream.receive_some(10) == b""


@pytest.mark.parametrize(
    ("error", "level", "reset"),
    [
        (ValueError("bug"), "ERROR", True),
        (ProtocolError("nonsense"), "WARNING", True),
        (ConnectionResetError("gone"), "INFO", False),
    ],
)
async def test_serving_survives_a_handler_that_raises(
    error: Exception, level: str, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(stream: ByteStream) -> None:
        if await stream.receive_some(10) == b"bad":
            raise error
        await stream.send_all(b"fine")

    with caplog.at_level(logging.INFO):
        async with served(broken) as connect:
            bad, good = await connect(), await connect()
            await bad.send_all(b"bad")
            if reset:
                with pytest.raises(ConnectionResetError):
                    await bad.receive_some(10)
            else:
                assert await bad.receive_some(10) == b""
            await good.send_all(b"good")
            assert await good.receive_some(10) == b"fine"
    assert [record.levelname for record in caplog.records] == [level]


async def test_serving_lets_no_more_in_than_it_may() -> None:
    async with served(echo, connections_max=1) as connect:
        first, second = await connect(), await connect()
        await first.send_all(b"1")
        await second.send_all(b"2")
        assert await first.receive_some(1) == b"1"
        await trio.testing.wait_all_tasks_blocked()
        assert second.receive_now(1) is None
        first.close()
        assert await second.receive_some(1) == b"2"
        second.close()


async def test_serving_turns_away_an_address_that_has_enough(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(echo, address_max=2) as connect:
        first, second = await connect(), await connect()
        for guest in (first, second):
            await guest.send_all(b"1")
            assert await guest.receive_some(1) == b"1"
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                with pytest.raises(ConnectionResetError):
                    await (await connect()).receive_some(1)
        assert len(caplog.records) == 3, "refusals 1, 2 and 4 are logged"
        first.close()
        await trio.testing.wait_all_tasks_blocked()
        third = await connect()
        await third.send_all(b"3")
        assert await third.receive_some(1) == b"3"
        second.close()
        third.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_stops_and_second_exits_at_once(number: signal.Signals) -> None:
    stop = trio.Event()
    exits: list[int] = []
    before = signal.getsignal(number)
    with signals_into(stop, exit_now=exits.append):
        os.kill(os.getpid(), number)
        with trio.fail_after(30):
            await stop.wait()
        assert exits == []
        os.kill(os.getpid(), number)
        await trio.lowlevel.checkpoint()
        assert exits == [128 + number]
    assert signal.getsignal(number) is before


def test_readiness_is_told_to_descriptor_and_callback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader, writer = os.pipe()
    called: list[str] = []
    readiness = Readiness(descriptor=writer, callback=lambda: called.append("ready"))
    with caplog.at_level(logging.INFO):
        readiness.announce("bookie", port=3181)
    assert os.read(reader, 100) == b"READY\n"
    assert os.read(reader, 100) == b""
    os.close(reader)
    assert called == ["ready"]
    assert caplog.records[0].fields == {"service": "bookie", "port": 3181}  # type: ignore[attr-defined]


def test_readiness_does_not_care_whether_anybody_listens() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    Readiness(descriptor=writer).announce("bookie")
    with pytest.raises(OSError, match="Bad file"):
        os.close(writer)
    Readiness().announce("bookie")


class RegistrationError(LedgerError):
    exit_code = 4


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LedgerError("disk is\ngone"), 2, "bookie: disk is gone\n"),
        (ConfigError("bk.conf:1: wrong"), 1, "bookie: bk.conf:1: wrong\n"),
        (RegistrationError("taken"), 4, "bookie: taken\n"),
        (OSError(98, "Address in use"), 2, "bookie: [Errno 98] Address in use\n"),
        (ValueError("oops"), 70, "bookie: internal error: ValueError: oops; see the log\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(7), 7, ""),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_run_service_turns_errors_into_a_line_and_an_exit_code(
    error: BaseException, code: int, line: str, grouped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(stop: trio.Event) -> None:
        if grouped:
            raise BaseExceptionGroup("several", [error])
        raise error

    assert run_service(main, name="bookie") == code
    captured = capsys.readouterr()
    assert captured.err == line
    assert captured.out == ""


def test_run_service_puts_a_bugs_traceback_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main(stop: trio.Event) -> None:
        raise ValueError("oops")

    run_service(main, name="bookie")
    assert caplog.records[0].levelname == "ERROR"
    assert caplog.records[0].exc_info is not None


def test_run_service_ends_well_when_told_to_stop() -> None:
    async def main(stop: trio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(30):
            await stop.wait()

    assert run_service(main, name="bookie") == 0


def test_run_service_refuses_without_assertions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(stop: trio.Event) -> None:
        raise AssertionError("must not run")

    monkeypatch.setattr(service, "assertions_are_on", lambda: False)
    assert run_service(main, name="bookie") == 2
    assert "without -O" in capsys.readouterr().err


def test_process_started_with_optimisation_knows_it() -> None:
    code = "import sys; from runtime.service import assertions_are_on as on; sys.exit(on())"
    plain = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    optimised = subprocess.run([sys.executable, "-O", "-c", code], cwd=ROOT, check=False)
    assert (plain.returncode, optimised.returncode) == (1, 0)


def test_second_signal_ends_a_process_whose_loop_is_stuck() -> None:
    """The child blocks its loop after the first signal; only a plain handler can still end it."""
    code = (
        "import sys, threading, trio\n"
        "from runtime.service import run_service\n"
        "async def main(stop):\n"
        "    print('up', flush=True)\n"
        "    await stop.wait()\n"
        "    print('stuck', flush=True)\n"
        "    threading.Event().wait()\n"
        "sys.exit(run_service(main, name='child'))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == b"stuck\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 143
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
