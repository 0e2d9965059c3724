"""Scans of old entries beside readers of fresh ones: who waits for the disk, and who does not.

Counted, not timed: the disk stands still for the scan, and the tail is read to its end meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio.testing

from bookie.storage.reads import Cold
from runtime.memory_files import MemoryFile
from tests.bookie_server.test_requests import LEDGER, cooled
from tests.bookie_server.world import KEY, entry_of, running
from wire import codec_v2
from wire.build_v2 import add_requests, read_requests
from wire.errors import Status
from wire.messages import BatchReadRequest, BatchReadResponse, ReadResponse
from wire.types import Flag, LedgerId

FRESH = LedgerId(2)
#: More requests of a scan than a job would ever have on its way at one bookie.
SCANS = 64


async def test_tail_is_read_to_its_end_while_every_read_of_a_scan_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_cached = MemoryFile.read_cached
    async with running() as world:
        scan = await cooled(world, monkeypatch)
        writer, tail = await world.connect(), await world.connect()
        engine = world.bookie.engine
        fetch, waiting = engine.fetch, list[tuple[Cold, Callable[[], None]]]()
        monkeypatch.setattr(engine, "fetch", lambda cold, done: waiting.append((cold, done)))
        for number in range(SCANS):
            request = BatchReadRequest(
                request_id=number,
                ledger_id=LEDGER,
                first_entry_id=number,
                count_max=10,
                bytes_max=1 << 20,
                read_class_batch=True,
            )
            await scan.send(codec_v2.encode_request(request))
        await scan.send(read_requests(range(50, 60), ledger_id=LEDGER, flags=Flag.READ_CLASS_BATCH))
        await trio.testing.wait_all_tasks_blocked()
        held = len(waiting)
        assert held > 0, "the scan waits for the disk"
        # What was written just now is in the kernel's memory when it leaves our own.
        monkeypatch.setattr(MemoryFile, "read_cached", read_cached)

        for entry_id in range(200):
            fresh = entry_of(FRESH, entry_id, b"f" * 100, entry_id - 1)
            await writer.send(add_requests([fresh], master_key=KEY))
            assert (await writer.answer_v2()).status is Status.OK
            await tail.send(read_requests([entry_id], ledger_id=FRESH))
            answer = await tail.answer_v2()
            assert isinstance(answer, ReadResponse)
            assert (answer.status, answer.entry_id) == (Status.OK, entry_id)
        assert len(waiting) == held, "no read of the tail went to the disk"

        monkeypatch.setattr(engine, "fetch", fetch)
        for cold, done in waiting:
            fetch(cold, done)
        batches = singles = 0
        for _ in range(SCANS + 10):
            found = await scan.answer_v2()
            assert found.status is Status.OK
            batches += isinstance(found, BatchReadResponse)
            singles += isinstance(found, ReadResponse)
        assert (batches, singles) == (SCANS, 10)

        # What the scan has brought into memory has put nothing of the tail out of it.
        monkeypatch.setattr(engine, "fetch", lambda cold, done: waiting.append((cold, done)))
        await tail.send(read_requests(range(200), ledger_id=FRESH))
        for _ in range(200):
            assert (await tail.answer_v2()).status is Status.OK
        assert len(waiting) == held
