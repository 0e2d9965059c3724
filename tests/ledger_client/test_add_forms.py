"""Adds that are frames already, for bookies that take either form; and bytes that do not fit."""

from __future__ import annotations

import pytest
import trio

from ledger_client.core.commands import Outcome
from ledger_client.requests import BATCH_ENTRIES_MIN, Adds
from tests.ledger_client.pool_world import (
    BOOKIE,
    KEY,
    LEDGER,
    Conversation,
    World,
    entry_of,
    running,
)
from wire.build_v2 import add_answers, add_requests
from wire.codec_v2 import encode_response
from wire.errors import Status
from wire.messages import AddBatchResponse
from wire.scan_v2 import AddBatch, AddRun

FEW = BATCH_ENTRIES_MIN - 1


@pytest.mark.parametrize("takes_batches", [False, True])
@pytest.mark.parametrize("size", [10, 200_000])  # the second does not fit into a pipe at once
@pytest.mark.parametrize("count", [FEW, BATCH_ENTRIES_MIN])
async def test_frames_reach_a_bookie_in_the_form_that_it_takes(
    takes_batches: bool, size: int, count: int
) -> None:
    """A few go one by one in any case: adds of many ledgers are taken together, batches are not."""
    entries = [entry_of(entry_id, size) for entry_id in range(count)]
    seen: list[bytes] = []
    forms: set[type] = set()

    async def bookie(conversation: Conversation) -> None:
        while len(seen) < len(entries):
            for item in await conversation.requests():
                forms.add(type(item))
                if isinstance(item, AddRun):
                    seen.extend(item.entries())
                    answer = add_answers(Status.OK, LEDGER, item.entry_ids)
                else:
                    assert isinstance(item, AddBatch)
                    bounds = item.walk.bounds
                    seen.extend(item.data[bounds[i] + 4 : bounds[i + 1]] for i in range(count))
                    answer = encode_response(
                        AddBatchResponse(
                            status=Status.OK,
                            request_id=item.request.request_id,
                            ledger_id=LEDGER,
                            first_entry_id=0,
                            last_entry_id=count - 1,
                        )
                    )
                await conversation.stream.send_all(answer)
        await trio.sleep_forever()

    async with running(World(takes_batches=takes_batches), bookie) as world:
        request = Adds(
            request_id=1,
            sink=world.take,
            ledger_id=LEDGER,
            entry_ids=range(count),
            frames=add_requests(entries, master_key=KEY),
            master_key=KEY,
        )
        world.pool.ask(BOOKIE, request)
        await world.settle()
        assert seen == entries
        assert forms == {AddBatch if takes_batches and count > FEW else AddRun}
        assert set(world.ends) == {(1, Outcome.OK)}
        assert request.is_over
        assert request.held_bytes == 0
