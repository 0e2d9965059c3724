"""After a loss: every ledger that it may have hit into limbo, before anything is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bookie.core.write_cache import WriteCache
from bookie.storage.index_format import (
    FORGOTTEN_KEY,
    NEEDS_INTEGRITY_CHECK_KEY,
    REBUILT_KEY,
    decode_flag,
    encode_flag,
    ledger_key,
)
from bookie.storage.index_interface import PIECE_CHANGES_MAX, Change
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledgers import Ledgers, stored_state
from bookie.storage.replay import Replay


def put_all_in_limbo(
    directories: Sequence[LedgerDirectory], ledgers: Ledgers, cache: WriteCache
) -> None:
    """Fence every ledger of these directories and stop trusting absence; an integrity check will
    lift it.

    Which ledgers the loss has hit cannot be known here, so it may have hit any.
    """
    for directory in directories:
        index = directory.index
        piece: list[Change] = [
            (NEEDS_INTEGRITY_CHECK_KEY, encode_flag(True)),
            (FORGOTTEN_KEY, encode_flag(True)),
        ]
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
    homes = {directory.number for directory in directories}
    for ledger in ledgers.in_memory():
        # One that no index has may have been at home in any of them.
        if ledger.exists and (ledger.home in homes or not ledgers.is_stored(ledger)):
            ledger.fenced = ledger.limbo = True
            ledger.stored = stored_state(ledger, None)
            cache.change(ledger)


def finish_rebuild(
    directories: Sequence[LedgerDirectory], ledgers: Ledgers, cache: WriteCache, replay: Replay
) -> None:
    """The first start after a rebuild, or after a power loss without syncs: what the journals
    brought goes into limbo as well.

    Their records may end a limbo of before, and may speak of ledgers that no log knows. Only when
    the limbo is in the index is it a start like any other; a crash before that begins anew.
    """
    rebuilt = [d for d in directories if decode_flag(d.index.get(REBUILT_KEY))]
    if not rebuilt:
        return
    put_all_in_limbo(rebuilt, ledgers, cache)
    replay.checkpoint()
    if cache.active or cache.sealed:  # no room on the disk, or no journal to name in a mark yet
        return
    for directory in rebuilt:
        directory.index.apply([(REBUILT_KEY, None)])
        directory.index.flush()
