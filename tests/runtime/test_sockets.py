"""One suite for sockets and memory pipes, then what only one of them does."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from runtime.memory_sockets import BACKLOG, MemoryNetwork
from runtime.sockets import PIECES_MAX, ByteStream, Network, SocketNetwork

Networks = tuple[Network, Network, str]


@pytest.fixture(params=["sockets", "memory"])
def networks(request: pytest.FixtureRequest) -> Callable[[], Networks]:
    """A network for each of two hosts, and the name of the second."""

    def make() -> Networks:
        if request.param == "sockets":
            return SocketNetwork(), SocketNetwork(), "127.0.0.1"
        memory = MemoryNetwork()
        return memory.host("client"), memory.host("server"), "server"

    return make


@asynccontextmanager
async def connected(
    make: Callable[[], Networks],
) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """The two ends of a connection: client, server."""
    client, server, host = make()
    listener = await server.listen(host, 0)
    ends: list[ByteStream] = []

    async def accept() -> None:
        ends.append(await listener.accept())

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            near = await client.connect(host, listener.port)
        far = ends[0]
        try:
            yield near, far
        finally:
            near.close()
            far.close()
            listener.close()


Make = Callable[[], Networks]


async def test_stream_carries_bytes_both_ways(networks: Make) -> None:
    async with connected(networks) as (near, far):
        assert near.send_now(b"ping") == 4
        assert await far.receive_some(100) == b"ping"
        await far.send_all(memoryview(b"pong"))
        assert await near.receive_some(2) == b"po"
        assert await near.receive_some(100) == b"ng"
        assert ":" in near.peer
        assert ":" in far.peer


async def test_stream_takes_pieces_one_behind_the_other(networks: Make) -> None:
    async with connected(networks) as (near, far):
        pieces: list[bytes | memoryview] = [b"one ", memoryview(b"two "), b"", b"three"]
        assert near.send_pieces_now(pieces) == 13
        assert await far.receive_some(100) == b"one two three"
        many: list[bytes | memoryview] = [b"0123456789" * 1000] * PIECES_MAX
        sent = 0
        while (count := near.send_pieces_now(many)) > 0:
            sent += count
        near.end_sending()
        received = b""
        while data := await far.receive_some(1 << 20):
            received += data
        assert len(received) == sent
        near.close()
        with pytest.raises(trio.ClosedResourceError):
            near.send_pieces_now(many)


async def test_stream_has_nothing_to_receive_until_something_was_sent(networks: Make) -> None:
    async with connected(networks) as (near, far):
        assert far.receive_now(10) is None
        await near.send_all(b"x")
        await far.wait_readable()
        assert far.receive_now(10) == b"x"
        assert far.receive_now(10) is None


async def test_stream_ends_when_the_peer_closes(networks: Make) -> None:
    async with connected(networks) as (near, far):
        await near.send_all(b"last words")
        near.close()
        assert await far.receive_some(100) == b"last words"
        assert await far.receive_some(100) == b""
        assert await far.receive_some(100) == b""


async def test_stream_can_be_ended_in_one_direction(networks: Make) -> None:
    async with connected(networks) as (near, far):
        near.send_now(b"request")
        near.end_sending()
        assert await far.receive_some(100) == b"request"
        assert await far.receive_some(100) == b""
        await far.send_all(b"answer")
        assert await near.receive_some(100) == b"answer"
        with pytest.raises(BrokenPipeError):
            near.send_now(b"more")


async def test_stream_that_is_reset_gives_the_peer_an_error(networks: Make) -> None:
    async with connected(networks) as (near, far):
        near.close(reset=True)
        with pytest.raises(ConnectionResetError):
            await far.receive_some(100)


async def test_stream_refuses_to_send_when_the_peer_is_gone(networks: Make) -> None:
    async with connected(networks) as (near, far):
        far.close()
        with pytest.raises(OSError, match=r"."):  # noqa: PT012 (TCP needs a while to find out)
            while True:
                await near.send_all(b"x" * 1000)
                await trio.lowlevel.checkpoint()


async def test_stream_takes_no_more_than_its_buffer_holds(networks: Make) -> None:
    """Back-pressure: a peer that does not read stops the sender, and nothing is lost."""
    async with connected(networks) as (near, far):
        sent = 0
        while (count := near.send_now(b"0123456789" * 10_000)) > 0:
            sent += count
        assert 0 < sent < 100_000_000
        writable = trio.Event()

        async def wait() -> None:
            await near.wait_writable()
            writable.set()

        received = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not writable.is_set()
            while received < sent:
                received += len(await far.receive_some(1 << 20))
        assert received == sent
        assert writable.is_set()


async def test_stream_sends_all_of_a_large_message_in_order(networks: Make) -> None:
    message = bytes(range(256)) * 20_000
    async with connected(networks) as (near, far):
        parts = []

        async def receive() -> None:
            while data := await far.receive_some(70_000):
                parts.append(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await near.send_all(message)
            near.end_sending()
        assert b"".join(parts) == message


async def test_stream_closed_here_wakes_whoever_waits_on_it(networks: Make) -> None:
    async with connected(networks) as (near, _):
        while near.send_now(b"x" * 100_000):
            pass
        woken = []

        async def wait(what: Callable[[], object], name: str) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await what()  # type: ignore[misc]
            woken.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, near.wait_readable, "reader")
            nursery.start_soon(wait, near.wait_writable, "writer")
            await trio.testing.wait_all_tasks_blocked()
            near.close()
        assert sorted(woken) == ["reader", "writer"]


async def test_stream_is_unusable_after_close_and_closes_twice(networks: Make) -> None:
    async with connected(networks) as (near, _):
        near.close()
        near.close(reset=True)
        with pytest.raises(trio.ClosedResourceError):
            near.receive_now(1)
        with pytest.raises(trio.ClosedResourceError):
            near.send_now(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await near.wait_readable()
        with pytest.raises(trio.ClosedResourceError):
            near.end_sending()


async def test_stream_allows_one_reader_at_a_time(networks: Make) -> None:
    async with connected(networks) as (near, _), trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await near.wait_readable()
        nursery.cancel_scope.cancel()


async def test_stream_receive_that_is_cancelled_loses_nothing(networks: Make) -> None:
    async with connected(networks) as (near, far):
        with trio.CancelScope() as scope:
            scope.cancel()
            await far.receive_some(10)
        await near.send_all(b"kept")
        await far.wait_readable()
        with trio.CancelScope() as scope:
            scope.cancel()
            await far.receive_some(10)
        assert await far.receive_some(10) == b"kept"


async def test_connect_is_refused_where_nobody_listens(networks: Make) -> None:
    client, server, host = networks()
    listener = await server.listen(host, 0)
    listener.close()
    with pytest.raises(ConnectionRefusedError, match="cannot connect to"):
        await client.connect(host, listener.port)


async def test_listen_refuses_a_port_that_is_taken(networks: Make) -> None:
    _, server, host = networks()
    first = await server.listen(host, 0)
    with pytest.raises(OSError, match=r".") as caught:
        await server.listen(host, first.port)
    assert caught.value.errno == errno.EADDRINUSE
    first.close()
    second = await server.listen(host, first.port)
    second.close()


async def test_listener_closed_here_wakes_whoever_accepts(networks: Make) -> None:
    _, server, host = networks()
    listener = await server.listen(host, 0)

    async def accept() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()
        listener.close()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()


# Sockets only.


async def test_socket_options_are_set_on_both_ends() -> None:
    async with connected(lambda: (SocketNetwork(), SocketNetwork(), "127.0.0.1")) as ends:
        for end in ends:
            raw = end._socket  # type: ignore[attr-defined]
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert not raw.getblocking()


async def test_socket_network_resolves_names_and_leaks_no_descriptor() -> None:
    network = SocketNetwork()
    listener = await network.listen("localhost", 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        near = await network.connect("localhost", listener.port)
        far = await listener.accept()
        near.close()
        far.close()
    listener.close()
    with pytest.raises(OSError, match=r"."):
        await network.connect("localhost", listener.port)
    assert len(os.listdir("/proc/self/fd")) == before - 1


async def test_socket_name_that_does_not_exist_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"."):
        await SocketNetwork().connect("no-such-host.invalid", 1)


async def test_socket_connect_that_is_cancelled_leaves_no_descriptor() -> None:
    network = SocketNetwork()
    listener = await network.listen("127.0.0.1", 0)
    before = len(os.listdir("/proc/self/fd"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await network.connect("127.0.0.1", listener.port)
    assert scope.cancelled_caught
    assert len(os.listdir("/proc/self/fd")) == before
    listener.close()


async def test_socket_listener_waits_when_descriptors_run_out(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        """A listening socket whose first two accepts find no descriptor left."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real
            self.failures = [errno.EMFILE, errno.ECONNABORTED, errno.EMFILE]

        def fileno(self) -> int:
            return self.real.fileno()

        def accept(self) -> tuple[socket.socket, object]:
            if self.failures:
                raise OSError(self.failures.pop(), "as told")
            return self.real.accept()

        def close(self) -> None:
            self.real.close()

    network = SocketNetwork()
    listener = await network.listen("127.0.0.1", 0)
    monkeypatch.setattr(listener, "_socket", Exhausted(listener._socket))
    near = await network.connect("127.0.0.1", listener.port)
    far = await listener.accept()
    assert listener.overloads == 2
    for open_thing in (near, far, listener):
        open_thing.close()


