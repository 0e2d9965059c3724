"""The shells of the real read cores: ranges of entries, and a reader that follows the writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from ledger_client.core.commands import (
    AskLac,
    AskPoll,
    AskRead,
    Command,
    Deliver,
    Failure,
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
from ledger_client.core.reader import RangeRead, ReadOptions
from ledger_client.core.replicas import Sticky
from metadata.model import LedgerMetadata
from tests.simulation.inner.bookie import PARKED_SECONDS, Entry
from tests.simulation.inner.network import Client
from wire.types import NO_ENTRY

if TYPE_CHECKING:
    from tests.simulation.inner.world import World

#: A moment longer than the bookie parks a question.
POLL_SECONDS = PARKED_SECONDS + 0.2


class RangeReader:
    """One read of a range for a client; `done` gets all of its entries, or why not."""

    def __init__(
        self,
        client: Client,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        done: Callable[[dict[int, Entry], Failure | None], None],
        *,
        sticky: Sticky | None = None,
    ) -> None:
        self._client = client
        self._done = done
        self._entries: dict[int, Entry] = {}
        parallel = client.world.plan.parallel_reads
        options = ReadOptions(
            entries_max=4, bytes_max=8, ahead_bytes=16, speculative_seconds=0.1, parallel=parallel
        )
        self._core = RangeRead(metadata, first=first, last=last, options=options, sticky=sticky)
        self.obey(self._core.start(client.now))

    def obey(self, commands: Sequence[Command]) -> None:
        client = self._client
        for command in commands:
            match command:
                case AskRead():
                    self._ask(command)
                case Deliver(_, _, parts):
                    for part in parts:
                        assert isinstance(part.data, dict)
                        for entry_id in part.entry_ids:
                            self._entries[entry_id] = part.data[entry_id]
                        client.later(
                            0.0,
                            lambda size=part.size: self.obey(  # type: ignore[misc]
                                self._core.on_consumed(size, client.now)
                            ),
                        )
                case ReadMetadata() if client.world.store.is_away:
                    client.later(0.01, lambda: self.obey(self._core.on_metadata_failed()))
                case ReadMetadata():
                    client.world.store.read(
                        client, lambda m: self.obey(self._core.on_metadata(m, client.now))
                    )
                case ReadEnded(failure):
                    self._done(self._entries, failure)
                case ReportCorruption() | MarkSlow():
                    pass
                case _:
                    raise AssertionError(command)
        deadline = self._core.deadline()
        if deadline is not None and not self._core.is_over:
            client.later(max(0.001, deadline - client.now), self._tick)

    def _tick(self) -> None:
        if not self._core.is_over:
            commands = self._core.tick(self._client.now)
            if commands:
                self.obey(commands)

    def _ask(self, ask: AskRead) -> None:
        client = self._client
        bookie = client.world.bookies[ask.bookie_id]

        def answered(
            outcome: Outcome, found: Sequence[tuple[int, Entry]] = (), lac: int = NO_ENTRY
        ) -> None:
            answer = ReadAnswer(
                request_id=ask.request_id,
                outcome=outcome,
                good=len(found),
                size=len(found),
                lac=lac,
                data=dict(found),
            )
            self.obey(self._core.on_answers([answer], client.now))

        client.world.network.ask(
            client,
            bookie,
            lambda reply: bookie.read_many(ask.entry_ids, reply),
            answered,
            kind="get",
            entry=ask.first,
        )


class FollowingReader(Client):
    """Reads what is confirmed, waits for news, and reads on, until the ledger is closed."""

    def __init__(self, world: World, name: str, *, polls: bool) -> None:
        super().__init__(world, name)
        self._polls = polls
        self._next = 0
        self._requests = count(1)
        self._sticky = Sticky(world.chance.randrange(8), world.plan.shape[0])
        self.is_done = False
        world.store.read(self, self._open)

    def _open(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self._lac = ReaderLac(metadata)
        self._show()
        self._go_on()

    def _show(self) -> None:
        self.world.history.emit("lac_shown", self.name, self._lac.lac)

    def _go_on(self) -> None:
        if self._next <= self._lac.lac:
            first, last = self._next, self._lac.lac

            def done(entries: dict[int, Entry], failure: Failure | None) -> None:
                for entry_id, entry in sorted(entries.items()):
                    self.world.history.emit("read", self.name, entry_id, entry.payload)
                if failure is None:
                    self._next = last + 1
                self._look_again()

            self.world.tell(f"{self.name} reads entries {first}..{last}")
            sticky = self._sticky if self.world.plan.sticky_reads else None
            RangeReader(self, self._metadata, first, last, done, sticky=sticky)
        else:
            self._look_again()

    def _look_again(self) -> None:
        if self._lac.is_closed and self._next > self._lac.lac:
            self.is_done = True
            return
        seconds = 5.0 if self.world.is_healed else 0.02
        self.later(seconds, lambda: self.world.store.read(self, self._fresh))

    def _fresh(self, metadata: LedgerMetadata) -> None:
        # A follower of the store may be behind; a handle does not go back.
        if not self._metadata.is_closed:
            self._metadata = metadata
        if self._lac.on_metadata(self._metadata):
            self._show()
        if self._lac.is_closed:
            self._go_on()
        elif self._polls:
            self._poll()
        else:
            self._ask_lac()

    def _ask_lac(self) -> None:
        core = LacRead(
            ledger_id=self._metadata.ledger_id,
            distribution=Distribution.of(self._metadata),
            ensemble=self._metadata.last_fragment.ensemble,
            request_ids=self._requests,
            above=self._lac.lac,
        )

        def obey(commands: Sequence[Command]) -> None:
            for command in commands:
                match command:
                    case AskLac():
                        ask(command)
                    case LacReadEnded(lac, _):
                        self._news(lac)
                    case _:
                        raise AssertionError(command)

        def ask(command: AskLac) -> None:
            bookie = self.world.bookies[command.bookie_id]

            def answered(outcome: Outcome, lac: int = NO_ENTRY) -> None:
                obey(core.on_answers([LacAnswer(command.request_id, outcome, lac)]))

            self.world.network.ask(
                self,
                bookie,
                lambda reply: bookie.read_lac(reply, fence=False),
                answered,
                kind="lac",
            )

        obey(core.start())

    def _poll(self) -> None:
        core = LongPoll(
            ledger_id=self._metadata.ledger_id,
            distribution=Distribution.of(self._metadata),
            ensemble=self._metadata.last_fragment.ensemble,
            previous_lac=self._lac.lac,
            request_ids=self._requests,
        )

        def obey(commands: Sequence[Command]) -> None:
            for command in commands:
                match command:
                    case AskPoll():
                        ask(command)
                    case PollEnded(lac):
                        self._news(lac)
                    case _:
                        raise AssertionError(command)

        def ask(command: AskPoll) -> None:
            bookie = self.world.bookies[command.bookie_id]

            def answered(outcome: Outcome, lac: int = NO_ENTRY) -> None:
                answer = PollAnswer(request_id=command.request_id, outcome=outcome, lac=lac)
                obey(core.on_answers([answer]))

            self.world.network.ask(
                self, bookie, lambda reply: bookie.poll(command.previous_lac, reply), answered,
                kind="poll", patience=POLL_SECONDS,
            )  # fmt: skip

        def watch() -> None:
            deadline = core.deadline()
            if deadline is not None:
                self.later(max(0.001, deadline - self.now), tick)

        def tick() -> None:
            obey(core.tick(self.now))
            watch()

        obey(core.start(self.now))
        watch()

    def _news(self, lac: int) -> None:
        if self._lac.on_lac(lac):
            self._show()
        self._go_on()
