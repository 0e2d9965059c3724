"""After a loss: every ledger of the store into limbo, durably, before anything is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bookie.core.write_cache import WriteCache
from bookie.storage.index_format import NEEDS_INTEGRITY_CHECK_KEY, encode_flag, ledger_key
from bookie.storage.index_interface import PIECE_CHANGES_MAX, Change
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledgers import Ledgers, stored_state


def put_all_in_limbo(
    directories: Sequence[LedgerDirectory], ledgers: Ledgers, cache: WriteCache
) -> None:
    """Fence every ledger and stop trusting absence; an integrity check will lift it.

    Which ledgers the loss has hit cannot be known here, so it may have hit any.
    """
    for directory in directories:
        index = directory.index
        piece: list[Change] = [(NEEDS_INTEGRITY_CHECK_KEY, encode_flag(True))]
        for ledger_id, state in index.ledger_states():
            if state.tombstone is not None:
                continue
            limbo = replace(state, fenced=True, limbo=True)
            piece.append((ledger_key(ledger_id), limbo.encode()))
            if len(piece) == PIECE_CHANGES_MAX:
                index.apply(piece)
                piece = []
        index.apply(piece)
        index.flush()
    for ledger in ledgers.in_memory():
        if ledger.exists:
            ledger.fenced = ledger.limbo = True
            ledger.stored = stored_state(ledger, None)
            cache.change(ledger)
