"""The records of many ledgers: what a plan over a whole cluster begins with.

One by one they would cost a round trip and a task each. They are asked for by the hundred, and the
answers waited for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ledger_client.errors import reaching_metadata
from metadata.codec import decode_ledger_metadata
from metadata.model import InvalidMetadataError, LedgerMetadata

if TYPE_CHECKING:
    from ledger_client.client import LedgerClient


async def read_records(
    client: LedgerClient, ledger_ids: Sequence[int]
) -> list[LedgerMetadata | None]:
    """The records of these ledgers, in this order; None for one that does not exist.

    For hundreds, not for millions. InvalidMetadataError, with the ledger's id, for the first that
    cannot be understood.
    """
    ledgers = client._environment.ledgers
    wanted = [client._ledger_id(ledger_id) for ledger_id in ledger_ids]
    if not wanted:
        return []
    with reaching_metadata(f"ledgers {wanted[0]} to {wanted[-1]} cannot be looked up"):
        nodes = await ledgers.store.get_many(list(map(ledgers.paths.path_of, wanted)))
    found: list[LedgerMetadata | None] = []
    for ledger_id, node in zip(wanted, nodes, strict=True):
        if node is None:
            found.append(None)
            continue
        try:
            found.append(decode_ledger_metadata(node.data, ledger_id=ledger_id))
        except InvalidMetadataError as error:
            error.ledger_id = ledger_id
            raise
    return found
