"""Texts of options as values: sizes, times, numbers, choices.

Every option is declared once, with its default and its bounds; parsing is a walk over the
declarations. A key that nobody declared is an error that names its nearest relative, because an
option that is silently ignored is worse than none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from spark.errors import BadOptionError

#: What Spark or its users add to every source; of no interest here.
TOLERATED: Final = frozenset({"path", "paths", "checkpointlocation"})

#: Somebody may have put a secret where the name of one is wanted.
UNSHOWN: Final = frozenset({"credentials"})

_SIZE: Final = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.ASCII | re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

T = TypeVar("T")
Parser = Callable[[str], Any]


def size(text: str) -> int:
    """`128m`, `4096`, `1 GiB`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("want a number of bytes such as 4096, 512k, 128m or 1g")
    return int(match[1]) << _UNITS[match[2].lower()]


def seconds(text: str) -> float:
    """`30s`, `500ms`, `24h`; a bare number is seconds."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError("want a time such as 500ms, 30s, 5m or 24h")
    return float(match[1]) * _SECONDS[(match[2] or "s").lower()]


def truth(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("want true or false")
    return lowered == "true"


def number(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError("want a whole number") from None


def text_of(text: str) -> str:
    return text


def bounded(parse: Callable[[str], T], low: T, high: T) -> Callable[[str], T]:
    def parse_bounded(text: str) -> T:
        value = parse(text)
        if not low <= value <= high:  # type: ignore[operator]
            raise ValueError(f"want {low} to {high}")
        return value

    return parse_bounded


def one_of(*choices: str) -> Callable[[str], str]:
    """One of these words, in any case, as it is written here."""

    def choose(text: str) -> str:
        for choice in choices:
            if text.strip().lower() == choice.lower():
                return choice
        raise ValueError(f"want {', '.join(choices[:-1])} or {choices[-1]}")

    return choose


def parsed(
    given: Mapping[str, str], known: Mapping[str, Parser], *, elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    """The values of all options that were given, by their declared names.

    `elsewhere` says of options that belong to another use of the source where they belong.
    """
    names = {name.lower(): name for name in known}
    found: dict[str, Any] = {}
    for key, text in given.items():
        lowered = key.lower()
        if lowered in TOLERATED:
            continue
        if lowered not in names:
            raise BadOptionError(_unknown(key, known, elsewhere))
        name = names[lowered]
        try:
            found[name] = known[name](text)
        except ValueError as error:
            shown = "" if name in UNSHOWN else f"={_shown(text)}"
            raise BadOptionError(f"option {name}{shown}: {error}") from None
    return found


def _unknown(key: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    for name, where in elsewhere.items():
        if name.lower() == key.lower():
            return f"option {name} {where}"
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]]}?" if near else f"there are {', '.join(names)}"
    return f"there is no option {key}: {hint}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
