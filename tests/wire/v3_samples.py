"""What the v3 tests share: recorded frames, and strategies for every message."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from wire import messages
from wire.errors import Status
from wire.messages import Request, Response
from wire.types import Operation

#: The same examples every time, however slow the machine is today.
steady = settings(deadline=None, derandomize=True)

VECTORS = Path(__file__).parent.parent / "vectors"


@cache
def recorded(file: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((VECTORS / file).read_text())
    return loaded


def v3_frames() -> list[dict[str, Any]]:
    """Every frame of the v3 protocol that was recorded, also those of clients in v2 mode."""
    return [
        vector
        for file in ("wire-v3.json", "wire-v2.json")
        for vector in recorded(file)
        if vector["version"] == "v3"
    ]


def payload_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["frame_hex"])[4:]


IDS = st.integers(-(2**63), 2**63 - 1)
SMALL_IDS = st.one_of(st.sampled_from((-1, 0, 1, 127, 128, 16383, 16384, 2**28, 2**63 - 1)), IDS)
TRANSACTION_IDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 70_000))
BODIES = st.binary(max_size=300)
KEYS = st.one_of(st.binary(min_size=20, max_size=20), st.binary(max_size=24))
STATUSES = st.sampled_from(Status)
ERRORS = st.sampled_from([status for status in Status if status is not Status.OK])


def _reads() -> st.SearchStrategy[messages.ReadRequest]:
    flags = st.sampled_from(({}, {"fence": True}, {"piggyback": True}))
    return st.builds(
        lambda flag, **rest: messages.ReadRequest(**flag, **rest),
        flags,
        ledger_id=SMALL_IDS,
        entry_id=SMALL_IDS,
        master_key=st.none() | KEYS,
        high_priority=st.booleans(),
        previous_lac=st.none() | SMALL_IDS,
        timeout_ms=st.none() | SMALL_IDS,
    )


REQUESTS: dict[str, st.SearchStrategy[Request]] = {
    "add": st.builds(
        messages.AddRequest,
        ledger_id=SMALL_IDS,
        entry_id=SMALL_IDS,
        master_key=KEYS,
        body=BODIES,
        recovery=st.booleans(),
        high_priority=st.booleans(),
        deferred_sync=st.booleans(),
    ),
    "read": _reads(),
    "write LAC": st.builds(
        messages.WriteLacRequest, ledger_id=SMALL_IDS, lac=SMALL_IDS, master_key=KEYS, body=BODIES
    ),
    "read LAC": st.builds(messages.ReadLacRequest, ledger_id=SMALL_IDS),
    "force": st.builds(messages.ForceRequest, ledger_id=SMALL_IDS),
    "info": st.builds(messages.BookieInfoRequest, requested=st.none() | SMALL_IDS),
    "list": st.builds(messages.ListEntriesRequest, ledger_id=SMALL_IDS),
    "auth": st.builds(messages.AuthRequest, plugin=st.text(max_size=20), payload=BODIES),
    "start TLS": st.builds(messages.StartTlsRequest),
    "bare": st.builds(
        messages.BareRequest,
        operation=st.sampled_from(
            [
                operation
                for operation in Operation
                if operation not in (Operation.AUTH, Operation.GET_BOOKIE_INFO, Operation.START_TLS)
            ]
        ),
    ),
}
RESPONSES: dict[str, st.SearchStrategy[Response]] = {
    "add": st.builds(
        messages.AddResponse, status=STATUSES, ledger_id=SMALL_IDS, entry_id=SMALL_IDS
    ),
    "read": st.builds(
        messages.ReadResponse,
        status=STATUSES,
        ledger_id=SMALL_IDS,
        entry_id=SMALL_IDS,
        body=st.none() | BODIES,
        max_lac=st.none() | SMALL_IDS,
        lac_update_ms=st.none() | SMALL_IDS,
    ),
    "write LAC": st.builds(messages.WriteLacResponse, status=STATUSES, ledger_id=SMALL_IDS),
    "read LAC": st.builds(
        messages.ReadLacResponse,
        status=STATUSES,
        ledger_id=SMALL_IDS,
        lac_body=st.none() | BODIES,
        last_entry_body=st.none() | BODIES,
    ),
    "force": st.builds(messages.ForceResponse, status=STATUSES, ledger_id=SMALL_IDS),
    "info": st.builds(
        messages.BookieInfoResponse,
        status=STATUSES,
        total_bytes=st.none() | SMALL_IDS,
        free_bytes=st.none() | SMALL_IDS,
    ),
    "list": st.builds(
        messages.ListEntriesResponse,
        status=STATUSES,
        ledger_id=SMALL_IDS,
        availability=st.none() | BODIES,
    ),
    "auth": st.builds(
        messages.AuthResponse, plugin=st.text(max_size=20), payload=BODIES, status=STATUSES
    ),
    "start TLS": st.builds(messages.StartTlsResponse, status=STATUSES),
    "bare": st.builds(messages.BareResponse, operation=st.sampled_from(Operation), status=ERRORS),
}
