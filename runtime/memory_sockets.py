"""A network in memory: bounded pipes between named hosts, with delays, partitions and cuts.

Nothing runs in the background: bytes carry the time at which they arrive, and whoever waits for
them waits until then, so a test clock moves them. The same calls in the same order give the same
history. A partition holds bytes back as TCP does (they arrive after healing); a crash of a host
breaks its connections, or, when silent, leaves the other ends half open.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from runtime.sockets import WaitingStream

BUFFER_BYTES: Final = 64 * 1024
BACKLOG: Final = 128
_FIRST_PORT: Final = 40000


class MemoryNetwork:
    """All hosts together. `delay` gives the seconds that bytes from one host to another take."""

    def __init__(
        self,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        delay: Callable[[str, str], float] = lambda source, target: 0.0,
    ) -> None:
        self.buffer_bytes = buffer_bytes
        self.delay = delay
        self.links: list[MemoryLink] = []  # the open ones, in the order they were made
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._partitions: set[frozenset[str]] = set()
        self._healed = trio.Event()
        self._port = _FIRST_PORT

    def host(self, name: str) -> MemoryHost:
        return MemoryHost(self, name)

    def partition(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts, without telling either."""
        self._partitions.add(frozenset((one, other)))

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """End the partition between two hosts, or all of them. What was held back arrives."""
        if one is None or other is None:
            self._partitions.clear()
        else:
            self._partitions.discard(frozenset((one, other)))
        self._healed.set()
        self._healed = trio.Event()
        for link in self.links:
            link.stir()

    def is_partitioned(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._partitions

    def cut(self, one: str, other: str) -> None:
        """Break every connection between two hosts: both ends get an error."""
        for link in list(self.links):
            if {end.host for end in link.ends} == {one, other}:
                link.cut()

    def crash(self, name: str, *, silent: bool = False) -> None:
        """Take a host down: its listeners and its ends of connections are gone.

        The other ends get an error, as from an operating system whose process died; with
        `silent` they get nothing, as from a machine without power.
        """
        for listener in list(self._listeners.values()):
            if listener.host == name:
                listener.close()
        for link in list(self.links):
            for end in link.ends:
                if end.host == name and silent:
                    link.lose(end)
                elif end.host == name:
                    end.close(reset=True)

    def forget(self, link: MemoryLink) -> None:
        if link in self.links:
            self.links.remove(link)

    def free_port(self) -> int:
        self._port += 1
        return self._port

    def bind(self, listener: MemoryListener) -> None:
        place = (listener.host, listener.port)
        if place in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{listener.host}:{listener.port} is in use")
        self._listeners[place] = listener

    def unbind(self, listener: MemoryListener) -> None:
        self._listeners.pop((listener.host, listener.port), None)

    async def connect(self, source: str, host: str, port: int) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        latency = self.delay(source, host)
        if latency > 0:
            await trio.sleep(latency)
        while self.is_partitioned(source, host):
            await self._healed.wait()
        listener = self._listeners.get((host, port))
        if listener is None or not listener.has_room():
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"cannot connect to {host}:{port}: nobody listens"
            )
        link = MemoryLink(self, source, self.free_port(), host, port)
        self.links.append(link)
        listener.put(link.ends[1])
        return link.ends[0]


