"""Bugs on purpose: each a small patch of a real core that the simulator must find.

Most of them were real somewhere. A simulator that finds none of its planted bugs is a decoration.
"""

from __future__ import annotations

from bookie.core.ledger import Ledger
from ledger_client.core import commands
from ledger_client.core.adds import AddQueue
from ledger_client.core.distribution import Distribution
from ledger_client.core.lac import ReaderLac
from ledger_client.core.reader import RangeRead
from ledger_client.core.recovery import Recovery
from ledger_client.core.recovery_reads import RecoveryReads
from ledger_client.core.replicas import Piece
from ledger_client.core.writer import Writer
from metadata import update
from tests.simulation.inner.bookie import ModelBookie
from tests.simulation.inner.repairer import Repairer
from tests.simulation.planted import others, recovering, writing
from tests.simulation.planted.bug import Bug

BUGS = (
    Bug("acks of replaced bookies count on", "F9, #3005",
        AddQueue, "replace", writing.keep_acks, row="F9", seeds=20),
    Bug("complete before resend", "F9, #4097",
        Writer, "on_ensemble_changed", writing.complete_before_resend, row="F9", seeds=20),
    Bug("LAC not frozen during a change", "F11, #4651",
        Writer, "_confirm_due", writing.confirm_while_changing, row="F11", seeds=20),
    Bug("count instead of coverage in fencing", "F8, #2303",
        Distribution, "is_covered", recovering.count_not_coverage, row="F8", seeds=20),
    Bug("any error is no such entry", "F27, #2908",
        commands.Outcome, "is_missing", recovering.any_error_is_missing, row="F27", seeds=20),
    Bug("silence is no such entry", "F55",
        commands.Outcome, "is_missing", recovering.silence_is_missing, seeds=200),
    Bug("answers of earlier sendings count", "F63",
        AddQueue, "replace", writing.matched_by_entry_ids, row="F63", seeds=20),
    Bug("copies at replaced bookies count", "F63",
        AddQueue, "take_copy", writing.copies_for_any_tenure, row="F13", seeds=20),
    Bug("recovery writes an advancing LAC", "F21",
        Recovery, "_push", recovering.advancing_lac, seeds=40),
    Bug("repeated recovery begins at the LAC", "F21",
        Recovery, "on_started", recovering.start_at_lac_always, row="F21", seeds=20),
    Bug("negatives trusted below a LAC already shown", "F71",
        RecoveryReads, "__init__", recovering.no_floor, row="F71", seeds=20),
    Bug("one denial is enough", "F1",
        RecoveryReads, "take", recovering.one_denial_is_enough, row="F24", seeds=20),
    Bug("ensembles of recovery are not recorded", "F3",
        Recovery, "_finish", recovering.forget_new_ensembles, row="F3", seeds=20),
    Bug("the slower recovery closes again", "F17",
        update.FinishRecovery, "apply", others.finish_over_another, row="F17", seeds=20),
    Bug("the writer closes over a recovery", "F16",
        update.Close, "apply", others.close_over_recovery, row="F16", seeds=20),
    Bug("a retry does not recognise its own success", "F15, #1967",
        update.Close, "apply", others.own_close_is_foreign, row="F15", seeds=20),
    Bug("the writer changes an ensemble under recovery", "F16, 2.5",
        update.ChangeEnsemble, "apply", others.change_over_recovery, row="X1", seeds=20),
    Bug("a fence is an answer like any other", "F18",
        Writer, "_on_failed", writing.fencing_is_an_error_like_any, seeds=120),
    Bug("one ack too few", "I2",
        Distribution, "has_ack_quorum", writing.one_ack_less, seeds=40),
    Bug("a quorum of the union of write sets", "I2",
        Distribution, "has_ack_quorum", writing.quorum_of_the_union, seeds=40),
    Bug("confirmed out of order", "I3",
        AddQueue, "pop_due", writing.out_of_order, seeds=40),
    Bug("a fragment starts behind unconfirmed entries", "F11",
        Writer, "_next_round", writing.start_behind_what_was_pushed, row="F11", seeds=20),
    Bug("nothing is sent again after a change", "F12, #4459",
        AddQueue, "send_missing", writing.no_resend, row="F12", seeds=20),
    Bug("the fence is forgotten", "F62",
        Ledger, "admit_add", others.fence_forgotten, seeds=40),
    Bug("a bookie in limbo denies", "F24, #2612",
        Ledger, "absent", others.limbo_denies, row="F24", seeds=20),
    Bug("the idle writer tells what is not confirmed", "I17",
        Writer, "tick", writing.tell_what_is_not_confirmed, seeds=40),
    Bug("headers carry an unconfirmed LAC", "I17",
        Writer, "_push", writing.header_names_itself, seeds=40),
    Bug("a reader's LAC falls", "I17",
        ReaderLac, "on_lac", others.lac_falls, seeds=40),
    Bug("the LAC moves without a force", "F49",
        Writer, "_confirm_due", writing.unforced_lac, row="F49", seeds=20),
    Bug("a force after a lost connection counts", "F70, #889",
        Writer, "on_connection_lost", writing.connections_do_not_matter, row="F70", seeds=20),
    Bug("the length counts what was never confirmed", "I10",
        Writer, "_record_end", writing.length_of_all, seeds=40),
    Bug("recovery reads newcomers", "F6, BK-355",
        Recovery, "on_replacements", recovering.reads_follow_working_ensemble, row="F6", seeds=20),
    Bug("diff of first and last ensemble", "F12, #4459",
        Writer, "_next_round", writing.diff_of_first_and_last, row="F12", seeds=20),
    Bug("an id is taken only below the LAC", "F50",
        Writer, "is_taken", writing.taken_by_the_lac, row="F50", seeds=20),
    Bug("the length is not looked up", "F4, BK-673",
        Recovery, "_finish_if_done", recovering.length_not_looked_up, row="F4", seeds=20),
    Bug("new ensembles are recorded behind what they hold", "F21",
        Recovery, "on_replacements", recovering.newcomers_on_record, row="F3", seeds=20),
    Bug("recovery reads do not fence", "F1, #2614",
        ModelBookie, "read", others.reads_do_not_fence, row="F1", seeds=20),
    Bug("a fence is answered before it is durable", "F20",
        ModelBookie, "_fence", others.fence_answered_early, row="F20", seeds=20),
    Bug("acknowledged before the sync", "I2",
        ModelBookie, "_log", others.acknowledged_before_sync, seeds=40),
    Bug("answers are not clipped to what was asked", "F51",
        RangeRead, "_take", others.more_than_asked, row="F51", seeds=20),
    Bug("replicas that moved are not looked for", "F53, #4613",
        RangeRead, "_all_failed", others.moved_bookies_not_found, row="F53", seeds=20),
    Bug("repair records before it copies", "F45",
        Repairer, "_copy", others.copies_not_awaited, seeds=40),
    Bug("entries of a part are mixed up", "I8",
        Piece, "on_good", others.first_payload_for_all, seeds=40),
    Bug("a bookie in two slots", "I11",
        update.ChangeEnsemble, "apply", others.short_ensemble, seeds=40),
)  # fmt: skip
