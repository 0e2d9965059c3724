"""Asking the bookies of a ledger that is still open how far it is confirmed."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from ledger_client.core.commands import (
    AskLac,
    AskPoll,
    Command,
    LacAnswer,
    LacReadEnded,
    Outcome,
    PollAnswer,
    PollEnded,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.lac import LacRead
from ledger_client.core.poll import LongPoll
from ledger_client.environment import Access, Environment
from ledger_client.errors import ClientClosedError, error_of
from ledger_client.health import CorruptCopy
from ledger_client.requests import REQUEST_SECONDS, Answer, Mailbox, Question
from metadata.model import LedgerMetadata
from wire.entry import Entry, decode_entry, decode_lac
from wire.errors import CorruptionError
from wire.messages import ReadLacRequest, ReadLacResponse, ReadRequest, ReadResponse
from wire.types import LAST_ENTRY, NO_ENTRY, BookieId


async def read_lac(
    environment: Environment, access: Access, metadata: LedgerMetadata, mail: Mailbox
) -> int:
    """The LAC that enough bookies know of."""
    core = LacRead(
        ledger_id=access.ledger_id,
        distribution=Distribution.of(metadata),
        ensemble=metadata.last_fragment.ensemble,
        request_ids=environment.request_ids,
    )
    for command in core.start():
        assert isinstance(command, AskLac)
        message = ReadLacRequest(ledger_id=access.ledger_id)
        question = Question(request_id=command.request_id, sink=mail.take, message=message)
        environment.pool.ask(command.bookie_id, question)
    while True:
        answers = [_lac_answer(answer, access) for answer in await mail.wait()]
        _check_open(mail, access)
        for ended in core.on_answers(answers):
            assert isinstance(ended, LacReadEnded)
            if ended.failure is not None:
                raise error_of(environment.explained(ended.failure))
            return ended.lac


def _lac_answer(answer: Answer, access: Access) -> LacAnswer:
    """The higher of what was told explicitly and what the last entry carries."""
    request_id, outcome, response = answer
    if not isinstance(response, ReadLacResponse):
        return LacAnswer(request_id, outcome)
    ledger_id, digest, lac = access.ledger_id, access.digest, NO_ENTRY
    try:
        if response.lac_body:
            # Java says EIO beside an explicit LAC when there is no entry yet.
            outcome = Outcome.OK
            lac = decode_lac(response.lac_body, ledger_id=ledger_id, digest=digest)
        if response.last_entry_body:
            entry = decode_entry(
                response.last_entry_body, ledger_id=ledger_id, entry_id=None, digest=digest
            )
            lac = max(lac, entry.lac)
    except CorruptionError:
        return LacAnswer(request_id, Outcome.CORRUPT)
    return LacAnswer(request_id, outcome, lac)


#: How long a bookie parks a poll. Java's clients give up after 5 s, so bookies are used to less.
PARK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class News:
    """A higher LAC, and the entry behind the old one if the bookie had it at hand."""

    lac: int
    entry: Entry | None = None


async def poll_lac(
    environment: Environment,
    access: Access,
    metadata: LedgerMetadata,
    previous_lac: int,
    mail: Mailbox,
) -> News | None:
    """Wait for a LAC above the previous one: None if there is no news yet.

    Whoever wakes the mailbox ends the wait early.
    """
    core = LongPoll(
        ledger_id=access.ledger_id,
        distribution=Distribution.of(metadata),
        ensemble=metadata.last_fragment.ensemble,
        previous_lac=previous_lac,
        request_ids=environment.request_ids,
    )
    asked: dict[int, BookieId] = {}
    commands = core.start(trio.current_time())
    while True:
        for command in commands:
            match command:
                case AskPoll():
                    asked[command.request_id] = command.bookie_id
                    _ask_poll(environment, access, command, mail)
                case PollEnded(lac, entry, failure):
                    if failure is not None:
                        raise error_of(environment.explained(failure))
                    assert entry is None or isinstance(entry, Entry)
                    return News(lac, entry) if lac > previous_lac else None
                case _:
                    raise AssertionError(command)
        deadline = core.deadline()
        answers = await mail.wait(deadline)
        _check_open(mail, access)
        now = trio.current_time()
        if not answers and (deadline is None or now < deadline):
            return None  # woken: the record has news
        found: list[PollAnswer] = []
        for answer in answers:
            bookie_id = asked.get(answer.request_id)
            if bookie_id is not None:  # else it belongs to an earlier poll of this mailbox
                found.append(_poll_answer(environment, access, answer, previous_lac, bookie_id))
        commands = [*core.on_answers(found), *_unless_over(core, now)]


def _unless_over(core: LongPoll, now: float) -> list[Command]:
    return [] if core.is_over else core.tick(now)


def _ask_poll(environment: Environment, access: Access, ask: AskPoll, mail: Mailbox) -> None:
    message = ReadRequest(
        ledger_id=access.ledger_id,
        entry_id=LAST_ENTRY,
        previous_lac=ask.previous_lac,
        timeout_ms=int(PARK_SECONDS * 1000),
        piggyback=True,
    )
    question = Question(
        request_id=ask.request_id,
        sink=mail.take,
        message=message,
        seconds=PARK_SECONDS + REQUEST_SECONDS,
    )
    environment.pool.ask(ask.bookie_id, question)


def _poll_answer(
    environment: Environment,
    access: Access,
    answer: Answer,
    previous_lac: int,
    bookie_id: BookieId,
) -> PollAnswer:
    """The LAC that a bookie shows, with the entry that it delivers if that one is good."""
    request_id, outcome, response = answer
    if not isinstance(response, ReadResponse) or response.max_lac is None:
        return PollAnswer(request_id=request_id, outcome=outcome)
    entry: Entry | None = None
    entry_id = previous_lac + 1
    if response.body is not None and response.entry_id == entry_id:
        try:
            entry = decode_entry(
                bytes(response.body),
                ledger_id=access.ledger_id,
                entry_id=entry_id,
                digest=access.digest,
            )
        except CorruptionError:
            # Rot in its copy says nothing about the LAC; the entry is read from another one.
            environment.on_corruption(CorruptCopy(access.ledger_id, entry_id, bookie_id))
    return PollAnswer(request_id=request_id, outcome=outcome, lac=response.max_lac, entry=entry)


def _check_open(mail: Mailbox, access: Access) -> None:
    if mail.is_closed:
        raise ClientClosedError(f"ledger {access.ledger_id}: the client was closed meanwhile")
