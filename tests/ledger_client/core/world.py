"""A writer, recovering clients and bookies in one process, driven by one seed.

The cores are real; bookies are dictionaries that fence; the network delivers in any order, loses
requests or answers, and delivers requests after their sender has given up on them. The record
changes by the updates that the shells use. `check` looks at everything, as nobody else can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from ledger_client.core.commands import (
    AddAnswer,
    AskLac,
    AskRecoveryRead,
    ChangeEnsemble,
    ChooseReplacements,
    CloseEnded,
    CloseLedger,
    Command,
    Confirm,
    FailAdds,
    FailureKind,
    FinishRecovery,
    LacAnswer,
    Outcome,
    Package,
    PackageRecovered,
    ReadLength,
    RecoveryEnded,
    RecoveryReadAnswer,
    RefuseAdd,
    SendAdd,
    StartRecovery,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.options import WriterOptions
from ledger_client.core.placement import Cluster, DefaultPolicy, choose_replacements
from ledger_client.core.recovery import Recovery, RecoveryOptions
from ledger_client.core.writer import Writer
from metadata import update
from metadata.model import LedgerMetadata, new_ledger
from wire.errors import FencedError, LedgerError
from wire.types import NO_ENTRY, BookieId, DigestType, LedgerId


def size_of(entry_id: int) -> int:
    return entry_id % 7 + 1


def length_at(entry_id: int) -> int:
    return sum(size_of(e) for e in range(entry_id + 1))


@dataclass
class Bookie:
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)  # id to (LAC, length)
    is_fenced: bool = False

    @property
    def lac(self) -> int:
        return max((lac for lac, _ in self.entries.values()), default=NO_ENTRY)


class World:
    def __init__(self, seed: int, shape: tuple[int, int, int], *, spares: int = 3) -> None:
        self.chance = Random(seed)
        names = [BookieId(f"b{i}") for i in range(shape[0] + spares)]
        self.bookies = {name: Bookie() for name in names}
        self.metadata: LedgerMetadata = new_ledger(
            ledger_id=LedgerId(1), ensemble=names[: shape[0]], write_quorum=shape[1],
            ack_quorum=shape[2], digest_type=DigestType.CRC32C, password=b"",
        )  # fmt: skip
        self.distribution = Distribution.of(self.metadata)
        self.loss = 0.0
        #: What is on its way, with a name such as `W add b0` or `R1 read b2 answer`.
        self.network: list[tuple[str, Callable[[], None]]] = []
        self.lacs_shown: list[int] = []
        self.ends: list[LedgerMetadata] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if not self.network:
                return
            at = self.chance.randrange(len(self.network))
            self.network[at], self.network[-1] = self.network[-1], self.network[at]
            self.network.pop()[1]()

    def deliver(self, *names: str) -> None:
        """Let these arrive, in this order; of several with one name the oldest."""
        for name in names:
            self.take(name)()

    def round_trip(self, *names: str) -> None:
        for name in names:
            self.deliver(name, f"{name} answer")

    def take(self, name: str) -> Callable[[], None]:
        """Take the oldest of this name out of the network, lost unless it is called."""
        at = next((i for i, (other, _) in enumerate(self.network) if other == name), None)
        assert at is not None, f"{name} is not among {[other for other, _ in self.network]}"
        return self.network.pop(at)[1]

    def send(self, name: str, message: Callable[[], None]) -> None:
        self.network.append((name, message))

    def request(
        self, name: str, act: Callable[[], Callable[[], None]], give_up: Callable[[], None]
    ) -> None:
        """Carry a request to a bookie and its answer back, or fail at either."""

        def arrive() -> None:
            if self.chance.random() >= self.loss:
                self.send(f"{name} answer", act())
                return
            self.send(f"{name} timeout", give_up)
            if self.chance.random() < 0.7:
                self.send(f"{name} late", act_only)

        def act_only() -> None:
            act()  # late, or its answer is lost

        self.send(name, arrive)

    def replacements(
        self, ensemble: tuple[BookieId, ...], failed: dict[int, BookieId]
    ) -> dict[int, BookieId]:
        return choose_replacements(
            DefaultPolicy(), Cluster(frozenset(self.bookies)), ensemble=ensemble, failed=failed,
            chance=self.chance,
        )  # fmt: skip

    def store(self, change: update.LedgerUpdate) -> LedgerMetadata:
        target = change.apply(self.metadata)
        self.metadata = target or self.metadata
        return self.metadata

    def add(self, bookie: Bookie, entries: list[tuple[int, int, int]], recovery: bool) -> Outcome:
        if bookie.is_fenced and not recovery:
            return Outcome.FENCED
        for entry_id, lac, length in entries:
            bookie.entries[entry_id] = (lac, length)
            self.lacs_shown.append(lac)
        return Outcome.OK

    # ------------------------------------------------------------------ what must hold

    def check(self, writer: WriterClient) -> None:
        end = self.metadata.last_entry_id
        assert end is not None
        assert end >= writer.confirmed, "I4: nothing that was confirmed is cut off"
        assert all(lac <= end for lac in self.lacs_shown), "I7: no LAC was shown beyond the end"
        for metadata in self.ends:
            assert metadata.is_closed_at(last_entry_id=end, length=self.metadata.length), "I6"
        assert self.metadata.length == length_at(end), "I10"
        for entry_id in range(end + 1):
            ensemble = self.metadata.fragment_of(entry_id).ensemble
            slots = self.distribution.write_set(entry_id)
            copies = sum(entry_id in self.bookies[ensemble[slot]].entries for slot in slots)
            assert copies >= self.metadata.ack_quorum, f"I9: entry {entry_id} has {copies} copies"


class WriterClient:
    def __init__(self, world: World) -> None:
        self.world = world
        self.core = Writer(world.metadata, WriterOptions(lac_idle_seconds=None))
        self.confirmed = NO_ENTRY
        self.packages: dict[int, tuple[int, int]] = {}  # id to (LAC, length)
        self.has_failed = False

    def append(self, count: int) -> None:
        first = self.core.last_pushed + 1
        size = sum(size_of(e) for e in range(first, first + count))
        self.obey(self.core.add(count=count, size=size, now=0.0))

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Package(first, last, lac, length):
                    for entry_id in range(first, last + 1):
                        length += size_of(entry_id)
                        self.packages[entry_id] = (lac, length)
                case SendAdd():
                    self.send(command)
                case Confirm(through):
                    assert not self.has_failed, "I3"
                    assert through > self.confirmed
                    self.confirmed = through
                case FailAdds():
                    self.has_failed = True
                case ChangeEnsemble():
                    self.world.send("W change", partial(self.change, command))
                case CloseLedger():
                    self.world.send("W close", partial(self.close, command))
                case RefuseAdd() | CloseEnded():
                    pass
                case _:
                    raise AssertionError(command)

    def send(self, send: SendAdd) -> None:
        world = self.world
        held = world.distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        entries = [(entry_id, *self.packages[entry_id]) for entry_id in held]

        def answer(outcome: Outcome) -> None:
            self.obey(self.core.on_answers([AddAnswer(send.request_id, outcome)], 0.0))

        def act() -> Callable[[], None]:
            bookie = world.bookies[send.bookie_id]
            return partial(answer, world.add(bookie, entries, recovery=False))

        world.request(f"W add {send.bookie_id}", act, partial(answer, Outcome.TIMEOUT))

    def change(self, command: ChangeEnsemble) -> None:
        world, failed = self.world, dict(command.failed)
        chosen = world.replacements(self.core.ensemble, failed)
        wanted = update.ChangeEnsemble(
            first_entry_id=command.first_entry_id, failed=failed, replacements=chosen
        )
        try:
            commands = self.core.on_ensemble_changed(world.store(wanted), 0.0)
        except FencedError:
            commands = self.core.on_change_failed(FailureKind.FENCED)
        except update.LedgerClosedError:
            commands = self.core.on_change_failed(FailureKind.LEDGER_CLOSED)
        self.obey(commands)

    def close(self, command: CloseLedger) -> None:
        wanted = update.Close(last_entry_id=command.last_entry_id, length=command.length)
        try:
            self.world.ends.append(self.world.store(wanted))
            commands = self.core.on_closed()
        except FencedError:
            commands = self.core.on_close_failed(FailureKind.FENCED)
        except LedgerError:
            commands = self.core.on_close_failed(FailureKind.METADATA_CONFLICT)
        self.obey(commands)


class RecoveringClient:
    def __init__(
        self, world: World, options: RecoveryOptions | None = None, name: str = "R1"
    ) -> None:
        self.world = world
        self.name = name
        self.core = Recovery(world.metadata, options)
        self.is_dead = False
        self.failed = False
        self.packages: dict[int, tuple[int, int]] = {}
        self.obey(self.core.start())

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case StartRecovery():
                    self.world.send(f"{self.name} start", self.start)
                case AskLac():
                    self.fence(command)
                case AskRecoveryRead():
                    self.read(command)
                case PackageRecovered(first, lac, entries):
                    for entry_id, (length, _) in enumerate(entries, first):
                        self.packages[entry_id] = (lac, length)
                case SendAdd():
                    self.send(command)
                case ChooseReplacements():
                    self.world.send(f"{self.name} choose", partial(self.choose, command))
                case ReadLength(entry_id):
                    self.obey(self.core.on_length(length_at(entry_id)))
                case FinishRecovery():
                    self.world.send(f"{self.name} finish", partial(self.finish, command))
                case RecoveryEnded(metadata, _):
                    self.failed = metadata is None
                    if metadata is not None:
                        self.world.ends.append(metadata)
                case _:
                    raise AssertionError(command)

    def start(self) -> None:
        if self.is_dead:
            return
        before = self.world.metadata
        after = self.world.store(update.StartRecovery())
        self.obey(self.core.on_started(after, wrote=after is not before))

    def fence(self, ask: AskLac) -> None:
        def answer(outcome: Outcome, lac: int) -> None:
            if not self.is_dead:
                answers = [LacAnswer(ask.request_id, outcome, lac)]
                self.obey(self.core.on_lac_answers(answers, 0.0))

        def act() -> Callable[[], None]:
            bookie = self.world.bookies[ask.bookie_id]
            bookie.is_fenced = True
            outcome = Outcome.OK if bookie.entries else Outcome.NO_SUCH_LEDGER
            return partial(answer, outcome, bookie.lac)

        name = f"{self.name} fence {ask.bookie_id}"
        self.world.request(name, act, partial(answer, Outcome.TIMEOUT, NO_ENTRY))

    def read(self, ask: AskRecoveryRead) -> None:
        def answer(outcome: Outcome, length: int) -> None:
            if not self.is_dead:
                found = RecoveryReadAnswer(
                    request_id=ask.request_id, outcome=outcome, length=length
                )
                self.obey(self.core.on_read_answers([found], 0.0))

        def act() -> Callable[[], None]:
            bookie = self.world.bookies[ask.bookie_id]
            bookie.is_fenced = True
            if ask.entry_id not in bookie.entries:
                return partial(answer, Outcome.NO_SUCH_ENTRY, 0)
            return partial(answer, Outcome.OK, bookie.entries[ask.entry_id][1])

        name = f"{self.name} read {ask.bookie_id}"
        self.world.request(name, act, partial(answer, Outcome.TIMEOUT, 0))

    def send(self, send: SendAdd) -> None:
        world = self.world
        held = world.distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        entries = [(entry_id, *self.packages[entry_id]) for entry_id in held]

        def answer(outcome: Outcome) -> None:
            if not self.is_dead:
                answers = [AddAnswer(send.request_id, outcome)]
                self.obey(self.core.on_add_answers(answers, 0.0))

        def act() -> Callable[[], None]:
            bookie = world.bookies[send.bookie_id]
            return partial(answer, world.add(bookie, entries, recovery=True))

        world.request(f"{self.name} add {send.bookie_id}", act, partial(answer, Outcome.TIMEOUT))

    def choose(self, command: ChooseReplacements) -> None:
        if not self.is_dead:
            chosen = self.world.replacements(command.ensemble, dict(command.failed))
            self.obey(self.core.on_replacements(chosen, 0.0))

    def finish(self, command: FinishRecovery) -> None:
        if self.is_dead:
            return
        wanted = update.FinishRecovery(
            last_entry_id=command.last_entry_id, length=command.length, fragments=command.fragments
        )
        self.obey(self.core.on_finished(self.world.store(wanted)))
