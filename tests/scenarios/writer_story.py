"""Stories about the writer: a small store and request numbers by batch and slot."""

from __future__ import annotations

from ledger_client.core.commands import (
    AddAnswer,
    ChangeEnsemble,
    CloseEnded,
    CloseLedger,
    Command,
    Confirm,
    FailAdds,
    Failure,
    FailureKind,
    ForceEnded,
    Package,
    RefuseAdd,
    RetryLater,
    SendAdd,
    SendForce,
    SendLac,
)
from ledger_client.core.options import ChangeMode, StormLimits, WriterOptions
from ledger_client.core.writer import Writer
from metadata.model import LedgerMetadata, new_ledger
from tests.scenarios.runner import Arguments, bookie_ids, outcome_of, slots_text
from wire.types import BookieId, DigestType, LedgerId


def failure_text(failure: Failure | None) -> str:
    return "well" if failure is None else f"{failure.kind.name}: {failure.message}"


def new_metadata(arguments: Arguments) -> LedgerMetadata:
    ensemble_size = arguments.number("E", 3)
    names = arguments.named.get("bookies", ",".join(f"b{i}" for i in range(ensemble_size)))
    return new_ledger(
        ledger_id=LedgerId(1),
        ensemble=bookie_ids(names),
        write_quorum=arguments.number("Qw", ensemble_size),
        ack_quorum=arguments.number("Qa", 2),
        digest_type=DigestType.CRC32C,
        password=b"",
    )


