"""A place in a sequence of ledgers, and its text.

Spark compares offsets as text, so there is one text for each place: sorted keys, no spaces, whole
numbers. A position is the next entry to read; behind the last entry of a ledger it may stand one
past its end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from wire.errors import BadRequestError
from wire.types import ID_MAX

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Position:
    ledger_id: int
    entry_id: int

    def text(self) -> str:
        return json.dumps(
            {"entry": self.entry_id, "ledger": self.ledger_id, "v": VERSION},
            sort_keys=True,
            separators=(",", ":"),
        )


def parse_position(text: str) -> Position:
    """The position that this text says. BadRequestError says what is wrong with anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        raise _bad(text, "this is no JSON") from None
    if not isinstance(found, dict) or set(found) != {"entry", "ledger", "v"}:
        raise _bad(text, "these keys are wanted and no others")
    if any(type(value) is not int for value in found.values()):
        raise _bad(text, "whole numbers are wanted")
    if found["v"] != VERSION:
        raise _bad(text, f"version {found['v']} is not known, perhaps a later release wrote it")
    if not (0 <= found["ledger"] <= ID_MAX and 0 <= found["entry"] <= ID_MAX):
        raise _bad(text, "ids are 0..2^63-1")
    return Position(found["ledger"], found["entry"])


def _bad(text: str, what: str) -> BadRequestError:
    example = Position(7, 0).text()
    return BadRequestError(f"{text!r} is not a position such as {example}: {what}")
