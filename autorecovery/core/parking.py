"""Why a marked ledger cannot be repaired now: the verdict, and its form in the metadata store.

A worker that finds no way to repair a ledger says so once, for everybody, instead of trying for
ever in silence. The mark stays as it is: it is Apache's, and its workers go on trying. A verdict
is advice to people and to our own workers, which try parked ledgers again at long intervals only.

The record is JSON: nobody but us reads it, and people read it with `zkCli get`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from metadata.model import InvalidMetadataError, check_bookie_id
from wire.types import BookieId

#: More ranges than this are joined over their smallest gaps: a record must stay small.
RANGES_MAX: Final = 500
_DETAIL_CHARACTERS_MAX: Final = 500
_ENTRY_MAX: Final = 2**63 - 1


class Reason(Enum):
    """What stands in the way, most hopeless first."""

    #: Every place where a copy should be was asked, and the entries are nowhere.
    LOST = "unrecoverable"
    #: The bookies that have the only copies are away. They may come back.
    NO_SOURCE = "no source"
    #: The end of an open ledger cannot be found: too many bookies of its last ensemble are away.
    UNDETERMINED = "end unknown"
    #: Too few writable bookies for another copy.
    NO_TARGET = "no target"
    #: The record of the ledger cannot be understood.
    UNREADABLE = "unreadable record"
    #: Nothing happens at all. Only whoever waits can say so; it is not stored.
    NOBODY = "no worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    reason: Reason
    detail: str = ""
    #: Entries that nobody has, first and last of each range. With more ranges than fit into a
    #: record, ranges that also span entries which are there.
    lost: tuple[tuple[int, int], ...] = ()
    #: Bookies that would have to come back.
    waits_for: tuple[BookieId, ...] = ()

    @property
    def text(self) -> str:
        """One line for people."""
        if self.reason is Reason.LOST:
            return f"unrecoverable: these entries are lost: {ranges_text(self.lost)}"
        parts = [self.reason.value]
        if self.waits_for:
            parts.append(f"waiting for {', '.join(self.waits_for)}")
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A verdict as it is stored."""

    verdict: Verdict
    #: When it was given, by the clock of the worker.
    time_ms: int
    #: An operator ordered to go on without the entries in `verdict.lost`.
    is_accepted: bool = False


def joined(
    ranges: Iterable[tuple[int, int]], *, count_max: int = RANGES_MAX
) -> tuple[tuple[int, int], ...]:
    """Ascending, touching ones merged, and at most `count_max`, by closing the smallest gaps."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    surplus = len(merged) - count_max
    if surplus > 0:
        gaps = sorted(range(1, len(merged)), key=lambda i: merged[i][0] - merged[i - 1][1])
        closed = set(gaps[:surplus])
        kept = merged[:1]
        for index in range(1, len(merged)):
            if index in closed:
                kept[-1] = (kept[-1][0], merged[index][1])
            else:
                kept.append(merged[index])
        merged = kept
    return tuple(merged)


def ranges_text(ranges: Sequence[tuple[int, int]], *, shown_max: int = 10) -> str:
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:shown_max]]
    if len(ranges) > shown_max:
        texts.append(f"and {len(ranges) - shown_max} more ranges")
    return ", ".join(texts) or "none named"


# ---------------------------------------------------------------------- the record


def encode_parked(parked: Parked) -> bytes:
    verdict = parked.verdict
    fields = {
        "reason": verdict.reason.value,
        "detail": verdict.detail[:_DETAIL_CHARACTERS_MAX],
        "lost": [list(pair) for pair in joined(verdict.lost)],
        "waitsFor": list(verdict.waits_for),
        "timeMs": parked.time_ms,
        "accepted": parked.is_accepted,
    }
    return json.dumps(fields, ensure_ascii=True).encode()


def decode_parked(data: bytes, *, path: str = "parked") -> Parked:
    try:
        fields = json.loads(data)
        verdict = Verdict(
            reason=Reason(fields["reason"]),
            detail=_of_type(fields["detail"], str),
            lost=tuple(_range(pair) for pair in fields["lost"]),
            waits_for=tuple(check_bookie_id(name) for name in fields["waitsFor"]),
        )
        return Parked(
            verdict=verdict,
            time_ms=_of_type(fields["timeMs"], int),
            is_accepted=_of_type(fields["accepted"], bool),
        )
    except (ValueError, KeyError, TypeError, RecursionError, InvalidMetadataError) as error:
        raise InvalidMetadataError(
            f"{path} is no verdict on a ledger ({error}), found {data[:40]!r}: delete it, the next "
            "worker writes it anew"
        ) from None


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def _range(pair: Any) -> tuple[int, int]:
    first, last = (_of_type(bound, int) for bound in pair)
    if not 0 <= first <= last <= _ENTRY_MAX:
        raise ValueError(f"{first}-{last} is no range of entries")
    return first, last