# Memory only.


async def pair(network: MemoryNetwork) -> tuple[ByteStream, ByteStream]:
    listener = await network.host("server").listen("", 0)
    near = await network.host("client").connect("server", listener.port)
    return near, await listener.accept()


async def test_memory_bytes_take_as_long_as_the_delay_says(
    autojump_clock: trio.testing.MockClock,
) -> None:
    delays = {("client", "server"): 2.0, ("server", "client"): 0.5}
    network = MemoryNetwork(delay=lambda source, target: delays[source, target])
    near, far = await pair(network)
    assert trio.current_time() == 2.0
    near.send_now(b"x")
    assert far.receive_now(1) is None
    assert await far.receive_some(1) == b"x"
    assert trio.current_time() == 4.0
    far.send_now(b"y")
    assert await near.receive_some(1) == b"y"
    assert trio.current_time() == 4.5


async def test_memory_bytes_keep_their_order_when_delays_shrink(
    autojump_clock: trio.testing.MockClock,
) -> None:
    delays = iter([0.0, 5.0, 1.0])
    near, far = await pair(MemoryNetwork(delay=lambda source, target: next(delays)))
    near.send_now(b"slow")
    near.send_now(b"fast")
    assert await far.receive_some(100) == b"slowfast"
    assert trio.current_time() == 5.0


