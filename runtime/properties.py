"""Java's properties files, read as BookKeeper reads them.

A line is `key = value`, `key : value` or `key value`; `#` or `!` begins a comment; a backslash at
the end of a line continues it; `\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` are escapes, any other
escaped character stands for itself. Commas separate the items of a list; an escaped comma does not.
Files are UTF-8, which includes everything that Apache's sample files hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wire.errors import LedgerError


class ConfigError(LedgerError):
    """The configuration cannot be used. The message names the place and what is allowed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as somebody wrote it, with the place where it was found."""

    key: str
    text: str  # escapes resolved, commas as they were
    items: tuple[str, ...]  # the same, split at the commas that were not escaped
    origin: str  # `bk.conf:12`, or the name of an environment variable


def parse_properties(text: str, name: str) -> list[Setting]:
    """The settings of a file in the order of its lines. `name` is for error messages."""
    return [_setting(line, f"{name}:{number}") for number, line in _logical_lines(text)]


def setting_of(key: str, raw: str, origin: str) -> Setting:
    """A value that did not come from a file but is written in the same manner."""
    raw = raw.strip(_BLANKS)
    pieces: list[str] = []
    start = 0
    for match in re.finditer(r"\\.|,", raw, re.DOTALL):
        if match[0] == ",":
            pieces.append(raw[start : match.start()])
            start = match.end()
    pieces.append(raw[start:])
    items = (_unescape(piece.strip(_BLANKS), origin) for piece in pieces)
    return Setting(key, _unescape(raw, origin), tuple(item for item in items if item), origin)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, without comments and empty ones; first line number."""
    pending = ""
    first = 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = line.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield first, pending + line
        pending = ""
    if pending:
        yield first, pending


def _setting(line: str, origin: str) -> Setting:
    match = _KEY_AND_SEPARATOR.match(line)
    assert match is not None, "the pattern matches any text"
    key = _unescape(match[1], origin)
    if not key:
        raise ConfigError(f"{origin}: a line without a key: {line!r}; write key=value")
    return setting_of(key, line[match.end() :], origin)


def _unescape(text: str, origin: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] == "u":
            if len(escape) != 5:
                raise ConfigError(f"{origin}: \\u needs four hexadecimal digits, found {text!r}")
            return chr(int(escape[1:], 16))
        return _ESCAPES.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text, flags=re.DOTALL)


_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY_AND_SEPARATOR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
