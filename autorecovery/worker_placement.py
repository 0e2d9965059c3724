"""Moving the copies of a closed ledger to where the placement policy would have them.

Each move is the repair's own: copied first, committed under the lock's session after that. A move
that fails leaves the ledger as safe as it was, and its mark for another time.
"""

from __future__ import annotations

from autorecovery.context import RecoveryContext
from autorecovery.core.audit_placement import relocations
from autorecovery.replicator import Progress, Replicator
from autorecovery.worker_repair import Ending, LedgerRepair, Move, Order, RepairResult
from metadata.underreplication import Lock
from runtime import logs

_log = logs.get("autorecovery.placement")


def is_asked_for(context: RecoveryContext, lock: Lock) -> bool:
    """Whether the mark may be a placement check's: it names nobody, and the operator wants it."""
    names_nobody = lock.mark is not None and not lock.mark.content.replicas
    return names_nobody and context.settings.auditor.repairs_placement


async def relocate(
    context: RecoveryContext,
    replicator: Replicator,
    lock: Lock,
    whole: RepairResult,
    progress: Progress,
) -> tuple[RepairResult, int]:
    """Spread a ledger that is otherwise whole; how it ended, and the moves that were made."""
    assert whole.ledger is not None
    client, result, made = context.client, whole, 0
    wanted = relocations(whole.ledger.metadata, client.policy, client.cluster, client.chance)
    for relocation in wanted:
        move = Move(relocation.first_entry_id, relocation.source, relocation.target)
        repair = LedgerRepair(
            replicator,
            lock.ledger_id,
            session=lock.session,
            order=Order(move=move),
            progress=progress,
        )
        result = await repair.run()
        if result.ending is not Ending.WHOLE:
            break
        made += 1
    if made:
        _log.info("spread a ledger", ledger=lock.ledger_id, moves=made)
    return result, made
