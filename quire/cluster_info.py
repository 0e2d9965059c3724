"""A cluster in numbers, in the words of Apache's tools."""

from __future__ import annotations

from typing import Final

from metadata.cookies import Cookies
from metadata.discovery import read_bookies
from metadata.election import current_auditor
from metadata.store import MetadataStore
from metadata.underreplication import UnderReplication

_GB: Final = 1_000_000_000


async def overview(store: MetadataStore, root: str, marks: UnderReplication) -> dict[str, object]:
    """How many bookies in which state, and how re-replication stands."""
    registered = await read_bookies(store, root)
    known = await Cookies(store, root).bookies()
    auditor = await current_auditor(store, root)
    return {
        "auditorElected": auditor is not None,
        "auditorId": auditor or "",
        "clusterUnderReplicated": bool(await marks.marked()),
        "ledgerReplicationEnabled": await marks.settings.is_enabled(),
        "totalBookiesCount": len(known),
        "writableBookiesCount": len(registered.writable),
        "readonlyBookiesCount": len(registered.read_only),
        "unavailableBookiesCount": len(set(known) - registered.all),
    }


def size_text(count: int) -> str:
    return f"{count}({count / _GB:.3f}GB)"
