"""Stories about reading: ranges, the LAC of an ensemble, and waiting at the tail."""

from __future__ import annotations

from ledger_client.core.commands import (
    AskLac,
    AskPoll,
    AskRead,
    Command,
    Deliver,
    LacAnswer,
    LacReadEnded,
    MarkSlow,
    Outcome,
    PollAnswer,
    PollEnded,
    ReadAnswer,
    ReadEnded,
    ReadMetadata,
    ReportCorruption,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.lac import LacRead, ReaderLac
from ledger_client.core.poll import LongPoll
from ledger_client.core.reader import RangeRead, ReadOptions, range_failure
from ledger_client.core.replicas import Sticky
from metadata.model import Fragment, LedgerMetadata
from tests.scenarios.runner import Arguments, bookie_ids, outcome_of
from tests.scenarios.writer_story import failure_text, new_metadata
from wire.types import BookieId


def metadata_of(arguments: Arguments) -> LedgerMetadata:
    """`E= Qw= Qa= [5:b0,b9,b2 ...] [end=9]`: a record, its later fragments, where it is closed."""
    metadata = new_metadata(arguments)
    for word in arguments.words:
        start, _, names = word.partition(":")
        if names:
            fragment = Fragment(int(start), bookie_ids(names))
            replacements = dict(enumerate(fragment.ensemble))
            metadata = metadata.with_ensemble_change(
                first_entry_id=int(start), replacements=replacements
            )
    if "end" in arguments.named:
        metadata = metadata.closed_at(last_entry_id=arguments.number("end"), length=0)
    return metadata


class ReaderStory:
    """`reader E= Qw= Qa= ...`, then `read FIRST LAST`."""

    def __init__(self, arguments: Arguments) -> None:
        self.metadata = metadata_of(arguments)
        self.now = 0.0
        sticky = arguments.named.get("sticky")
        self.sticky = Sticky(int(sticky), self.metadata.ensemble_size) if sticky else None
        last = [BookieId(name) for name in arguments.named.get("last", "").split(",") if name]
        self.last_choice = last
        self.options = ReadOptions(
            entries_max=arguments.number("entries", 100),
            bytes_max=arguments.number("bytes", 1000),
            ahead_bytes=arguments.number("ahead", 100_000),
            parallel="parallel" in arguments.words,
        )
        self.asked: dict[int, AskRead] = {}

    def obey(self, line: str) -> list[str]:
        arguments = Arguments.parse(line)
        return getattr(self, f"do_{arguments.verb}")(arguments)  # type: ignore[no-any-return]

    def order(self, slots: object, ensemble: object) -> list[int]:
        assert isinstance(slots, tuple | list)
        assert isinstance(ensemble, tuple)
        return sorted(slots, key=lambda slot: ensemble[slot] in self.last_choice)

    def do_bounds(self, arguments: Arguments) -> list[str]:
        """`bounds FIRST LAST lac=`: may this be read?"""
        first, last = map(int, arguments.words[:2])
        failure = range_failure(
            self.metadata, first=first, last=last, lac=arguments.number("lac", -1),
            unconfirmed="unconfirmed" in arguments.words,
        )  # fmt: skip
        return [failure_text(failure)]

    def do_read(self, arguments: Arguments) -> list[str]:
        first, last = map(int, arguments.words)
        self.asked = {}
        self.read = RangeRead(
            self.metadata, first=first, last=last, options=self.options, order=self.order,
            sticky=self.sticky,
        )  # fmt: skip
        return self.show(self.read.start(self.now))

    def do_answer(self, arguments: Arguments) -> list[str]:
        """`answer 1 2=timeout 3=2 4=2,corrupt`: all, an error, the first two, two and an error."""
        answers = []
        for word in arguments.in_order:
            number, _, rest = word.partition("=")
            request_id = int(number)
            asked = self.asked[request_id].count
            counted, _, outcome = rest.partition(",")
            if not rest:
                good, found = asked, Outcome.OK
            elif counted.isdigit():
                good, found = int(counted), outcome_of(outcome or "ok")
            else:
                good, found = 0, outcome_of(counted)
            answers.append(
                ReadAnswer(request_id=request_id, outcome=found, good=good, size=good * 10)
            )
        return self.show(self.read.on_answers(answers, self.now))

    def do_consumed(self, arguments: Arguments) -> list[str]:
        return self.show(self.read.on_consumed(int(arguments.words[0]), self.now))

    def do_tick(self, arguments: Arguments) -> list[str]:
        self.now += float(arguments.words[0])
        lines = self.show(self.read.tick(self.now))
        return [*lines, f"deadline {self.read.deadline()}"]

    def do_record(self, arguments: Arguments) -> list[str]:
        """`record E= ...`: what reading the metadata again found."""
        self.metadata = metadata_of(arguments)
        return self.show(self.read.on_metadata(self.metadata, self.now))

    def do_lost(self, _: Arguments) -> list[str]:
        """`lost`: the record could not be read again."""
        return self.show(self.read.on_metadata_failed())

    def do_gone(self, _: Arguments) -> list[str]:
        """`gone`: the record is not there any more."""
        return self.show(self.read.on_metadata_failed(is_gone=True))

    def show(self, commands: list[Command]) -> list[str]:
        return [self._line(command) for command in commands]

    def _line(self, command: Command) -> str:
        match command:
            case AskRead():
                self.asked[command.request_id] = command
                ids = command.entry_ids
                what = f"{ids[0]}..{ids[-1]}" if command.stride == 1 else " ".join(map(str, ids))
                return (
                    f"ask {command.request_id}: {what} of {command.bookie_id} in slot "
                    f"{command.slot}"
                )
            case Deliver(first, last, parts):
                how = "" if len(parts) == 1 else f" from {len(parts)} parts"
                return f"deliver {first}..{last}{how}"
            case ReportCorruption(entry_id, bookie_id):
                return f"report entry {entry_id} corrupt on {bookie_id}"
            case MarkSlow(bookie_id):
                return f"slow: {bookie_id}"
            case ReadMetadata():
                return "read the record again"
            case ReadEnded(failure):
                return f"ended {failure_text(failure)}"
        raise AssertionError(command)


class LacStory:
    """`lac E= Qw= Qa= ...`, then `ask`, or `poll PREVIOUS`."""

    def __init__(self, arguments: Arguments) -> None:
        self.metadata = metadata_of(arguments)
        self.distribution = Distribution.of(self.metadata)
        self.reader = ReaderLac(self.metadata)
        self.now = 0.0

    def obey(self, line: str) -> list[str]:
        arguments = Arguments.parse(line)
        return getattr(self, f"do_{arguments.verb}")(arguments)  # type: ignore[no-any-return]

    def do_ask(self, arguments: Arguments) -> list[str]:
        self.read = LacRead(
            ledger_id=self.metadata.ledger_id,
            distribution=self.distribution,
            ensemble=self.metadata.last_fragment.ensemble,
            request_ids=iter(range(1, 100)),
            fence="fence" in arguments.words,
            above=int(arguments.named["above"]) if "above" in arguments.named else None,
        )
        return self.show(self.read.start())

    def do_answer(self, arguments: Arguments) -> list[str]:
        """`answer 1=5 2=no-such-entry`: a LAC, or an outcome."""
        answers = []
        for word in arguments.in_order:
            number, _, found = word.partition("=")
            if found.lstrip("-").isdigit():
                answers.append(LacAnswer(int(number), lac=int(found)))
            else:
                answers.append(LacAnswer(int(number), outcome_of(found)))
        return self.show(self.read.on_answers(answers))

    def do_poll(self, arguments: Arguments) -> list[str]:
        self.long_poll = LongPoll(
            ledger_id=self.metadata.ledger_id,
            distribution=self.distribution,
            ensemble=self.metadata.last_fragment.ensemble,
            previous_lac=int(arguments.words[0]),
        )
        return self.show(self.long_poll.start(self.now))

    def do_polled(self, arguments: Arguments) -> list[str]:
        """`polled 1=5 2=6,entry 3=timeout`."""
        answers = []
        for word in arguments.in_order:
            number, _, found = word.partition("=")
            lac, _, entry = found.partition(",")
            if lac.lstrip("-").isdigit():
                answers.append(
                    PollAnswer(request_id=int(number), lac=int(lac), entry=entry or None)
                )
            else:
                answers.append(PollAnswer(request_id=int(number), outcome=outcome_of(lac)))
        return self.show(self.long_poll.on_answers(answers))

    def do_tick(self, arguments: Arguments) -> list[str]:
        self.now += float(arguments.words[0])
        lines = self.show(self.long_poll.tick(self.now))
        return [*lines, f"deadline {self.long_poll.deadline()}"]

    def do_shown(self, arguments: Arguments) -> list[str]:
        """`shown 7`: a bookie showed this LAC to the reader."""
        news = self.reader.on_lac(int(arguments.words[0]))
        return [f"lac {self.reader.lac}{', news' if news else ''}"]

    def do_record(self, arguments: Arguments) -> list[str]:
        news = self.reader.on_metadata(metadata_of(arguments))
        closed = " closed" if self.reader.is_closed else ""
        return [f"lac {self.reader.lac}{closed}{', news' if news else ''}"]

    def show(self, commands: list[Command]) -> list[str]:
        return [self._line(command) for command in commands]

    def _line(self, command: Command) -> str:
        match command:
            case AskLac(request_id, slot, bookie_id, fence):
                return f"{'fence' if fence else 'ask'} {request_id}: {bookie_id} in slot {slot}"
            case LacReadEnded(lac, failure):
                return f"lac {lac}, {failure_text(failure)}"
            case AskPoll(request_id, slot, bookie_id, previous_lac):
                return f"park {request_id}: above {previous_lac} at {bookie_id} in slot {slot}"
            case PollEnded(lac, entry, failure):
                brought = " with the entry" if entry is not None else ""
                return f"lac {lac}{brought}, {failure_text(failure)}"
        raise AssertionError(command)
