"""One client: bytes in, requests to the engine, answers out.

A task per connection receives up to 256 KiB, hands all whole frames to the protocol at hand and
waits for more. In between it awaits only when something is full: the outbox, the room for adds, the
number of cold reads under way. Before every such wait it commits what it has added, because the
engine collects adds for one committer at a time.

A connection begins as v3 and turns to v2 for good with the first frame that is not v3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from bookie.answers import Outbox
from bookie.authentication import AuthenticationFailedError
from bookie.commits import Commit
from bookie.requests_v2 import RequestsV2
from bookie.requests_v3 import RequestsV3
from bookie.start_tls import take_tokens, tls_first
from bookie.storage.journal_format import JournalError
from runtime import logs
from runtime.sockets import ByteStream
from runtime.tls_stream import TlsError, encrypt, let_it_be_heard
from wire.errors import ProtocolError, Status
from wire.framing import FrameBuffer

if TYPE_CHECKING:
    from bookie.bookie import Bookie

RECEIVE_BYTES: Final = 256 << 10
#: The same while clients do not read their answers: a request buffer held up takes memory, too.
RECEIVE_BYTES_TIGHT: Final = 16 << 10
#: Requests under way (cold reads, fences, polls) beyond which a connection is not read.
OWED_MAX: Final = 10_000
#: Entries are read in slices of at most this many.
READ_COUNT_MAX: Final = 1024
#: Smaller rests of frames are not worth counting; ten thousand clients may hold that much each.
PARTIAL_BYTES_MIN: Final = 8 << 10
_ENTRY_BYTES_GUESS: Final = 64 << 10

_log = logs.get("bookie.connection")


class Connection:
    def __init__(self, stream: ByteStream, bookie: Bookie) -> None:
        self.bookie = bookie
        self.stream = stream
        self.frames = FrameBuffer(bookie.options.frame_bytes_max)
        self.outbox = Outbox(stream, bookie.post, self)
        make = bookie.security.new_authenticator
        self.authenticator = None if make is None else make(stream)
        self.since = bookie.clock()
        self.is_guarded = bookie.security.is_guarded
        self._is_secure = False  # inside TLS
        self.owed = 0  # answers that are still to come
        self.adds = False  # whether it has ever sent an add
        self.frame_since: float | None = None  # when an incomplete frame began to arrive
        self._commit: Commit | None = None
        self._received_at = 0.0
        self._protocol: RequestsV2 | RequestsV3 = RequestsV3(self)
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._admitted = False  # through the gate, until the next commit
        self._refuse_at: float | None = None  # while the gate is closed: when patience ends
        self._settled: trio.Event | None = None  # somebody waits for owed answers
        self.entry_bytes = _ENTRY_BYTES_GUESS  # of entries read lately
        self.held_bytes = 0  # of an incomplete frame, as the bookie has counted them

    @property
    def is_locked(self) -> bool:
        """Whether the client has yet to say who it is, or to begin TLS where that is a must."""
        if not self.is_guarded:
            return False
        if self.bookie.security.tls_required and not self._is_secure:
            return True
        return self.authenticator is not None and not self.authenticator.is_complete

    # The life of it.

    async def run(self) -> None:
        """Serve until the client leaves, breaks the rules, or the bookie stops."""
        self.bookie.connections.add(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                with self._reading:
                    await self._read()
                await self._finish()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self.commit()
            self.bookie.forget(self)
            self.outbox.abandon()

    def stop(self) -> None:
        """Take no more requests; answer what was taken, then leave."""
        self._reading.cancel()

    def close(self, reason: str) -> None:
        """End it now, without answers."""
        _log.info("connection closed", peer=self.stream.peer, reason=reason)
        self.outbox.abandon()
        self._reading.cancel()
        self.stream.close(reset=True)

    def start_writer(self) -> None:
        self.start(self._write)

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run something beside the requests, for as long as the connection is there."""
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def lost(self, error: Exception) -> None:
        _log.debug("connection lost", peer=self.stream.peer, reason=error)
        self._reading.cancel()

    async def find_tls(self) -> bool:
        """The first frame of v2: whether START_TLS, which was behind it, is the next one now."""
        is_offered = self.bookie.security.certificates is not None and not self._is_secure
        if not is_offered or self.authenticator is None or self.authenticator.is_complete:
            return False
        frames, begins = self.frames, self.frames.peek()
        frames.data = await tls_first(self.stream, frames.data[frames.start :])
        frames.start = 0
        return frames.peek() != begins

    async def start_tls(self, yes: bytes, no: bytes) -> None:
        """Answer `yes` in clear and go on inside TLS, where a stranger is told `no`.

        What the client has sent behind its request belongs to TLS. As a request it would be one
        that anybody on the way can put there.
        """
        certificates = self.bookie.security.certificates
        assert certificates is not None, "nobody can begin TLS here"
        if self._is_secure or self.owed:
            raise ProtocolError("TLS is begun once, and before anything else is asked")
        self.outbox.put(yes)
        self.bookie.post.flush()
        await self.outbox.wait_empty()
        received = bytes(self.frames.data[self.frames.start :])
        self.frames.data, self.frames.start = b"", 0
        tokens = b""
        try:
            with trio.fail_after(self.bookie.security.seconds_max):
                if self.authenticator is not None:
                    tokens, received = await take_tokens(self.stream, received)
                stream = await encrypt(
                    self.stream, certificates.current(), server_side=True, received=received
                )
        except (TlsError, trio.TooSlowError) as error:
            self.bookie.protocol_errors += 1
            why = error if isinstance(error, TlsError) else "the handshake took too long"
            raise AuthenticationFailedError(f"TLS: {why}") from error
        below, self.stream = self.stream, stream
        self.outbox.go_on(stream)
        self._is_secure = True
        _log.debug("TLS", peer=stream.peer, cipher=stream.cipher)
        if self.authenticator is not None:
            try:
                self.authenticator.on_tls(stream.certificate_subject)
            except AuthenticationFailedError:
                self.outbox.put(no)
                self.bookie.post.flush()
                await self.outbox.wait_empty()
                await let_it_be_heard(below)
                raise
        self.frames.feed(tokens)

    async def _write(self) -> None:
        try:
            await self.outbox.drain(self.bookie.options.send_seconds_max)
        except TimeoutError as error:
            self.close(str(error))

    async def _read(self) -> None:
        try:
            while True:
                await self.stream.wait_readable()
                if self.adds and self.bookie.gate.is_closed:
                    await self.wait_admission()
                tight = self.bookie.post.is_tight
                data = self.stream.receive_now(RECEIVE_BYTES_TIGHT if tight else RECEIVE_BYTES)
                if data is None:
                    self.commit()
                    continue
                if not data:
                    return
                self._received_at = self.bookie.clock()
                self.frames.feed(data)
                await self._take_frames()
                self.bookie.post.flush()
                if self.outbox.is_full or self.owed > OWED_MAX:
                    await self.make_room()
        except ProtocolError as error:
            self.bookie.protocol_errors += 1
            _log.info("connection refused", peer=self.stream.peer, reason=error)
        except AuthenticationFailedError as error:
            _log.warning("authentication failed", error=error, peer=self.stream.peer)
        except (OSError, trio.ClosedResourceError) as error:
            self.lost(error)
            self.outbox.abandon()

    async def _take_frames(self) -> None:
        """Hand over all whole frames, and keep no more of the buffer than the rest."""
        try:
            while not await self._protocol.take():
                self._protocol = RequestsV2(self)
        finally:
            self.commit()
        frames = self.frames
        begins = frames.start > 0 or self.frame_since is None
        if frames.start:
            frames.data, frames.start = frames.data[frames.start :], 0
        held = frames.held_bytes
        if not held:
            self.frame_since = None
        elif begins:
            self.frame_since = self._received_at
        if held > PARTIAL_BYTES_MIN or self.held_bytes:
            self.bookie.note_partial(self, held)

    async def _finish(self) -> None:
        """Wait a little for answers that are under way, then for the socket to take them."""
        self.bookie.polls.answer_all(self)
        self.bookie.post.flush()
        with trio.move_on_after(self.bookie.options.finish_seconds_max):
            while self.owed and not self.outbox.dead:
                await self._wait_settled()
            await self.outbox.wait_empty()

    # For the protocols.

    def commit(self) -> None:
        """Queue what was added for the journal, under one token; let the next one in."""
        commit, self._commit = self._commit, None
        if commit is not None:
            committed = self._to_journal(commit)
            if committed is not None:
                assert committed, "accepted adds were committed by somebody else"
                self.owed += 1
            self._refuse_at = None
        if self._admitted:
            self._admitted = False
            self.bookie.gate.leave()

    def accept(self, answers: bytes, count: int, size: int) -> None:
        """The engine took these adds; their answers are due when they are durable."""
        commit = self._commit
        if commit is None:
            commit = self._commit = Commit(self, self._received_at)
        commit.answers.append(answers)
        commit.count += count
        commit.bytes += size

    def stumble(self, error: Exception) -> Status:
        """The engine could not take an add. Whatever it has taken of it goes to the journal."""
        self.bookie.note_storage_error(error)
        if self._commit is None:
            self._to_journal(_nothing)
        return Status.IO_ERROR

    def _to_journal(self, token: object) -> bool | None:
        """Whether there was anything to journal; None if the journal has just failed."""
        try:
            return self.bookie.engine.commit(token)
        except JournalError as error:  # nobody is answered any more; the bookie is about to end
            self.close(str(error))
            return None

    def settle(self) -> None:
        """An answer that was owed has been put into the outbox."""
        self.owed -= 1
        if self._settled is not None:
            self._settled.set()

    async def wait_admission(self) -> bool:
        """There is no room for adds: wait. False if it took too long, and they are to be refused.

        What waits has not been judged. After True, add without awaiting, until `commit`.
        """
        if self._admitted:
            return True
        self.commit()
        self.bookie.post.flush()
        gate = self.bookie.gate
        now = trio.current_time()
        if self._refuse_at is None or now > self._refuse_at + gate.patience_seconds:
            self._refuse_at = now + gate.patience_seconds
        if now < self._refuse_at and await gate.wait(self._refuse_at):
            self._admitted = True
            self._refuse_at = None
        return self._admitted

    async def make_room(self) -> None:
        """Send; and if the client does not read, or waits for too much already, wait for it."""
        self.commit()
        self.bookie.post.flush()
        await self.outbox.wait_room()
        while self.owed > OWED_MAX and not self.outbox.dead:
            await self._wait_settled()

    @property
    def read_count(self) -> int:
        """How many entries to read at a time, so that they fit into what may be unsent."""
        room = self.bookie.post.flush_bytes
        return max(1, min(READ_COUNT_MAX, room // self.entry_bytes))

    async def _wait_settled(self) -> None:
        self._settled = trio.Event()
        await self._settled.wait()
        self._settled = None


def _nothing() -> None:
    """The token of adds that nobody is told about."""
