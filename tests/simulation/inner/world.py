"""One run of the inner ring: build what the plan says, let faults act, heal, demand the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from ledger_client.core.placement import Cluster, DefaultPolicy, choose_replacements
from metadata.model import new_ledger
from tests.simulation.agenda import Agenda
from tests.simulation.history import History, ViolationError
from tests.simulation.inner.bookie import ModelBookie
from tests.simulation.inner.network import Client, Network
from tests.simulation.inner.reader import FollowingReader
from tests.simulation.inner.recoverer import RecoveringClient
from tests.simulation.inner.repairer import Repairer
from tests.simulation.inner.store import ModelStore
from tests.simulation.inner.writer import WriterClient, size_of
from tests.simulation.invariants import checkers_for
from tests.simulation.plan import FAULT_SECONDS, Plan
from wire.types import BookieId, DigestType, LedgerId

#: Far beyond what any orderly end needs, in virtual time.
HEALED_SECONDS: Final = 300.0


class World:
    size_of = staticmethod(size_of)  # of an entry's payload

    def __init__(
        self, plan: Plan, *, prefix: Callable[[World], None] | None = None, tells: bool = False
    ) -> None:
        self.plan = plan
        self._prefix = prefix
        #: Whether a client took part that writes a LAC of its own, as Apache's does in recovery.
        self.has_advancing = False
        self.off_script: str | None = None  # what a script waited for in vain
        self.chance = Random(f"world {plan.seed}")
        self.agenda = Agenda()
        self.history = History()
        self.story: list[str] = []
        self._tells = tells
        self.is_healed = False
        size, write_quorum, ack_quorum = plan.shape
        names = [BookieId(f"b{number}") for number in range(size + plan.spares)]
        self.bookies = {name: ModelBookie(self, name) for name in names}
        metadata = new_ledger(
            ledger_id=LedgerId(1), ensemble=names[:size], write_quorum=write_quorum,
            ack_quorum=ack_quorum, digest_type=DigestType.CRC32C, password=b"",
        )  # fmt: skip
        self.store = ModelStore(self, metadata)
        self.network = Network(self)
        self.writer = WriterClient(self)
        self.clients: list[Client] = [self.writer]
        self.readers: list[FollowingReader] = []
        self.recoverers: list[RecoveringClient] = []
        self.history.watch(checkers_for(self))

    def tell(self, line: str) -> None:
        if self._tells:
            self.story.append(f"{self.agenda.now:8.4f}  {line}")

    # ------------------------------------------------------------------ what clients share

    def replacements(
        self,
        ensemble: Sequence[BookieId],
        failed: Mapping[int, BookieId],
        avoid: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        live = frozenset(
            name
            for name, bookie in self.bookies.items()
            if bookie.is_up and not bookie.is_read_only
        )
        return choose_replacements(
            DefaultPolicy(), Cluster(live), ensemble=ensemble, failed=failed, chance=self.chance,
            avoid=avoid,
        )  # fmt: skip

    def connection_lost(self, name: BookieId) -> None:
        self.writer.on_connection_lost(name)

    # ------------------------------------------------------------------ the run

    def run(self) -> None:
        if self._prefix is not None:
            self._prefix(self)
        plan = self.plan
        self.network.loss, self.network.spikes = plan.loss, plan.spikes
        self.network.twice = plan.twice
        self.store.lost_answers, self.store.stale_reads = plan.lost_answers, plan.stale_reads
        self._schedule_work()
        self._schedule_faults()
        self.agenda.run(self.agenda.now + FAULT_SECONDS)
        self._heal()
        self.finish()

    def finish(self) -> None:
        """With the cluster whole again: writes end, somebody opens the ledger, it has one end."""
        self.agenda.run(self.agenda.now + HEALED_SECONDS)
        writer = self.writer
        if writer.is_stuck and not self._may_fail:
            raise ViolationError(
                "I24", f"the writer neither confirms nor fails what comes after {writer.confirmed}"
            )
        last = RecoveringClient(self, "L", attempts=8)
        self.recoverers.append(last)
        self.agenda.run(self.agenda.now + HEALED_SECONDS)
        if not self._may_fail:
            if last.metadata is None:
                why = last.failures[-1].message if last.failures else "it hangs"
                raise ViolationError("I24", f"every bookie is back, and recovery fails: {why}")
            if any(not reader.is_done for reader in self.readers if not reader.is_dead):
                raise ViolationError("I24", "a reader never came to the end of the closed ledger")
        self.history.emit("ended")

    @property
    def _may_fail(self) -> bool:
        """Whether so much was lost that the protocol may refuse to decide."""
        _, write_quorum, ack_quorum = self.plan.shape
        lost = sum(bookie.has_lost for bookie in self.bookies.values())
        return lost > 0 and (lost > write_quorum - ack_quorum or lost >= ack_quorum)

    def _schedule_work(self) -> None:
        plan, chance, agenda = self.plan, self.chance, self.agenda
        moment = 0.0
        for _ in range(plan.appends):
            count = chance.randint(1, plan.batch_max)
            agenda.after(moment, partial(self._append, count))
            moment += chance.choice((0.0, 0.1, 0.5)) * plan.tempo * chance.random()
            if plan.deferred_sync and chance.random() < 0.4:
                agenda.after(moment, self._force)
        if plan.closes:
            agenda.after(moment + plan.tempo * chance.random(), self._close)
        for number in range(plan.recoverers):
            agenda.after(
                self._moment(),
                partial(self.recover, f"R{number + 5}"),
            )
        for number in range(plan.readers):
            agenda.after(self._moment(), partial(self.follow, number))
        for number in range(plan.intruders):
            agenda.after(self._moment(), partial(RecoveringClient, self, f"Z{number}", key=b"no"))
        if plan.drops:
            for moment in (0.3, 0.8, 1.5):
                agenda.after(moment, self._drop)
        if plan.leaves:
            agenda.after(self._moment(), self._leave)
        for _ in range(plan.repairs):
            agenda.after(self._moment(), self._repair)

    def _moment(self) -> float:
        """Somewhere in the thick of it, or a while later."""
        return self.plan.tempo * self.chance.choice((1.0, 1.0, 4.0)) * self.chance.random()

    def _while(self) -> float:
        return self.plan.tempo * self.chance.choice((0.2, 1.0, 4.0)) * self.chance.random()

    def _append(self, count: int) -> None:
        if not self.writer.is_dead:  # a handle that failed says so
            self.writer.append(count)

    def _leave(self) -> None:
        if not self.writer.is_dead:
            self.writer.leave()

    def _drop(self) -> None:
        """What a collector may do: delete a closed ledger where none of its fragments is."""
        metadata = self.store.metadata
        needed = {name for fragment in metadata.fragments for name in fragment.ensemble}
        for name, bookie in self.bookies.items():
            if metadata.is_closed and name not in needed and not self._is_repairing:
                bookie.drop()

    @property
    def _is_repairing(self) -> bool:
        """The lock that repair and collector share is not modelled; its effect is."""
        return any(isinstance(client, Repairer) for client in self.clients)

    def _force(self) -> None:
        if not self.writer.is_dead:
            self.writer.force()

    def _close(self) -> None:
        if not self.writer.is_dead:
            self.writer.close()

    def recover(self, name: str, *, advances: bool = False) -> RecoveringClient:
        client = RecoveringClient(self, name, advances=advances)
        self.has_advancing |= advances
        self.recoverers.append(client)
        self.clients.append(client)
        return client

    def follow(self, number: int) -> FollowingReader:
        reader = FollowingReader(self, f"F{len(self.readers) + 1}", polls=bool(number % 2))
        self.readers.append(reader)
        self.clients.append(reader)
        return reader

    def _repair(self) -> None:
        self.repair(self.chance.choice(sorted(self.bookies)))

    def repair(self, name: BookieId) -> None:
        self.clients.append(Repairer(self, "A", name))

    # ------------------------------------------------------------------ faults

    def _schedule_faults(self) -> None:
        plan = self.plan
        for count, act in (
            (plan.crashes, self._crash),
            (plan.stalls, self._stall),
            (plan.pauses, self._pause),
            (plan.partitions, self._partition),
            (plan.read_only, self._make_read_only),
            (plan.store_away, self._take_store_away),
            (plan.deaths, self._kill_client),
            (min(plan.rot, plan.losses_allowed), self._rot),
            (min(plan.wipes, plan.losses_allowed - plan.rot), self._wipe),
            (plan.clock_jumps, self._jump_clock),
        ):
            for _ in range(count):
                self.agenda.after(self._moment(), act)

    def _some_bookie(self) -> ModelBookie:
        return self.bookies[self.chance.choice(sorted(self.bookies))]

    def _crash(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"{bookie.name} crashes")
        bookie.crash()
        self.agenda.after(0.005 + self._while(), bookie.restart)

    def _stall(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"the disk of {bookie.name} hangs")
        bookie.stall()
        self.agenda.after(self._while(), bookie.go_on)

    def _pause(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"{bookie.name} stands still")
        bookie.pause()
        self.agenda.after(self._while(), bookie.resume)

    def _partition(self) -> None:
        client, bookie = self.chance.choice(self.clients), self._some_bookie()
        ways = {(client.name, str(bookie.name)), (str(bookie.name), client.name)}
        if self.chance.random() < 0.3:  # half open: one direction only
            ways.discard(min(ways))
        self.tell(f"nothing gets through: {sorted(ways)}")
        self.network.cut |= ways
        self.agenda.after(self._while(), lambda: self.network.cut.difference_update(ways))

    def _make_read_only(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"{bookie.name} is read-only")
        bookie.is_read_only = True

    def _take_store_away(self) -> None:
        self.tell("the metadata store is away")
        self.store.is_away = True
        self.agenda.after(self._while(), self._bring_store_back)

    def _bring_store_back(self) -> None:
        self.store.is_away = False

    def _kill_client(self) -> None:
        client = self.chance.choice(self.clients)
        if not isinstance(client, FollowingReader):
            self.tell(f"{client.name} dies")
            client.is_dead = True

    def _rot(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"an entry on {bookie.name} rots")
        bookie.rot()

    def _wipe(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"{bookie.name} loses its disk and comes back in limbo")
        bookie.wipe()
        self.agenda.after(0.05, bookie.restart)

    def _jump_clock(self) -> None:
        client = self.chance.choice(self.clients)
        client.skew += self.chance.choice((-30.0, -0.5, 0.5, 30.0))
        self.tell(f"{client.name}'s clock jumps")

    def _heal(self) -> None:
        self.tell("everything is healed")
        self.is_healed = True
        self.network.loss = self.network.spikes = self.network.twice = 0.0
        self.network.cut.clear()
        self.store.is_away = False
        self.store.lost_answers = self.store.stale_reads = 0.0
        for bookie in self.bookies.values():
            bookie.is_read_only = False
            bookie.restart()
            bookie.resume()
            bookie.go_on()
