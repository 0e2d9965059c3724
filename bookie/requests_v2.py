"""v2 requests, by the receive buffer: runs of adds and reads, batches, and the rest one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from bookie.authentication import AUTH_DISABLED
from bookie.storage.reads import Batch
from wire.build_v2 import add_answers, batch_read_answer, mixed_add_answers, read_answers
from wire.codec_v2 import Refusal, RequestFrame, encode_response
from wire.errors import LedgerError, ProtocolError, Status
from wire.header_v2 import VERSION_MAX
from wire.messages import (
    AddBatchResponse,
    AuthRequest,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Response,
)
from wire.scan_v2 import AddBatch, AddMix, AddRun, ReadRun, RequestItem, scan_requests

if TYPE_CHECKING:
    from bookie.connection import Connection


class RequestsV2:
    """The v2 side of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bookie = connection.bookie
        self._engine = connection.bookie.engine
        self._operations = connection.bookie.operations

    async def take(self) -> bool:
        """Handle all whole frames. True: the connection stays with v2."""
        connection, gate = self._connection, self._bookie.gate
        outbox = connection.outbox
        for item in scan_requests(connection.frames):
            kind = type(item)
            if connection.is_guarded and connection.is_locked:
                self._take_locked(item)
            elif kind is AddRun:
                connection.adds = True
                if gate.is_closed and not await connection.wait_admission():
                    self._refuse_run(item, Status.TOO_MANY_REQUESTS)  # type: ignore[arg-type]
                else:
                    self._add_run(item)  # type: ignore[arg-type]
            elif kind is AddMix:
                connection.adds = True
                if gate.is_closed and not await connection.wait_admission():
                    places = range(len(item.entry_ids))  # type: ignore[union-attr]
                    self._refuse_some(item, dict.fromkeys(places, Status.TOO_MANY_REQUESTS))  # type: ignore[arg-type]
                else:
                    self._add_mix(item)  # type: ignore[arg-type]
            elif kind is ReadRun:
                await self._read_run(item)  # type: ignore[arg-type]
            elif kind is AddBatch:
                connection.adds = True
                if gate.is_closed and not await connection.wait_admission():
                    self._answer_batch(item, Status.TOO_MANY_REQUESTS)  # type: ignore[arg-type]
                else:
                    self._add_batch(item)  # type: ignore[arg-type]
            else:
                self._take_one(item)  # type: ignore[arg-type]
            if outbox.is_due:
                await connection.make_room()
        return True

    # Adds.

    def _add_run(self, run: AddRun) -> None:
        try:
            status = self._engine.add_run(run)
        except (LedgerError, OSError) as error:
            status = self._connection.stumble(error)
        if status is Status.OK:
            answers = add_answers(status, run.ledger_id, run.entry_ids, version=run.version)
            size = run.bounds[-1] - run.bounds[0]
            self._connection.accept(answers, len(run.entry_ids), size)
        else:
            self._refuse_run(run, status)

    def _refuse_run(self, run: AddRun, status: Status) -> None:
        self._bookie.metrics.refused_adds(len(run.entry_ids), status)
        self._connection.outbox.put(
            add_answers(status, run.ledger_id, run.entry_ids, version=run.version)
        )

    def _add_mix(self, mix: AddMix) -> None:
        ledger_ids, entry_ids, bounds = mix.ledger_ids, mix.entry_ids, mix.bounds
        try:
            refused = self._engine.add_mix(mix)
        except (LedgerError, OSError) as error:
            # Some were taken, and may be found later; none is promised.
            status = self._connection.stumble(error)
            refused = dict.fromkeys(range(len(entry_ids)), status)
        if not refused:
            answers = mixed_add_answers(ledger_ids, entry_ids)
            self._connection.accept(answers, len(entry_ids), bounds[-1] - bounds[0])
            return
        taken = [place for place in range(len(entry_ids)) if place not in refused]
        if taken:
            answers = mixed_add_answers(
                [ledger_ids[place] for place in taken], [entry_ids[place] for place in taken]
            )
            size = sum(bounds[place + 1] - bounds[place] for place in taken)
            self._connection.accept(answers, len(taken), size)
        self._refuse_some(mix, refused)

    def _refuse_some(self, mix: AddMix, refused: dict[int, Status]) -> None:
        for place, status in refused.items():
            self._bookie.metrics.refused_adds(1, status)
            self._connection.outbox.put(
                add_answers(status, mix.ledger_ids[place], mix.entry_ids[place : place + 1])
            )

    def _add_batch(self, batch: AddBatch) -> None:
        try:
            status = self._engine.add_batch(batch)
        except (LedgerError, OSError) as error:
            status = self._connection.stumble(error)
        self._answer_batch(batch, status)

    def _answer_batch(self, batch: AddBatch, status: Status) -> None:
        request = batch.request
        answer = encode_response(
            AddBatchResponse(
                status=status,
                request_id=request.request_id,
                ledger_id=request.ledger_id,
                first_entry_id=request.first_entry_id,
                last_entry_id=request.last_entry_id,
            )
        )
        if status is Status.OK:
            self._connection.accept(answer, request.count, batch.end - batch.start)
        else:
            self._bookie.metrics.refused_adds(request.count, status)
            self._connection.outbox.put(answer)

    # Reads.

    async def _read_run(self, run: ReadRun) -> None:
        """Read in slices, so that one request buffer cannot ask for more than memory holds."""
        connection = self._connection
        ids = run.entry_ids
        deliver = partial(self._deliver, run, self._bookie.clock())
        at = 0
        while at < len(ids):
            count = connection.read_count
            part = ids[at : at + count]
            self._operations.read_many(connection, run.ledger_id, part, part, deliver)
            at += count
            if connection.outbox.is_due:
                await connection.make_room()

    def _deliver(
        self, run: ReadRun, since: float, ids: Sequence[int], answers: list[bytes | Status]
    ) -> None:
        connection = self._connection
        version = run.version
        size = 0
        if set(map(type, answers)) == {bytes}:  # mostly
            data = read_answers(run.ledger_id, ids, answers, version=version)  # type: ignore[arg-type]
            connection.entry_bytes = max(1, len(data) // len(ids))
            connection.outbox.put(data)
            self._bookie.metrics.reads(answers, len(data), since)
            return
        for is_found, pairs in groupby(
            zip(ids, answers, strict=True), lambda pair: isinstance(pair[1], bytes)
        ):
            if is_found:
                found_ids, entries = zip(*pairs, strict=True)
                data = read_answers(run.ledger_id, found_ids, entries, version=version)
                size += len(data)
                connection.outbox.put(data)
                connection.entry_bytes = max(1, len(data) // len(found_ids))
                continue
            for entry_id, status in pairs:
                assert isinstance(status, Status)
                response = ReadResponse(status=status, ledger_id=run.ledger_id, entry_id=entry_id)
                connection.outbox.put(encode_response(response, version=version))
        self._bookie.metrics.reads(answers, size, since)

    # The rest.

    def _take_one(self, item: RequestFrame) -> None:
        version, request = item
        reply = partial(self._reply, version)
        match request:
            case Refusal():
                self._connection.owed += 1
                reply(request.response)
            case ReadRequest(fence=True):  # plain reads come as runs
                self._connection.commit()
                self._connection.owed += 1
                self._operations.fence_read(request, self._bookie.metrics.timed("fence", reply))
            case BatchReadRequest():
                self._connection.commit()
                self._connection.owed += 1
                self._operations.read_batch(
                    request, partial(self._answer_batch_read, version, request)
                )
            case AuthRequest():
                self._authenticate(request)
            case _:
                raise AssertionError(f"the scanner does not bring {type(request).__name__}")

    def _answer_batch_read(
        self, version: int, request: BatchReadRequest, found: Batch | Status
    ) -> None:
        if isinstance(found, Status):
            response = BatchReadResponse(
                status=found,
                request_id=request.request_id,
                ledger_id=request.ledger_id,
                first_entry_id=request.first_entry_id,
            )
            self._reply(version, response)
            return
        self._bookie.metrics.batch_read(found)
        pieces = batch_read_answer(
            found.pieces,
            request_id=request.request_id,
            ledger_id=request.ledger_id,
            first_entry_id=request.first_entry_id,
            version=version,
        )
        self._connection.outbox.put(*pieces)
        self._connection.settle()

    def _reply(self, version: int, response: Response) -> None:
        self._connection.outbox.put(encode_response(response, version=version))
        self._connection.settle()

    # Before the client has said who it is.

    def _authenticate(self, request: AuthRequest) -> None:
        """The answer is of version 2 whatever was asked. A refusal is a closed connection."""
        authenticator = self._connection.authenticator
        if authenticator is None or authenticator.is_complete:
            response = AUTH_DISABLED
        else:
            response = authenticator.respond(request)
        if response.status is not Status.OK:
            raise ProtocolError(f"v2 client authenticates with {request.plugin!r}")
        self._connection.outbox.put(encode_response(response, version=VERSION_MAX))

    def _take_locked(self, item: RequestItem) -> None:
        """Adds and reads are refused; what has no answer for that ends the connection."""
        put = self._connection.outbox.put
        if isinstance(item, AddRun):
            put(add_answers(Status.UNAUTHORIZED, item.ledger_id, item.entry_ids,
                            version=item.version))  # fmt: skip
        elif isinstance(item, AddMix):
            places = range(len(item.entry_ids))
            self._refuse_some(item, dict.fromkeys(places, Status.UNAUTHORIZED))
        elif isinstance(item, AddBatch):
            self._answer_batch(item, Status.UNAUTHORIZED)
        elif isinstance(item, ReadRun):
            for entry_id in item.entry_ids:
                response = ReadResponse(
                    status=Status.UNAUTHORIZED, ledger_id=item.ledger_id, entry_id=entry_id
                )
                put(encode_response(response, version=item.version))
        elif isinstance(item.request, AuthRequest):
            self._authenticate(item.request)
        elif isinstance(item.request, ReadRequest):
            refused = ReadResponse(
                status=Status.UNAUTHORIZED,
                ledger_id=item.request.ledger_id,
                entry_id=item.request.entry_id,
            )
            put(encode_response(refused, version=item.version))
        else:
            raise ProtocolError("v2 request before authentication")
