"""Asking one bookie about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger_client.core.commands import Outcome
from ledger_client.environment import Environment
from ledger_client.errors import ClientClosedError
from ledger_client.requests import Mailbox, Question
from wire.errors import BookieUnavailableError, RequestTimeoutError, TransientError
from wire.messages import BookieInfoRequest, BookieInfoResponse
from wire.types import BookieId

_TOTAL_AND_FREE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSpace:
    """Bytes over all ledger directories of a bookie."""

    bookie_id: BookieId
    total_bytes: int
    free_bytes: int


async def ask_bookie_info(environment: Environment, bookie_id: BookieId) -> BookieSpace:
    mail = Mailbox()
    with environment.waking(mail):
        question = Question(
            request_id=next(environment.request_ids),
            sink=mail.take,
            message=BookieInfoRequest(requested=_TOTAL_AND_FREE),
        )
        environment.pool.ask(bookie_id, question)
        answers = await mail.wait()
    if not answers:
        raise ClientClosedError(f"bookie {bookie_id}: the client was closed meanwhile")
    _, outcome, response = answers[0]
    if outcome is not Outcome.OK or not isinstance(response, BookieInfoResponse):
        kinds = {
            Outcome.NOT_CONNECTED: BookieUnavailableError,
            Outcome.TIMEOUT: RequestTimeoutError,
            Outcome.CLIENT_CLOSED: ClientClosedError,
        }
        error = kinds.get(outcome, TransientError)(
            f"bookie {bookie_id} does not say how much space it has: {outcome.name}; "
            f"{environment.pool.known.refusals.get(bookie_id, 'see whether it is running')}"
        )
        error.bookie_id = bookie_id
        raise error
    return BookieSpace(
        bookie_id=bookie_id,
        total_bytes=response.total_bytes or 0,
        free_bytes=response.free_bytes or 0,
    )
