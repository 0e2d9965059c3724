"""A mark of missing copies, as an auditor makes it, for as long as a test lasts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from metadata.connect import open_store
from metadata.underreplication import UnderReplication
from metadata.uri import parse_metadata_uri
from wire.types import BookieId, LedgerId


@contextmanager
def marked_ledger(uri: str, ledger_id: LedgerId, missing: BookieId) -> Iterator[None]:
    trio.run(_change, uri, ledger_id, missing)
    yield
    trio.run(_change, uri, ledger_id, None)


async def _change(text: str, ledger_id: LedgerId, missing: BookieId | None) -> None:
    uri = parse_metadata_uri(text)
    async with open_store(uri) as store:
        marks = UnderReplication(
            store, uri.root, owner="tests", chance=random.Random(1), now_ms=lambda: 1_000
        )
        await marks.open()
        if missing is not None:
            await marks.mark(ledger_id, [missing])
        else:
            lock = await marks.take(ledger_id)
            assert lock is not None
            await marks.finish(lock)
