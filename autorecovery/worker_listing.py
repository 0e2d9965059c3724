"""Asking a bookie which entries of a ledger it has."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ledger_client.core.commands import Outcome
from ledger_client.environment import Environment
from ledger_client.requests import Mailbox, Question
from wire.availability import Availability, decode_availability
from wire.errors import ProtocolError
from wire.messages import ListEntriesRequest, ListEntriesResponse
from wire.types import BookieId, LedgerId

#: A list of a large ledger takes its time.
_SECONDS: Final = 30.0
_CANNOT: Final = frozenset({Outcome.BAD_REQUEST, Outcome.BAD_VERSION, Outcome.ILLEGAL_OP})


class Listed(Enum):
    """An answer that is no list."""

    NOTHING = auto()  # it does not know the ledger
    CANNOT = auto()  # it does not understand the question
    NO_ANSWER = auto()  # it may be asked again


async def list_entries(
    client: Environment, bookie_id: BookieId, ledger_id: LedgerId
) -> Availability | Listed:
    mail = Mailbox()
    question = Question(
        request_id=next(client.request_ids),
        sink=mail.take,
        seconds=_SECONDS,
        message=ListEntriesRequest(ledger_id=ledger_id),
    )
    client.pool.ask(bookie_id, question)
    (answer,) = await mail.wait()
    if answer.outcome.is_missing:
        return Listed.NOTHING
    if answer.outcome in _CANNOT:
        return Listed.CANNOT
    response = answer.content
    if answer.outcome is not Outcome.OK or not isinstance(response, ListEntriesResponse):
        return Listed.NO_ANSWER
    try:
        return decode_availability(response.availability or b"")
    except ProtocolError:
        return Listed.CANNOT
