"""Closed ledgers whose copies are where, and as good as, a test wants them."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger_client import LedgerClient
from ledger_client.requests import Adds, Answer
from metadata import update
from metadata.model import LedgerMetadata, new_ledger
from wire.batch import join_records
from wire.digest import digest_for, master_key
from wire.entry import encode_entry
from wire.types import BookieId, DigestType, LedgerId


async def planted(
    client: LedgerClient,
    payloads: Sequence[bytes],
    *,
    bookies: Sequence[BookieId],
    rotten: Sequence[BookieId] = (),
    ensemble_size: int = 3,
) -> LedgerMetadata:
    """A closed ledger whose entries are on these bookies only, with a wrong digest on some."""
    environment = client._environment
    ensemble = sorted(client.bookies().writable)[:ensemble_size]
    template = new_ledger(
        ledger_id=LedgerId(0), ensemble=ensemble, write_quorum=len(ensemble), ack_quorum=1,
        digest_type=DigestType.CRC32C, password=b"",
    )  # fmt: skip
    record = await environment.ledgers.create(template)
    ledger_id = record.metadata.ledger_id
    for bookie_id in bookies:
        entries = [
            encode_entry(
                payload, ledger_id=ledger_id, entry_id=i, lac=i - 1, length=0,
                digest=digest_for(DigestType.CRC32C),
            )
            for i, payload in enumerate(payloads)
        ]  # fmt: skip
        if bookie_id in rotten:
            entries = [entry[:-1] + bytes([entry[-1] ^ 1]) for entry in entries]
        done = trio.Event()

        def take(answers: list[Answer], done: trio.Event = done) -> None:
            done.set()

        request = Adds(
            request_id=next(environment.request_ids), sink=take, ledger_id=ledger_id,
            entry_ids=range(len(entries)), records=join_records(entries),
            master_key=master_key(b""),
        )  # fmt: skip
        environment.pool.ask(bookie_id, request)
        await done.wait()
    close = update.Close(last_entry_id=len(payloads) - 1, length=0)
    return (await environment.ledgers.update(ledger_id, close)).ledger.metadata
