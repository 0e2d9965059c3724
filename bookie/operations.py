"""What a bookie does for a request, whichever protocol it came by.

An operation calls `reply` exactly once: at once, or later from the event loop, when a fence is
durable, a cold entry has been fetched or a list is complete. Adds and plain reads by the hundred
have their own way (`requests_v2.py`, `requests_v3.py`); they meet the rest in `read_many`.

Errors of storage become answers here. Only a proven absence is answered with "no such entry".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from bookie.core.entry_ranges import Range
from bookie.storage.engine import Engine
from bookie.storage.reads import Batch, Cold
from runtime import logs
from wire.availability import encode_availability
from wire.errors import LedgerError, Status
from wire.messages import (
    AddRequest,
    BatchReadRequest,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceRequest,
    ForceResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Response,
    WriteLacRequest,
    WriteLacResponse,
)
from wire.types import LAST_ENTRY, Flag

if TYPE_CHECKING:
    from bookie.bookie import Bookie

Reply = Callable[[Response], None]
T = TypeVar("T")
Tag = TypeVar("Tag")

#: How often a piece that was fetched may be gone again before the read fails.
_FETCHES_MAX: Final = 5
#: Frame, header, status and ids around the records of a batch read's answer.
BATCH_READ_OVERHEAD_BYTES: Final = 36
#: Longer master keys than this have no place in the footer of an entry log.
KEY_BYTES_MAX: Final = 255
#: Two ids and the longest digest make 36; nobody has reason to send much more.
_EXPLICIT_LAC_BYTES_MIN: Final = 16
_EXPLICIT_LAC_BYTES_MAX: Final = 1024
#: Around the list of entries in its answer.
_LIST_OVERHEAD_BYTES: Final = 128
_CAPACITY_BIT: Final = 1
_FREE_BIT: Final = 2
_ENTRY_BYTES_MIN: Final = 32

_log = logs.get("bookie.operations")


class Debtor(Protocol):
    """Somebody who owes answers: a connection."""

    owed: int

    def settle(self) -> None:
        """One of them has been given."""


class Operations:
    def __init__(self, bookie: Bookie, engine: Engine) -> None:
        self._bookie = bookie
        self.engine = engine
        self._listing = trio.Lock()

    # Adds that came alone.

    def add(self, request: AddRequest) -> Status:
        """Take an add of unusual shape; the caller commits."""
        body = bytes(request.body)
        ids = body[:8], body[8:16]
        if (
            len(body) < _ENTRY_BYTES_MIN
            or request.ledger_id < 0
            or request.entry_id < 0
            or ids != (request.ledger_id.to_bytes(8, "big"), request.entry_id.to_bytes(8, "big"))
            or len(request.master_key) > KEY_BYTES_MAX
        ):
            return Status.BAD_REQUEST
        flags = (
            Flag.RECOVERY_ADD * request.recovery
            | Flag.HIGH_PRIORITY * request.high_priority
            | Flag.DEFERRED_SYNC * request.deferred_sync
        )
        lac = int.from_bytes(body[16:24], "big", signed=True)
        return self.guarded(
            lambda: self.engine.add_entry(
                request.ledger_id, request.entry_id, lac, request.master_key, body, int(flags)
            )
        )

    def guarded(self, ask: Callable[[], T]) -> T | Status:
        """What the engine says, or IO_ERROR if its storage failed it."""
        try:
            return ask()
        except (LedgerError, OSError) as error:
            self._bookie.note_storage_error(error)
            return Status.IO_ERROR

    # Reads.

    def read_many(
        self,
        debtor: Debtor,
        ledger_id: int,
        entry_ids: Sequence[int],
        tags: Sequence[Tag],
        deliver: Callable[[Sequence[Tag], list[bytes | Status]], None],
        fetches_left: int = _FETCHES_MAX,
    ) -> None:
        """Read entries of one ledger. `deliver` gets the tags of those known now, others follow.

        Cold entries are fetched block by block, each block once, and read again when it is there.
        """
        if ledger_id < 0:
            deliver(tags, [Status.NO_LEDGER] * len(tags))
            return
        found = self.guarded(lambda: self.engine.read_run(ledger_id, entry_ids))
        if isinstance(found, Status):
            deliver(tags, [found] * len(tags))
            return
        if Cold not in set(map(type, found)):
            deliver(tags, found)  # type: ignore[arg-type]
            return
        hot: list[bytes | Status] = []
        hot_tags: list[Tag] = []
        waiting: dict[tuple[int, int, int], tuple[Cold, list[int], list[Tag]]] = {}
        for entry_id, tag, answer in zip(entry_ids, tags, found, strict=True):
            if isinstance(answer, Cold):
                if fetches_left:
                    place = (answer.run.location, answer.start, answer.end)
                    _, ids, theirs = waiting.setdefault(place, (answer, [], []))
                    ids.append(entry_id)
                    theirs.append(tag)
                    continue
                answer = Status.IO_ERROR
            hot.append(answer)
            hot_tags.append(tag)
        if hot:
            deliver(hot_tags, hot)
        for cold, ids, theirs in waiting.values():
            debtor.owed += 1

            def fetched(ids: list[int] = ids, theirs: list[Tag] = theirs) -> None:
                self.read_many(debtor, ledger_id, ids, theirs, deliver, fetches_left - 1)
                debtor.settle()

            self._fetch(cold, fetched)

    def read(self, request: ReadRequest, reply: Reply, *, with_lac: bool) -> None:
        """One entry. `with_lac` adds the highest LAC known, which v3 clients go by."""

        def answer(found: bytes | Status) -> None:
            if not isinstance(found, bytes):
                reply(_read_answer(request, found))
                return
            if not with_lac:
                reply(_read_answer(request, Status.OK, found))
                return
            self.lac(request.ledger_id, lambda lac: reply(
                _read_answer(request, Status.OK, found, lac if isinstance(lac, int) else None)
            ))  # fmt: skip

        if request.ledger_id < 0:
            answer(Status.NO_LEDGER)
        else:
            self.warm(partial(self.engine.read, request.ledger_id, request.entry_id), answer)

    def lac(self, ledger_id: int, done: Callable[[int | Status], None]) -> None:
        self.warm(partial(self.engine.lac, ledger_id), done)

    def fence(self, ledger_id: int, key: bytes | None, done: Callable[[Status], None]) -> None:
        """Fence a ledger; `done` when that is durable, or at once with the reason why not.

        The caller has committed its adds: they were accepted before the fence.
        """
        if ledger_id < 0 or (key is not None and len(key) > KEY_BYTES_MAX):
            done(Status.BAD_REQUEST)
            return
        fenced = self.guarded(lambda: self.engine.fence(ledger_id, key, partial(done, Status.OK)))
        if isinstance(fenced, Status):
            done(fenced)
            return
        status, is_pending = fenced
        if not is_pending:
            done(status)

    def fence_read(self, request: ReadRequest, reply: Reply) -> None:
        """Fence, then read. A negative answer waits for the fence to be durable, too."""

        def fenced(status: Status) -> None:
            if status is Status.OK:
                self.read(request, reply, with_lac=False)
            else:
                reply(_read_answer(request, status))

        self.fence(request.ledger_id, request.master_key, fenced)

    def read_batch(
        self, request: BatchReadRequest, reply: Callable[[Batch | Status], None]
    ) -> None:
        """Consecutive entries as records; fences first if asked to."""
        if request.first_entry_id < 0:
            reply(Status.BAD_REQUEST)
            return

        def read(status: Status = Status.OK) -> None:
            if status is not Status.OK:
                reply(status)
                return
            bytes_max = min(request.bytes_max, self._bookie.options.batch_read_bytes_max)
            self.warm(
                lambda: self.engine.read_batch(
                    request.ledger_id,
                    request.first_entry_id,
                    count_max=request.count_max,
                    bytes_max=max(0, bytes_max - BATCH_READ_OVERHEAD_BYTES),
                ),
                reply,
            )

        if request.fence:
            self.fence(request.ledger_id, request.master_key, read)
        elif request.ledger_id < 0:
            reply(Status.NO_LEDGER)
        else:
            read()

    # State.

    def write_lac(self, request: WriteLacRequest, reply: Reply) -> None:
        def answer(status: Status) -> None:
            reply(WriteLacResponse(status=status, ledger_id=request.ledger_id))

        body = request.body
        if (
            not _EXPLICIT_LAC_BYTES_MIN <= len(body) <= _EXPLICIT_LAC_BYTES_MAX
            or request.ledger_id < 0
            or body[:8] != request.ledger_id.to_bytes(8, "big")
            or len(request.master_key) > KEY_BYTES_MAX
        ):
            answer(Status.BAD_REQUEST)
            return
        status = self.guarded(
            lambda: self.engine.write_lac(
                request.ledger_id, request.master_key, body, partial(answer, Status.OK)
            )
        )
        if status is not Status.OK:
            answer(status)

    def read_lac(self, request: ReadLacRequest, reply: Reply) -> None:
        """The explicit LAC and the last entry, whichever there is.

        As Apache's: an unknown ledger has no entry, and an explicit LAC without any entry is an
        I/O error that carries the LAC all the same.
        """

        def answer(found: bytes | Status) -> None:
            lac_body: bytes | None = None
            if request.ledger_id >= 0:
                ledger = self.guarded(partial(self.engine.ledger, request.ledger_id))
                if isinstance(ledger, Status):
                    found = ledger
                elif ledger.exists:
                    lac_body = ledger.explicit_lac
            if isinstance(found, bytes):
                status, last = Status.OK, found
            else:
                status, last = found, None
                if status in (Status.NO_ENTRY, Status.NO_LEDGER):
                    status = Status.NO_ENTRY if lac_body is None else Status.IO_ERROR
            reply(
                ReadLacResponse(
                    status=status,
                    ledger_id=request.ledger_id,
                    lac_body=lac_body,
                    last_entry_body=last,
                )
            )

        if request.ledger_id < 0:
            answer(Status.NO_ENTRY)
        else:
            self.warm(partial(self.engine.read, request.ledger_id, LAST_ENTRY), answer)

    def force(self, request: ForceRequest, reply: Reply) -> None:
        """OK when everything journaled so far is durable; the caller has committed its adds."""

        def answer(status: Status = Status.OK) -> None:
            reply(ForceResponse(status=status, ledger_id=request.ledger_id))

        if request.ledger_id < 0:  # no such ledger can have anything to wait for
            answer()
            return
        failed = self.guarded(lambda: self.engine.force(request.ledger_id, answer))
        if failed is not None:
            answer(Status.IO_ERROR)

    async def list_entries(self, request: ListEntriesRequest, reply: Reply) -> None:
        """Others are served between the steps of it; for its memory's sake one at a time."""
        encoded = None
        async with self._listing:
            found = await self._list(request.ledger_id)
        if isinstance(found, Status):
            status = found
        else:
            status = Status.OK
            encoded = encode_availability(found)
            if len(encoded) + _LIST_OVERHEAD_BYTES > self._bookie.options.frame_bytes_max:
                _log.warning(
                    "list of entries does not fit a frame",
                    ledger=request.ledger_id,
                    bytes=len(encoded),
                )
                status, encoded = Status.IO_ERROR, None
        reply(ListEntriesResponse(status=status, ledger_id=request.ledger_id, availability=encoded))
        self._bookie.post.flush()

    async def _list(self, ledger_id: int) -> list[Range] | Status:
        if ledger_id < 0:
            return Status.NO_LEDGER
        listing = self.guarded(partial(self.engine.list_entries, ledger_id))
        if isinstance(listing, Status):
            return listing
        while more := self.guarded(listing.step):
            if isinstance(more, Status):
                return more
            await trio.lowlevel.checkpoint()
        return listing.ranges()

    def info(self, request: BookieInfoRequest, reply: Reply) -> None:
        requested = request.requested or 0
        total = free = None
        status = Status.OK
        if requested & (_CAPACITY_BIT | _FREE_BIT):
            space = self.guarded(self._bookie.space)
            if isinstance(space, Status):
                status = space
            else:
                total = space.total_bytes if requested & _CAPACITY_BIT else None
                free = space.free_bytes if requested & _FREE_BIT else None
        reply(BookieInfoResponse(status=status, total_bytes=total, free_bytes=free))

    # Waiting for the disk.

    def warm(
        self,
        ask: Callable[[], T | Status | Cold],
        done: Callable[[T | Status], None],
        fetches_left: int = _FETCHES_MAX,
    ) -> None:
        """Ask until the answer is in memory."""
        found = self.guarded(ask)
        if not isinstance(found, Cold):
            done(found)
        elif fetches_left:
            self._fetch(found, partial(self.warm, ask, done, fetches_left - 1))
        else:
            done(Status.IO_ERROR)

    def _fetch(self, cold: Cold, done: Callable[[], None]) -> None:
        def fetched() -> None:
            done()
            self._bookie.post.flush()

        self.engine.fetch(cold, fetched)


def _read_answer(
    request: ReadRequest, status: Status, body: bytes | None = None, max_lac: int | None = None
) -> ReadResponse:
    return ReadResponse(
        status=status,
        ledger_id=request.ledger_id,
        entry_id=request.entry_id,
        body=body,
        max_lac=max_lac,
    )
