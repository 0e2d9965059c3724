"""How a process lives: it starts in the order of the text, announces itself, stops in reverse.

    async def main(stop: trio.Event) -> None:
        async with (
            background(workers.run),
            serving(handle, listener, grace_seconds=5),
        ):
            readiness.announce("bookie", port=listener.port)
            await stop.wait()

    sys.exit(run_service(main, name="bookie"))

Stop is an event, set by SIGTERM or SIGINT, and everything gets the time to leave properly. Being
cancelled is a crash. A second signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Final

import trio

from runtime import logs
from runtime.properties import ConfigError
from runtime.sockets import ByteStream, Listener
from wire.errors import LedgerError

# As Apache's: a wrong configuration is told from a failure. An error class may name its own.
EXIT_CONFIG: Final = 1
EXIT_FAILURE: Final = 2
EXIT_BUG: Final = 70

CONNECTIONS_MAX: Final = 10_000

_log = logs.get("runtime.service")


@asynccontextmanager
async def background(task: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Run a task during the block and cancel it at the end. If it fails, so does the block."""
    async with trio.open_nursery(strict_exception_groups=True) as nursery:
        nursery.start_soon(task)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(
    handler: Callable[[ByteStream], Awaitable[None]],
    listener: Listener,
    *,
    grace_seconds: float,
    connections_max: int = CONNECTIONS_MAX,
    address_max: int | None = None,
) -> AsyncIterator[None]:
    """Accept connections during the block, then give them `grace_seconds` to finish.

    More than `connections_max` wait in the backlog; more than `address_max` from one address are
    turned away. What a handler raises ends its connection and nothing else: no client may take
    the bookie away from the others.
    """
    room = trio.CapacityLimiter(connections_max)
    guests = _Guests(address_max)
    async with trio.open_nursery() as connections:

        async def accept_forever() -> None:
            while True:
                token = object()
                await room.acquire_on_behalf_of(token)
                try:
                    stream = await listener.accept()
                except BaseException:
                    room.release_on_behalf_of(token)
                    raise
                connections.start_soon(handle, stream, token)

        async def handle(stream: ByteStream, token: object) -> None:
            try:
                with guests.counted(stream) as welcome:
                    if welcome:
                        await handler(stream)
                    else:
                        stream.close(reset=True)
            except (OSError, trio.ClosedResourceError) as error:
                _log.info("connection lost", error=error, peer=stream.peer)
            except LedgerError as error:
                _log.warning("connection refused", error=error, peer=stream.peer)
                stream.close(reset=True)
            except Exception as error:
                _log.exception("connection failed", error, peer=stream.peer)
                stream.close(reset=True)
            finally:
                stream.close()
                room.release_on_behalf_of(token)

        try:
            async with background(accept_forever):
                yield
        finally:
            listener.close()
            connections.cancel_scope.deadline = trio.current_time() + grace_seconds


class _Guests:
    """How many connections each address has."""

    def __init__(self, address_max: int | None) -> None:
        self._max = address_max
        self._counts: Counter[str] = Counter()
        self._turned_away = 0

    @contextmanager
    def counted(self, stream: ByteStream) -> Iterator[bool]:
        """Count a connection while it lasts. False: its address has as many as it may."""
        address = stream.peer.rpartition(":")[0]
        if self._max is not None and self._counts[address] >= self._max:
            self._note_refusal(address)
            yield False
            return
        self._counts[address] += 1
        try:
            yield True
        finally:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _note_refusal(self, address: str) -> None:
        """Logged now and then: whoever tries a thousand times shall not fill the log, too."""
        self._turned_away = count = self._turned_away + 1
        if logs.is_told(count):
            _log.warning("too many connections", address=address, allowed=self._max, refused=count)


@contextmanager
def signals_into(
    stop: trio.Event, *, exit_now: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into `stop`; a second one exits at once with 128 + number.

    These are plain signal handlers, because the second signal must work when the loop is stuck.
    """
    token = trio.lowlevel.current_trio_token()
    seen: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if seen:
            exit_now(128 + number)
        seen.append(number)
        token.run_sync_soon(begin_to_stop, number)

    def begin_to_stop(number: int) -> None:
        _log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Readiness:
    """Tells whoever waits that the service can be used: the log, a descriptor, a callback."""

    def __init__(
        self, *, descriptor: int | None = None, callback: Callable[[], None] | None = None
    ) -> None:
        self._descriptor = descriptor
        self._callback = callback

    def announce(self, name: str, **fields: object) -> None:
        """Say it once. A waiter reads `READY` and a new line, then the end."""
        _log.info("ready", service=name, **fields)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.write(descriptor, b"READY\n")
            except OSError as error:  # whoever waited has gone; the service has not
                _log.warning("nobody waits for readiness", error=error)
            os.close(descriptor)
        if self._callback is not None:
            self._callback()


def run_service(main: Callable[[trio.Event], Awaitable[None]], *, name: str) -> int:
    """Run `main` until it returns; the exit code of the process.

    Errors of ours and of the operating system are one line each on standard error. Anything else
    is a bug: its traceback goes to the log.
    """
    if not assertions_are_on():
        _say(name, "refusing to run without assertions: start Python without -O")
        return EXIT_FAILURE

    async def run() -> None:
        stop = trio.Event()
        with signals_into(stop):
            await main(stop)

    try:
        trio.run(run)
    except BaseException as error:
        return _report(error, name)
    return 0


def assertions_are_on() -> bool:
    """Assertions guard our own reasoning; without them a wrong step would go on to the disk."""
    return __debug__


def _report(error: BaseException, name: str) -> int:
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, KeyboardInterrupt):
            return 128 + signal.SIGINT
        if isinstance(leaf, SystemExit):
            return leaf.code if isinstance(leaf.code, int) else EXIT_FAILURE
    bugs = [leaf for leaf in leaves if not isinstance(leaf, LedgerError | OSError)]
    if bugs:
        _log.exception("internal error", error)
        _say(name, f"internal error: {type(bugs[0]).__name__}: {bugs[0]}; see the log")
        return EXIT_BUG
    for leaf in leaves:
        _say(name, str(leaf))
    if any(isinstance(leaf, ConfigError) for leaf in leaves):
        return EXIT_CONFIG
    return int(getattr(leaves[0], "exit_code", EXIT_FAILURE))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _say(name: str, text: str) -> None:
    sys.stderr.write(f"{name}: {' '.join(text.split())}\n")
    sys.stderr.flush()
