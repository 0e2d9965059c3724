"""Which ledgers are meant: `5,7,10-20`, `all`, `custom:app=orders`, or those of one commit.

An id that is named must exist; a range means those that do, since ids of a cluster are shared by
all its writers. What is listed keeps its order: for streams it is the order of reading.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeAlias
from urllib.parse import unquote, unquote_to_bytes

from metadata.model import LedgerMetadata
from wire.errors import BadRequestError
from wire.types import ID_MAX

EVERYTHING: Final = "all"
CUSTOM: Final = "custom:"

_SPAN: Final = re.compile(r"([0-9]+)(?:\s*-\s*([0-9]+))?", re.ASCII)
_EXAMPLE: Final = "write ids and ranges such as 5,7,10-20, or all, or custom:key=value"
#: Spans in one option; a longer list is a table and belongs into custom metadata.
SPANS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Span:
    """Ledgers `first..last`, both included."""

    first: int
    last: int

    @property
    def is_one(self) -> bool:
        return self.first == self.last

    def __str__(self) -> str:
        return str(self.first) if self.is_one else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Listed:
    """The ledgers of these spans, which do not overlap, in this order."""

    spans: tuple[Span, ...]

    @property
    def needs_listing(self) -> bool:
        return not all(span.is_one for span in self.spans)

    def takes(self, ledger_id: int) -> bool:
        """Whether one of the spans holds this id."""
        index = bisect_right(self._ascending, ledger_id, key=attrgetter("first")) - 1
        return index >= 0 and ledger_id <= self._ascending[index].last

    def names(self, ledger_id: int) -> bool:
        """Whether it was named alone, so that its absence is news."""
        index = bisect_right(self._ascending, ledger_id, key=attrgetter("first")) - 1
        return index >= 0 and self._ascending[index] == Span(ledger_id, ledger_id)

    @cached_property
    def _ascending(self) -> list[Span]:
        return sorted(self.spans, key=attrgetter("first"))

    def pick(self, present: Sequence[int]) -> Iterator[int]:
        """The ids that are meant, of which `present` (ascending) exist in the cluster.

        An id that was named alone comes out even if it does not exist: that is for the caller
        to complain about.
        """
        for span in self.spans:
            if span.is_one:
                yield span.first
            else:
                begin = bisect_left(present, span.first)
                yield from present[begin : bisect_left(present, span.last + 1)]

    def __str__(self) -> str:
        return ",".join(map(str, self.spans))


@dataclass(frozen=True, slots=True)
class Everything:
    """All ledgers of the cluster, by ascending id."""

    def __str__(self) -> str:
        return EVERYTHING


@dataclass(frozen=True, slots=True)
class ByCustom:
    """Ledgers whose custom metadata has these values, by ascending id; None: any value."""

    wanted: tuple[tuple[str, bytes | None], ...]

    def takes(self, metadata: LedgerMetadata) -> bool:
        custom = dict(metadata.custom)
        return all(
            key in custom and (value is None or custom[key] == value) for key, value in self.wanted
        )

    def __str__(self) -> str:
        return CUSTOM + "&".join(
            key if value is None else f"{key}={value!r}" for key, value in self.wanted
        )


@dataclass(frozen=True, slots=True)
class Committed:
    """The ledgers that a sink committed under this identity, in the order of the commit."""

    identity: str

    def __str__(self) -> str:
        return f"commit {self.identity}"


Selection: TypeAlias = Listed | Everything | ByCustom | Committed


def parse_selection(text: str) -> Listed | Everything | ByCustom:
    """What the option `ledgers` says. BadRequestError says what to write instead."""
    text = text.strip()
    if text.lower() == EVERYTHING:
        return Everything()
    if text.lower().startswith(CUSTOM):
        return _parse_custom(text)
    parts = text.split(",")
    if len(parts) > SPANS_MAX:
        raise BadRequestError(
            f"ledgers names {len(parts)} ids and ranges, more than {SPANS_MAX}: select them by a "
            "range or by custom metadata"
        )
    spans = tuple(_parse_span(text, part.strip()) for part in parts)
    _check_disjoint(spans)
    return Listed(spans)


def _parse_span(text: str, part: str) -> Span:
    match = _SPAN.fullmatch(part)
    if match is None:
        shown = text if len(text) <= 60 else text[:60] + "..."
        raise BadRequestError(f"ledgers={shown!r}: {part!r} is no ledger id: {_EXAMPLE}")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if not first <= last <= ID_MAX:
        raise BadRequestError(f"ledgers: {part} is no range of ids: want first <= last < 2^63")
    return Span(first, last)


def _check_disjoint(spans: Sequence[Span]) -> None:
    previous: Span | None = None
    for span in sorted(spans, key=lambda span: span.first):
        if previous is not None and span.first <= previous.last:
            raise BadRequestError(
                f"ledgers: ledger {span.first} is meant twice, by {previous} and by {span}; its "
                "rows would come twice: name it once"
            )
        previous = span


def _parse_custom(text: str) -> ByCustom:
    wanted: list[tuple[str, bytes | None]] = []
    for term in text[len(CUSTOM) :].split("&"):
        key, equals, value = term.partition("=")
        if not key:
            raise BadRequestError(
                f"ledgers={text!r}: a key is missing: write custom:key=value, several joined by &, "
                "other characters as %26"
            )
        wanted.append((unquote(key), unquote_to_bytes(value) if equals else None))
    return ByCustom(tuple(wanted))
