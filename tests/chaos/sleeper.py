"""`python -m tests.chaos.sleeper URI --ready-fd N`: a writer that is stopped within an add.

Says READY and, in its log, which ledger it writes. Then it appends one entry after another, and
tells the id of each that was confirmed, until it is refused.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Final

import trio

from ledger_client import LedgerClient, LedgerError
from runtime import logs
from tests.chaos.writers import PASSWORD

_PAUSE_SECONDS: Final = 0.05


async def _write(uri: str, ready: int) -> None:
    async with LedgerClient(uri) as client:
        ledger = await client.create(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD
        )
        await ledger.append_many([b"first", b"second", b"third"])
        ensemble = ledger.metadata.fragments[0].ensemble
        _tell({"ledger": ledger.id, "ensemble": ensemble})
        os.write(ready, b"READY\n")
        while True:
            try:
                _tell({"confirmed": await ledger.append(b"more")})
            except LedgerError as error:
                _tell({"refused": type(error).__name__})
                return
            await trio.sleep(_PAUSE_SECONDS)


def _tell(what: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    logs.configure("error")
    trio.run(_write, sys.argv[1], int(sys.argv[3]))