class MemoryHost:
    """The network as one host sees it."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.name = name
        self._network = network

    async def listen(self, host: str, port: int) -> MemoryListener:
        """Listen at this host; `host` is ignored, because a memory host has one address."""
        await trio.lowlevel.checkpoint()
        listener = MemoryListener(self._network, self.name, port or self._network.free_port())
        self._network.bind(listener)
        return listener

    async def connect(self, host: str, port: int) -> MemoryStream:
        return await self._network.connect(self.name, host, port)


class MemoryListener:
    def __init__(self, network: MemoryNetwork, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._network = network
        self._waiting: deque[MemoryStream] = deque()
        self._changed = trio.Event()
        self._closed = False

    def has_room(self) -> bool:
        return len(self._waiting) < BACKLOG

    def put(self, stream: MemoryStream) -> None:
        self._waiting.append(stream)
        self._stir()

    async def accept(self) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        while not self._waiting and not self._closed:
            await self._changed.wait()
        if self._closed:
            raise trio.ClosedResourceError(f"the listener at {self.host}:{self.port} was closed")
        return self._waiting.popleft()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.unbind(self)
        for stream in self._waiting:  # nobody will accept them any more
            stream.close(reset=True)
        self._waiting.clear()
        self._stir()

    def _stir(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class MemoryLink:
    """A connection: two ends and a pipe each way."""

    def __init__(
        self, network: MemoryNetwork, source: str, source_port: int, target: str, port: int
    ) -> None:
        self.network = network
        there = _Pipe(network, source, target)
        back = _Pipe(network, target, source)
        self.ends: Final = (
            MemoryStream(self, source, f"{target}:{port}", incoming=back, outgoing=there),
            MemoryStream(self, target, f"{source}:{source_port}", incoming=there, outgoing=back),
        )
        self._pipes = (there, back)

    def cut(self) -> None:
        """Break it: both ends get ConnectionResetError, and what was under way is lost."""
        for pipe in self._pipes:
            pipe.break_off()
        self.network.forget(self)

    def lose(self, end: MemoryStream) -> None:
        """Let one end vanish without a word: the other one stays half open."""
        for pipe in self._pipes:
            pipe.lost = True
        end.close()

    def stir(self) -> None:
        for pipe in self._pipes:
            pipe.stir()

    def on_end_closed(self) -> None:
        if all(end.closed for end in self.ends):
            self.network.forget(self)


class MemoryStream(WaitingStream):
    """One end of a link."""

    def __init__(
        self, link: MemoryLink, host: str, peer: str, *, incoming: _Pipe, outgoing: _Pipe
    ) -> None:
        self.link = link
        self.host = host
        self.peer = peer
        self.closed = False
        self._in = incoming
        self._out = outgoing
        self._reading = False
        self._writing = False

    def receive_now(self, size: int) -> bytes | None:
        self._check_open()
        return self._in.take(size)

    async def wait_readable(self) -> None:
        self._check_open()
        if self._reading:
            raise trio.BusyResourceError("another task is waiting to read this stream")
        self._reading = True
        try:
            await trio.lowlevel.checkpoint()
            await self._in.wait_readable(lambda: self.closed)
        finally:
            self._reading = False
        self._check_open()

    def send_now(self, data: bytes | memoryview) -> int:
        self._check_open()
        return self._out.put(data)

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        return self.send_now(b"".join(pieces))

    async def wait_writable(self) -> None:
        self._check_open()
        if self._writing:
            raise trio.BusyResourceError("another task is waiting to write to this stream")
        self._writing = True
        try:
            await trio.lowlevel.checkpoint()
            await self._out.wait_writable(lambda: self.closed)
        finally:
            self._writing = False
        self._check_open()

    def end_sending(self) -> None:
        self._check_open()
        self._out.finish()

    def close(self, *, reset: bool = False) -> None:
        if self.closed:
            return
        self.closed = True
        if reset:
            self._out.break_off()
            self._in.break_off()
        else:
            self._out.finish()
            self._in.abandon()
        self.link.on_end_closed()

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError(f"the connection with {self.peer} was closed here")


class _Pipe:
    """One direction. Bytes sent but not yet taken, also those still under way, fill the buffer."""

    def __init__(self, network: MemoryNetwork, source: str, target: str) -> None:
        self.lost = False  # half open: what is sent goes nowhere, and nobody says so
        self._network = network
        self._hosts = (source, target)
        self._chunks: deque[tuple[float, bytes]] = deque()  # arrival time, bytes; b"" is the end
        self._held_bytes = 0
        self._finished = False
        self._abandoned = False  # the reader is gone
        self._broken = False
        self._changed = trio.Event()

    def put(self, data: bytes | memoryview) -> int:
        self._raise_if_broken()
        if self._finished or (self._abandoned and not self._is_silent()):
            raise BrokenPipeError(errno.EPIPE, "the peer takes nothing more")
        accepted = bytes(data[: self._network.buffer_bytes - self._held_bytes])
        if accepted:
            self._held_bytes += len(accepted)
            self._chunks.append((self._arrival(), accepted))
            self.stir()
        return len(accepted)

    def take(self, size: int) -> bytes | None:
        self._raise_if_broken()
        now = trio.current_time()
        if self._next_arrival() > now:
            return None
        taken: list[bytes] = []
        missing = size
        while missing and self._next_arrival() <= now:
            arrival, chunk = self._chunks[0]
            if not chunk:
                break  # the end stays where it is, to be found again
            self._chunks.popleft()
            if len(chunk) > missing:
                self._chunks.appendleft((arrival, chunk[missing:]))
                chunk = chunk[:missing]
            taken.append(chunk)
            missing -= len(chunk)
        data = b"".join(taken)
        self._held_bytes -= len(data)
        if data:
            self.stir()
        return data

    async def wait_readable(self, is_over: Callable[[], bool]) -> None:
        while not is_over() and not (self._broken and not self._is_silent()):
            arrival = self._next_arrival()
            if arrival <= trio.current_time():
                return
            with trio.move_on_at(arrival):
                await self._changed.wait()

    async def wait_writable(self, is_over: Callable[[], bool]) -> None:
        while not is_over() and not self._finished:
            if self._held_bytes < self._network.buffer_bytes:
                return
            if (self._broken or self._abandoned) and not self._is_silent():
                return
            await self._changed.wait()

    def finish(self) -> None:
        """Put the end behind what was sent."""
        if not self._finished and not self._broken:
            self._finished = True
            self._chunks.append((self._arrival(), b""))
        self.stir()

    def abandon(self) -> None:
        self._abandoned = True
        self.stir()

    def break_off(self) -> None:
        self._broken = True
        self._chunks.clear()
        self._held_bytes = 0
        self.stir()

    def stir(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _arrival(self) -> float:
        # One that overtakes an earlier one waits behind it, because only the first is looked at.
        return trio.current_time() + self._network.delay(*self._hosts)

    def _is_silent(self) -> bool:
        """Whether no news of the other end can get through, good or bad."""
        return self.lost or self._network.is_partitioned(*self._hosts)

    def _raise_if_broken(self) -> None:
        if self._broken and not self._is_silent():
            raise ConnectionResetError(errno.ECONNRESET, "the connection was reset by the peer")

    def _next_arrival(self) -> float:
        if not self._chunks or self._is_silent():
            return math.inf
        return self._chunks[0][0]