async def test_memory_partition_holds_bytes_and_ends_back_until_it_heals() -> None:
    network = MemoryNetwork()
    near, far = await pair(network)
    network.partition("client", "server")
    near.send_now(b"held")
    near.close()
    await trio.testing.wait_all_tasks_blocked()
    assert far.receive_now(10) is None
    assert far.send_now(b"into the void") == 13
    network.heal("client", "server")
    assert await far.receive_some(10) == b"held"
    assert await far.receive_some(10) == b""
    with pytest.raises(BrokenPipeError):
        far.send_now(b"x")


async def test_memory_partition_lets_a_connect_wait() -> None:
    network = MemoryNetwork()
    listener = await network.host("server").listen("", 0)
    network.partition("server", "client")
    with trio.move_on_after(0.01) as scope:
        await network.host("client").connect("server", listener.port)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.host("client").connect, "server", listener.port)
        await trio.testing.wait_all_tasks_blocked()
        network.heal()
    assert len(network.links) == 1


async def test_memory_cut_breaks_both_ends() -> None:
    network = MemoryNetwork()
    near, far = await pair(network)
    near.send_now(b"lost")
    network.cut("client", "server")
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.receive_now(10)
        with pytest.raises(ConnectionResetError):
            end.send_now(b"x")
    assert network.links == []


async def test_memory_crash_of_a_host_breaks_its_connections_and_frees_its_ports() -> None:
    network = MemoryNetwork()
    near, far = await pair(network)
    network.crash("server")
    with pytest.raises(ConnectionResetError):
        await near.receive_some(10)
    with pytest.raises(trio.ClosedResourceError):
        far.send_now(b"x")
    await pair(network)


async def test_memory_silent_crash_leaves_the_other_end_half_open() -> None:
    network = MemoryNetwork(buffer_bytes=100)
    near, _ = await pair(network)
    network.crash("server", silent=True)
    assert near.receive_now(10) is None
    assert near.send_now(b"x" * 200) == 100
    assert near.send_now(b"x") == 0
    with trio.move_on_after(0.01) as scope:
        await near.wait_writable()
    assert scope.cancelled_caught


@pytest.mark.parametrize("host", ["a" * 64, "bookie..example", "\ud800"])
async def test_what_is_no_name_cannot_be_connected_to(host: str) -> None:
    """Whoever may register a bookie may write any name; for its clients it is one that is away."""
    with pytest.raises(OSError, match="is no name of a host"):
        await SocketNetwork().connect(host, 3181)


async def test_memory_listener_refuses_when_its_backlog_is_full() -> None:
    network = MemoryNetwork()
    listener = await network.host("server").listen("", 0)
    streams = [
        await network.host("client").connect("server", listener.port) for _ in range(BACKLOG)
    ]
    with pytest.raises(ConnectionRefusedError):
        await network.host("client").connect("server", listener.port)
    listener.close()
    with pytest.raises(ConnectionResetError):
        streams[0].receive_now(1)


async def test_memory_network_forgets_links_closed_at_both_ends() -> None:
    network = MemoryNetwork()
    near, far = await pair(network)
    near.close()
    assert len(network.links) == 1
    far.close()
    assert network.links == []