class WriterStory:
    """`writer E= Qw= Qa= [mode=] [deferred] [timeout=] [queue=] [racks=b0:x,...]`."""

    def __init__(self, arguments: Arguments) -> None:
        self.metadata = new_metadata(arguments)
        named = arguments.named
        self.racks = dict(pair.split(":") for pair in named.get("racks", "").split(",") if pair)
        self.racks_min = arguments.number("racks_min", 0)
        self.now = 0.0
        self.writer = Writer(
            self.metadata,
            WriterOptions(
                change_mode=ChangeMode[named.get("mode", "immediate").upper()],
                deferred_sync="deferred" in arguments.words,
                quorum_timeout_seconds=float(named["timeout"]) if "timeout" in named else None,
                lac_idle_seconds=float(named["idle"]) if "idle" in named else None,
                queue_bytes_max=arguments.number("queue", 1 << 20),
                storm=StormLimits(rounds_max=arguments.number("rounds", 16)),
            ),
            spread=self._is_spread if self.racks_min else None,
        )

    def _is_spread(self, bookies: object) -> bool:
        assert isinstance(bookies, list)
        return len({self.racks[bookie] for bookie in bookies}) >= self.racks_min

    # ------------------------------------------------------------------ commands of the story

    def obey(self, line: str) -> list[str]:
        arguments = Arguments.parse(line)
        verb = arguments.verb.replace("-", "_")
        return getattr(self, f"do_{verb}")(arguments)  # type: ignore[no-any-return]

    def do_add(self, arguments: Arguments) -> list[str]:
        """`add COUNT [size=10]`"""
        count = int(arguments.words[0]) if arguments.words else 1
        size = arguments.number("size", 10) * count
        return self.show(self.writer.add(count=count, size=size, now=self.now))

    def do_add_given(self, arguments: Arguments) -> list[str]:
        """`add-given ID ID ...`"""
        ids = [int(word) for word in arguments.words]
        return self.show(self.writer.add_given(ids, [10] * len(ids), now=self.now))

    def do_answer(self, arguments: Arguments) -> list[str]:
        """`answer 1 2=timeout 3[0,1]`: requests, with an outcome or the entries acknowledged."""
        answers = []
        for word in arguments.in_order:
            number, _, outcome = word.partition("=")
            number, _, entries = number.partition("[")
            ids = [int(text) for text in entries.rstrip("]").split(",")] if entries else None
            answers.append(AddAnswer(int(number), outcome_of(outcome or "ok"), ids))
        return self.show(self.writer.on_answers(answers, self.now))

    def do_changed(self, arguments: Arguments) -> list[str]:
        """`changed 1=b7`: the store took these replacements at LAC + 1."""
        if arguments.named:
            self.metadata = self.metadata.with_ensemble_change(
                first_entry_id=self.writer.lac + 1,
                replacements={int(s): BookieId(b) for s, b in arguments.named.items()},
            )
        shown = [
            f"record {fragment.first_entry_id}: {' '.join(fragment.ensemble)}"
            for fragment in self.metadata.fragments
        ]
        return shown + self.show(self.writer.on_ensemble_changed(self.metadata, self.now))

    def do_found(self, arguments: Arguments) -> list[str]:
        """`found in-recovery|closed`: the change met this record."""
        found = self.metadata.in_recovery()
        if arguments.words[0] == "closed":
            found = found.closed_by_recovery(last_entry_id=self.writer.lac, length=0)
        return self.show(self.writer.on_ensemble_changed(found, self.now))

    def do_change_failed(self, arguments: Arguments) -> list[str]:
        kind = FailureKind[arguments.words[0].upper().replace("-", "_")]
        return self.show(self.writer.on_change_failed(kind))

    def do_retry(self, _: Arguments) -> list[str]:
        return self.show(self.writer.on_retry())

    def do_tick(self, arguments: Arguments) -> list[str]:
        """`tick SECONDS`: so much time passes."""
        self.now += float(arguments.words[0])
        return self.show(self.writer.tick(self.now))

    def do_force(self, arguments: Arguments) -> list[str]:
        return self.show(self.writer.force(int(arguments.words[0])))

    def do_forced(self, arguments: Arguments) -> list[str]:
        """`forced 4 5=timeout`: answers to force requests."""
        lines: list[str] = []
        for word in arguments.words:
            lines += self.show(self.writer.on_force_answer(int(word), outcome_of("ok")))
        for number, outcome in arguments.named.items():
            lines += self.show(self.writer.on_force_answer(int(number), outcome_of(outcome)))
        return lines

    def do_lost(self, arguments: Arguments) -> list[str]:
        return self.show(self.writer.on_connection_lost(BookieId(arguments.words[0])))

    def do_close(self, _: Arguments) -> list[str]:
        return self.show(self.writer.close())

    def do_closed(self, _: Arguments) -> list[str]:
        return self.show(self.writer.on_closed())

    def do_close_failed(self, arguments: Arguments) -> list[str]:
        kind = FailureKind[arguments.words[0].upper().replace("-", "_")]
        return self.show(self.writer.on_close_failed(kind))

    def do_show(self, _: Arguments) -> list[str]:
        writer = self.writer
        wait = ", callers wait" if writer.is_full else ""
        return [
            f"lac {writer.lac} confirmed {writer.confirmed} pushed {writer.last_pushed} "
            f"queued {writer.queued_bytes} bytes{wait}; deadline {writer.deadline()}"
        ]

    # ------------------------------------------------------------------ what happened

    def show(self, commands: list[Command]) -> list[str]:
        return [self._line(command) for command in commands]

    def _line(self, command: Command) -> str:
        match command:
            case Package(first, last, lac, length):
                return f"package {first}..{last} lac {lac} length {length}"
            case SendAdd(request_id, slot, bookie_id, first, last):
                return f"send {request_id}: {first}..{last} to {bookie_id} in slot {slot}"
            case Confirm(through):
                return f"confirm through {through}"
            case FailAdds(failure):
                return f"fail adds, {failure_text(failure)}"
            case RefuseAdd(failure, entry_ids):
                return f"refuse {' '.join(map(str, entry_ids)) or 'all'}, {failure_text(failure)}"
            case ChangeEnsemble():
                delay = f" after {command.delay_seconds:g} s" if command.delay_seconds else ""
                return (
                    f"change at {command.first_entry_id}: {slots_text(dict(command.failed))}"
                    f" avoid {','.join(sorted(command.avoid))}{delay}"
                )
            case RetryLater(delay_seconds):
                return f"retry after {delay_seconds:g} s"
            case SendLac(slot, bookie_id, lac):
                return f"tell lac {lac} to {bookie_id} in slot {slot}"
            case SendForce(request_id, slot, bookie_id):
                return f"force {request_id}: {bookie_id} in slot {slot}"
            case ForceEnded(force_id, failure):
                return f"force {force_id} ended {failure_text(failure)}"
            case CloseLedger(last, length):
                return f"close at {last} length {length}"
            case CloseEnded(last, length, failure):
                return f"closed at {last} length {length}: {failure_text(failure)}"
        raise AssertionError(command)
