"""What clients saw, as lines of JSON: written as it happens, read by the checker afterwards.

Every life of every client has a file of its own. A line is written when its fact is known: a client
that is killed in between told less than it knew, which never makes a good history look bad. What is
about to be done is written before, where that matters (`delete begun`).

Times are of CLOCK_MONOTONIC, which all processes of a machine share and no clock step changes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

PAYLOAD_BYTES_MAX: Final = 1400


def payload_of(nonce: str, entry_id: int) -> bytes:
    """What entry `entry_id` of the ledger with this nonce holds: anybody can work it out."""
    head = f"{nonce}:{entry_id}:".encode()
    size = len(head) + crc32(head) % PAYLOAD_BYTES_MAX
    return (head * (size // len(head) + 1))[:size]


class History:
    """The file of one life of one client."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
        self._fd = os.open(folder / f"{name}.jsonl", flags, 0o644)

    def note(self, kind: str, ledger: int | None = None, **facts: object) -> None:
        """One line, in the kernel's hands on return."""
        line = {"t": round(time.monotonic(), 4), "k": kind, "l": ledger, **facts}
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read_history(folder: Path) -> Iterator[dict[str, Any]]:
    """All lines of all clients, each with its source; a last line that was cut short is not one."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield {**json.loads(line), "who": path.stem}
