"""The bugs that the outer ring must find, and in how many seeds of which plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import quire.limbo
from autorecovery.core.copying import Copy
from autorecovery.core.fragments_waiting import Grace
from autorecovery.integrity import IntegrityCheck
from autorecovery.replicator import Replicator
from autorecovery.worker import Worker
from bookie.collector import Collector
from bookie.connection import Connection
from bookie.core.ledger import Ledger
from bookie.operations import Operations
from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.journal_files import JournalFile
from bookie.storage.journal_writer import Journal
from bookie.storage.ledgers import Ledgers
from bookie.storage.replay import Replay
from ledger_client.question_connection import QuestionConnection
from metadata.discovery import BookieWatcher
from metadata.underreplication import UnderReplication
from tests.simulation.outer.plan import OuterPlan
from tests.simulation.outer.runs import failure_of
from tests.simulation.planted import others, repairing, shells
from tests.simulation.planted.bug import Planted
from tests.simulation.runs import Failed


@dataclass(frozen=True)
class OuterBug(Planted[OuterPlan]):
    #: What the plans of these seeds have beside what chance gives them.
    plans: Mapping[str, Any] = field(default_factory=dict)
    #: Nothing beside: the moments alone are left to chance. For bugs that need several things.
    quiet: bool = False

    def plan(self, seed: int) -> OuterPlan:
        if self.quiet:
            return OuterPlan(seed=seed, **self.plans)
        return replace(OuterPlan.of(seed), **self.plans)

    def failure_of(self, plan: OuterPlan) -> Failed | None:
        return failure_of(plan)


_POWER: Final = {"crashes": 3, "power": True}
_LATE: Final = {"late": True, "spares": 0, "readers": 0, "closes": False}
_LOSS: Final = {"autorecovery": 1, "losses": 1}
_WIPED: Final = {"wipes": 1}

OUTER_BUGS: Final = (
    OuterBug("the journal is not synced", "ack before sync, I1",
             JournalFile, "write", shells.write_without_sync, 15, _POWER),
    OuterBug("the mark moves before the log is synced", "mark before flush, F28",
             EntryLogWriter, "sync", shells.mark_without_sync, 30,
             {**_POWER, "flush_seconds": 0.5}),
    OuterBug("adds are answered when they are taken", "ack before sync, I2",
             Connection, "accept", shells.answer_at_once, 30,
             {"crashes": 6, "power": True, "spares": 0, "appends": 20, "slow_disks": 6,
              "tempo": 0.1}, quiet=True),
    OuterBug("a fence is answered when it is taken", "F20",
             Operations, "fence", shells.fence_at_once, 40,
             {**_LATE, "appends": 1, "crashes_at_fence": 2, "power": True}, quiet=True),
    OuterBug("an error of the disk is no such entry", "F27, #2908",
             Operations, "guarded", shells.error_is_absence, 40,
             {"rot": 1, "flush_seconds": 0.5, "tempo": 3.0, "spares": 0, "recoverers": 2},
             quiet=True),
    OuterBug("a fenced ledger is evicted", "F62",
             Ledger, "is_pinned", shells.fence_is_not_pinned, 15,
             {**_LATE, "appends": 0, "crowd": 30}, quiet=True),
    OuterBug("a ledger is forgotten while it is loaded", "I15, once ours",
             Ledgers, "get", shells.newcomers_may_go, 15,
             {**_LATE, "appends": 0, "crowd": 30, "recoverers": 0}, quiet=True),
    OuterBug("a parked add is not checked again", "F68",
             Connection, "wait_admission", shells.parked_adds_are_judged_already, 30,
             {**_LATE, "pending_bytes": 500, "payload_bytes": 1000, "stalls_at_open": True,
              "stalls": 4, "slow_disks": 4, "recoverers": 2, "appends": 20, "batch_max": 1,
              "tempo": 0.1}, quiet=True),
    OuterBug("the journal is trimmed one file too early", "F29, #4740",
             Journal, "release", shells.released_too_early, 30,
             {"crashes": 3, "payload_bytes": 1000}),
    OuterBug("fences are not replayed", "F22",
             Replay, "_apply_state", shells.fences_are_not_replayed, 15,
             {**_LATE, "appends": 1, "crashes_at_fence": 2, "tempo": 0.1}, quiet=True),
    OuterBug("nobody hears that unsynced entries lost their connection", "F70, #889",
             QuestionConnection, "_on_lost", shells.loss_is_told_to_nobody, 30,
             {"crashes": 5, "power": True, "deferred_sync": True, "shape": (2, 2, 2), "spares": 0,
              "recoverers": 0, "readers": 0, "appends": 4, "pace": 2.0}, quiet=True),
    OuterBug("bookies of earlier fragments delete the ledger", "I20",
             Collector, "_is_surplus", shells.only_the_last_fragment_counts, 15,
             {"crashes": 3, "tempo": 3.0}, quiet=True),
    OuterBug("copies are committed before they are durable", "F45, I13",
             Replicator, "copy", repairing.copies_not_awaited, 10, _LOSS, quiet=True),
    OuterBug("what cannot be read now is left out of a copy", "I13",
             Copy, "is_complete", repairing.unread_is_no_obstacle, 30,
             {**_LOSS, "crashes": 6, "tempo": 3.0, "shape": (3, 2, 2)}, quiet=True),
    OuterBug("a lock that somebody else has is no obstacle", "F33, I13",
             UnderReplication, "lock", repairing.lock_shared, 30,
             {**_LOSS, "autorecovery": 4}, quiet=True),
    OuterBug("the mark is deleted before the copies are made", "F41, I21",
             Worker, "_repair", repairing.mark_deleted_first, 10, _LOSS, quiet=True),
    OuterBug("a live writer gets no grace", "F38, I22",
             Grace, "wait_seconds", repairing.no_grace, 15,
             {**_LOSS, "appends": 2, "pace": 2.0, "grace": 5.0, "closes": False, "recoverers": 0},
             quiet=True),
    OuterBug("a writer is fenced for a bookie that has long been back", "I22, once ours",
             BookieWatcher, "refresh", repairing.no_second_look, 30,
             {"autorecovery": 1, "shape": (5, 3, 2), "spares": 0, "crashes": 6,
              "late_watches": 0.5, "grace": 0.5, "appends": 8, "pace": 2.0, "closes": False,
              "recoverers": 0}, quiet=True),
    OuterBug("a copy that its disk cannot read will get better", "F30, once ours",
             Copy, "on_read", repairing.disk_errors_pass, 10,
             {"autorecovery": 1, "rot": 1, "flush_seconds": 0.5, "tempo": 3.0, "spares": 0},
             quiet=True),
    OuterBug("a bookie in limbo denies", "F24, I23, #2612",
             Ledger, "absent", others.limbo_denies, 60, _WIPED, quiet=True),
    OuterBug("limbo ends before the copies are back", "F24",
             IntegrityCheck, "_heal", repairing.limbo_ends_unhealed, 10, _WIPED, quiet=True),
    OuterBug("a wiped bookie does not ask what it had", "F24, F26",
             quire.limbo, "remember_ledgers", repairing.nothing_remembered, 60, _WIPED,
             quiet=True),
)  # fmt: skip
