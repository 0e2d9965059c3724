"""Those who write: every shape, digest and way of appending, one ledger after the other."""

from __future__ import annotations

import random
from typing import Any, Final

import trio

from ledger_client import DigestType, LedgerClient, LedgerError, LedgerWriter, WriterOptions
from tests.chaos.history import History, payload_of

PASSWORD: Final = b"chaos"
#: Ensemble, write quorum, ack quorum. No ack quorum of 1: the loss of one bookie must lose nothing.
SHAPES: Final = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2), (3, 3, 3), (4, 2, 2))
DIGESTS: Final = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY)
MODES: Final = ("plain", "plain", "single", "deferred", "given")
_QUORUM_SECONDS: Final = 30.0
_FILL_SECONDS: Final = 60.0


class Writing:
    def __init__(
        self, client: LedgerClient, history: History, name: str, plan: dict[str, Any]
    ) -> None:
        self._client = client
        self._history = history
        self._name = name
        self._pace = float(plan.get("pace", 0.05))
        self._size = int(plan.get("entries", 200))
        self._count = 0

    async def write_ledger(self, chance: random.Random) -> None:
        """Create, fill, perhaps be idle for long, close."""
        self._count += 1
        nonce = f"{self._name}.{self._count}"
        ensemble, write_quorum, ack_quorum = chance.choice(SHAPES)
        digest, mode = chance.choice(DIGESTS), chance.choice(MODES)
        writer = await self._client.create(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=PASSWORD,
            digest_type=digest,
            custom_metadata={"nonce": nonce.encode()},
            given_entry_ids=mode == "given",
            deferred_sync=mode == "deferred",
            options=WriterOptions(quorum_timeout_seconds=_QUORUM_SECONDS),
        )
        shape = (ensemble, write_quorum, ack_quorum)
        self._history.note(
            "created", writer.id, nonce=nonce, shape=shape, digest=digest.name, mode=mode
        )
        try:
            await self._fill(writer, nonce, mode, chance)
            if chance.random() < 0.2:
                await trio.sleep(chance.uniform(2.0, 12.0))  # alive and idle
                await self._fill(writer, nonce, mode, chance)
        except LedgerError as error:
            # What it counts as confirmed by now is confirmed, whoever waited for it.
            confirmed = writer.last_confirmed
            self._history.note(
                "append failed", writer.id, error=type(error).__name__, confirmed=confirmed
            )
        await self._close(writer)

    async def _fill(
        self, writer: LedgerWriter, nonce: str, mode: str, chance: random.Random
    ) -> None:
        last = writer.last_appended + chance.randint(0, self._size)
        deadline = trio.current_time() + _FILL_SECONDS  # slow machines write shorter ledgers
        while writer.last_appended < last and trio.current_time() < deadline:
            first = writer.last_appended + 1
            ids = range(first, min(last, first + chance.randint(1, 40) - 1) + 1)
            await self._append(writer, nonce, mode, ids, chance)
            if mode == "deferred" and chance.random() < 0.4:
                await self._force(writer)
            await trio.sleep(chance.uniform(0, 2 * self._pace))

    async def _append(
        self,
        writer: LedgerWriter,
        nonce: str,
        mode: str,
        ids: range,
        chance: random.Random,
    ) -> None:
        if mode == "given":
            order = list(ids)
            chance.shuffle(order)
            payloads = [payload_of(nonce, entry_id) for entry_id in order]
            await writer.append_many(payloads, entry_ids=order)
            self._history.note("acked", writer.id, a=ids.start, b=ids.stop - 1)
        elif mode == "single":
            for entry_id in ids:
                found = await writer.append(payload_of(nonce, entry_id))
                self._history.note("acked", writer.id, a=found, b=found)
                self._check_id(writer, found, entry_id)
        else:
            many = await writer.append_many([payload_of(nonce, entry_id) for entry_id in ids])
            self._history.note("acked", writer.id, a=many[0], b=many[-1])
            self._check_id(writer, many[0], ids.start)

    def _check_id(self, writer: LedgerWriter, found: int, wanted: int) -> None:
        if found != wanted:
            self._history.note("wrong id", writer.id, found=found, wanted=wanted)

    async def _force(self, writer: LedgerWriter) -> None:
        forced = await writer.force()
        self._history.note("forced", writer.id, b=forced)

    async def _close(self, writer: LedgerWriter) -> None:
        """Always tried, also after a failure: it is what tells the writer where the ledger ends."""
        try:
            await writer.close()
        except LedgerError as error:
            self._history.note("close failed", writer.id, error=type(error).__name__)
            return
        metadata = writer.metadata
        self._history.note("closed", writer.id, last=metadata.last_entry_id, length=metadata.length)
