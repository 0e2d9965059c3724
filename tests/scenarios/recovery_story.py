"""Stories about recovery: the record, the answers, and what is written in the end."""

from __future__ import annotations

from ledger_client.core.commands import (
    AddAnswer,
    AskLac,
    AskRecoveryRead,
    ChooseReplacements,
    Command,
    Failure,
    FailureKind,
    FinishRecovery,
    LacAnswer,
    PackageRecovered,
    ReadLength,
    RecoveryEnded,
    RecoveryReadAnswer,
    SendAdd,
    StartRecovery,
)
from ledger_client.core.recovery import Recovery, RecoveryOptions
from metadata.model import LedgerState
from tests.scenarios.reader_story import metadata_of
from tests.scenarios.runner import Arguments, outcome_of, slots_text
from tests.scenarios.writer_story import failure_text
from wire.types import BookieId


class RecoveryStory:
    """`recovery E= Qw= Qa= [window=1] [sequential]`, then `start`."""

    def __init__(self, arguments: Arguments) -> None:
        self.metadata = metadata_of(arguments)
        if "in-recovery" in arguments.words:
            self.metadata = self.metadata.in_recovery()
        self.now = 0.0
        self.recovery = Recovery(
            self.metadata,
            RecoveryOptions(
                window=arguments.number("window", 1),
                window_max=arguments.number("window-max", 1),
                ask_all="sequential" not in arguments.words,
            ),
        )
        self.entries: dict[int, int] = {}  # request to entry

    def obey(self, line: str) -> list[str]:
        arguments = Arguments.parse(line)
        verb = arguments.verb.replace("-", "_")
        return getattr(self, f"do_{verb}")(arguments)  # type: ignore[no-any-return]

    def do_start(self, _: Arguments) -> list[str]:
        return self.show(self.recovery.start())

    def do_started(self, arguments: Arguments) -> list[str]:
        """`started [found]`: IN_RECOVERY by our hand, or found so."""
        if self.metadata.state is LedgerState.OPEN:
            self.metadata = self.metadata.in_recovery()
        return self.show(
            self.recovery.on_started(self.metadata, wrote="found" not in arguments.words)
        )

    def do_started_closed(self, arguments: Arguments) -> list[str]:
        closed = self.metadata.closed_at(last_entry_id=arguments.number("end"), length=0)
        return self.show(self.recovery.on_started(closed, wrote=False))

    def do_fenced(self, arguments: Arguments) -> list[str]:
        """`fenced 1=5 2=no-such-entry`: LACs, or outcomes."""
        answers = []
        for word in arguments.in_order:
            number, _, found = word.partition("=")
            if found.lstrip("-").isdigit():
                answers.append(LacAnswer(int(number), lac=int(found)))
            else:
                answers.append(LacAnswer(int(number), outcome_of(found)))
        return self.show(self.recovery.on_lac_answers(answers, self.now))

    def do_found(self, arguments: Arguments) -> list[str]:
        """`found 4 5=no-such-entry`: answers to reads; an entry's length is 10 per entry."""
        answers = []
        for word in arguments.in_order:
            number, _, outcome = word.partition("=")
            length = 10 * (self.entries[int(number)] + 1)
            answers.append(
                RecoveryReadAnswer(
                    request_id=int(number), outcome=outcome_of(outcome or "ok"), length=length,
                    payload=b"x",
                )
            )  # fmt: skip
        return self.show(self.recovery.on_read_answers(answers, self.now))

    def do_added(self, arguments: Arguments) -> list[str]:
        answers = []
        for word in arguments.in_order:
            number, _, outcome = word.partition("=")
            answers.append(AddAnswer(int(number), outcome_of(outcome or "ok")))
        return self.show(self.recovery.on_add_answers(answers, self.now))

    def do_chosen(self, arguments: Arguments) -> list[str]:
        """`chosen 1=b7`, or nothing."""
        chosen = {int(slot): BookieId(name) for slot, name in arguments.named.items()}
        return self.show(self.recovery.on_replacements(chosen, self.now))

    def do_length(self, arguments: Arguments) -> list[str]:
        return self.show(self.recovery.on_length(int(arguments.words[0])))

    def do_length_failed(self, _: Arguments) -> list[str]:
        failure = Failure(FailureKind.NOT_READ, "no replica could be read")
        return self.show(self.recovery.on_length_failed(failure))

    def do_finished(self, arguments: Arguments) -> list[str]:
        """`finished [end= length=]`: the store closed it so; another client's end, if given."""
        finish = self.finish
        if "end" in arguments.named:
            finish = FinishRecovery(arguments.number("end"), arguments.number("length"), ())
        closed = self.metadata.closed_by_recovery(
            last_entry_id=finish.last_entry_id, length=finish.length, fragments=finish.fragments
        )
        shown = [f"record {f.first_entry_id}: {' '.join(f.ensemble)}" for f in closed.fragments]
        return shown + self.show(self.recovery.on_finished(closed))

    def do_store_failed(self, arguments: Arguments) -> list[str]:
        kind = FailureKind[arguments.words[0].upper().replace("-", "_")]
        return self.show(self.recovery.on_metadata_failed(kind))

    def show(self, commands: list[Command]) -> list[str]:
        return [self._line(command) for command in commands]

    def _line(self, command: Command) -> str:
        match command:
            case StartRecovery():
                return "record IN_RECOVERY"
            case AskLac(request_id, slot, bookie_id, fence):
                assert fence
                return f"fence {request_id}: {bookie_id} in slot {slot}"
            case AskRecoveryRead(request_id, slot, bookie_id, entry_id):
                self.entries[request_id] = entry_id
                return f"read {request_id}: {entry_id} of {bookie_id} in slot {slot}"
            case PackageRecovered(first, lac, entries):
                lengths = " ".join(str(length) for length, _ in entries)
                return f"package {first}..{first + len(entries) - 1} lac {lac} lengths {lengths}"
            case SendAdd(request_id, slot, bookie_id, first, last):
                return f"send {request_id}: {first}..{last} to {bookie_id} in slot {slot}"
            case ChooseReplacements():
                delay = f" after {command.delay_seconds:g} s" if command.delay_seconds else ""
                return f"choose for {slots_text(dict(command.failed))}{delay}"
            case ReadLength(entry_id):
                return f"read the length at {entry_id}"
            case FinishRecovery(last, length, fragments):
                self.finish = command
                shown = "".join(f", {f.first_entry_id}: {' '.join(f.ensemble)}" for f in fragments)
                return f"record CLOSED at {last} length {length}{shown}"
            case RecoveryEnded(metadata, failure):
                if metadata is None:
                    return f"ended {failure_text(failure)}"
                return f"ended: closed at {metadata.last_entry_id} length {metadata.length}"
        raise AssertionError(command)
