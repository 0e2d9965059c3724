"""Everything that only v3 can say: LACs, long polls, force, bookie info. Rare, so plain."""

from __future__ import annotations

from ledger_client.connection import Connection, Found
from ledger_client.core.commands import OUTCOME_BY_STATUS
from ledger_client.requests import Answer, Question, Request
from wire.codec_v3 import decode_response, encode_request
from wire.framing import FrameBuffer


class QuestionConnection(Connection):
    def _frame(self, request: Request) -> bytes:
        assert isinstance(request, Question)
        return encode_request(request.message, transaction_id=request.request_id)

    def _scan(self, frames: FrameBuffer, found: Found) -> None:
        while (payload := frames.next_frame()) is not None:
            header, response = decode_response(payload)
            request = self._open.pop(header.transaction_id, None)
            if request is None:
                continue  # given up meanwhile
            request.is_over = True
            outcome = OUTCOME_BY_STATUS[response.status]
            answer = Answer(request.request_id, outcome, response)
            found.setdefault(request.sink, []).append(answer)

    def _on_lost(self) -> None:
        """Questions are known by their number alone."""
