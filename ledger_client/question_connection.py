"""Everything that only v3 can say: LACs, long polls, bookie info, and unsynced entries with force.

Entries that are acknowledged before they are synced travel here, because a force must follow them
on the same connection: a bookie that restarted in between obeys it without having the entries, and
the connection is the only witness of that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from ledger_client.connection import Connection, Found, Place
from ledger_client.core.commands import OUTCOME_BY_STATUS, Outcome
from ledger_client.health import BookieHealth
from ledger_client.requests import Adds, Answer, Question, Request
from runtime.sockets import Network
from wire.build_v3 import add_requests
from wire.codec_v3 import decode_response, encode_request
from wire.framing import FrameBuffer
from wire.scan_v3 import scan_add_answers
from wire.types import NO_ENTRY, BookieId


class QuestionConnection(Connection):
    def __init__(
        self,
        bookie_id: BookieId,
        *,
        locate: Callable[[BookieId], Place],
        network: Network,
        chance: random.Random,
        health: BookieHealth,
        on_lost: Callable[[BookieId], None],
    ) -> None:
        super().__init__(bookie_id, locate=locate, network=network, chance=chance, health=health)
        self._tell_lost = on_lost
        self._transactions = count(1)
        #: Who asked, and for which entry; an add is one transaction per entry.
        self._asked: dict[int, tuple[Request, int]] = {}

    def _frame(self, request: Request) -> list[bytes]:
        if isinstance(request, Adds):
            return [self._frame_adds(request)]
        assert isinstance(request, Question)
        transaction_id = next(self._transactions)
        self._asked[transaction_id] = (request, NO_ENTRY)
        return [encode_request(request.message, transaction_id=transaction_id)]

    def _frame_adds(self, adds: Adds) -> bytes:
        entries: list[tuple[int, int, bytes]] = []
        for entry_id, entry in zip(adds.entry_ids, adds.entries(), strict=True):
            transaction_id = next(self._transactions)
            self._asked[transaction_id] = (adds, entry_id)
            entries.append((transaction_id, entry_id, entry))
        adds.left = len(entries)
        return b"".join(
            add_requests(
                entries, ledger_id=adds.ledger_id, master_key=adds.master_key, flags=adds.flags
            )
        )

    # ------------------------------------------------------------------ answers

    def _scan(self, frames: FrameBuffer, found: Found) -> None:
        while True:
            answers, frames.start = scan_add_answers(frames.data, frames.start, len(frames.data))
            if answers:
                self._take_adds([answer[0] for answer in answers], found)
            payload = frames.next_frame()
            if payload is None:
                return
            header, response = decode_response(payload)
            asked = self._asked.pop(header.transaction_id, None)
            if asked is None or asked[0].is_over:
                continue  # given up meanwhile
            request = asked[0]
            outcome = OUTCOME_BY_STATUS[response.status]
            if isinstance(request, Adds) and outcome is Outcome.OK:
                self._asked[header.transaction_id] = asked
                self._take_adds([header.transaction_id], found)
                continue
            self._forget(request)
            content = None if isinstance(request, Adds) else response
            answer = Answer(request.request_id, outcome, content)
            found.setdefault(request.sink, []).append(answer)

    def _take_adds(self, transaction_ids: list[int], found: Found) -> None:
        """Acknowledgements, handed on as one answer per request and buffer."""
        confirmed: dict[Adds, list[int]] = {}
        for transaction_id in transaction_ids:
            asked = self._asked.pop(transaction_id, None)
            if asked is None or asked[0].is_over:
                continue
            adds, entry_id = asked
            if isinstance(adds, Adds):
                confirmed.setdefault(adds, []).append(entry_id)
        for adds, entry_ids in confirmed.items():
            adds.left -= len(entry_ids)
            found.setdefault(adds.sink, []).append(
                Answer(adds.request_id, Outcome.OK, sorted(entry_ids))
            )
            if adds.left <= 0:
                self._forget(adds)

    def _end_moment(self) -> None:
        """Questions are framed when they are asked."""

    def _on_lost(self) -> None:
        """Those who count on this connection hear of it before anything takes the next one."""
        self._asked.clear()
        self._tell_lost(self.bookie_id)
