"""Passwords of ledgers, by reference: options name where they are, never what they are.

Options are pickled to every worker and shown by tracebacks, so a secret must not be one. A
reference is resolved in the process that needs it, at the moment of need, and what it yields does
not show itself.

The content is one password for all ledgers or, if it is a JSON object, one by ledger:
`{"7": "secret", "10-20": "other", "*": "for all others"}`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from spark.core.selection import Listed, Span, parse_selection
from spark.errors import Code, SourceError
from wire.errors import BadRequestError

_EXAMPLE: Final = "want env:NAME, file:PATH or sparkfile:NAME; never the password itself"
#: A file of passwords is small; something else was named by mistake.
_CONTENT_BYTES_MAX: Final = 16 * 1024 * 1024
_OTHERS: Final = "*"


class Place(StrEnum):
    ENV = "env"  # an environment variable of each worker
    FILE = "file"  # a file at the same path on every machine
    SPARKFILE = "sparkfile"  # a file that went along by SparkContext.addFile or --files


@dataclass(frozen=True, slots=True)
class CredentialsReference:
    place: Place
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


@dataclass(frozen=True, slots=True)
class Passwords:
    """The passwords that a reference led to."""

    others: bytes = field(default=b"", repr=False)
    by_ledger: tuple[tuple[Span, bytes], ...] = field(default=(), repr=False)

    def of(self, ledger_id: int) -> bytes:
        for span, password in self.by_ledger:
            if span.first <= ledger_id <= span.last:
                return password
        return self.others


def parse_reference(text: str) -> CredentialsReference:
    """ValueError without the text, which may be a password that somebody put here."""
    place, colon, name = text.strip().partition(":")
    try:
        found = Place(place.lower())
    except ValueError:
        raise ValueError(_EXAMPLE) from None
    if not colon or not name:
        raise ValueError(_EXAMPLE)
    return CredentialsReference(found, name)


def resolve(reference: CredentialsReference | None) -> Passwords:
    """Look the passwords up, here and now. No reference: the empty password, as for Apache."""
    if reference is None:
        return Passwords()
    return parse_passwords(_content(reference), reference)


def parse_passwords(content: bytes, reference: CredentialsReference) -> Passwords:
    stripped = content.strip()
    if not stripped.startswith(b"{"):
        # Editors end a file with a newline; no password is meant to end with one.
        return Passwords(others=content.removesuffix(b"\n").removesuffix(b"\r"))
    try:
        table = json.loads(stripped)
    except ValueError:
        raise _bad(reference, "begins like a JSON object and is none") from None
    others = b""
    by_ledger: list[tuple[Span, bytes]] = []
    for key, password in table.items():
        if not isinstance(password, str):
            raise _bad(reference, f"has something else than a text for ledger {key}")
        if key == _OTHERS:
            others = password.encode()
            continue
        try:
            spans = parse_selection(key)
        except BadRequestError:
            spans = None
        if not isinstance(spans, Listed):
            raise _bad(reference, f"has the key {key!r}: want ids and ranges, or {_OTHERS}")
        by_ledger += ((span, password.encode()) for span in spans.spans)
    return Passwords(others=others, by_ledger=tuple(by_ledger))


def _content(reference: CredentialsReference) -> bytes:
    if reference.place is Place.ENV:
        value = os.environb.get(reference.name.encode())
        if value is None:
            raise _bad(
                reference,
                "is not set in this worker: set spark.executorEnv."
                f"{reference.name}, and the variable itself for the driver",
            )
        return value
    path = Path(reference.name)
    if reference.place is Place.SPARKFILE:
        path = _spark_file(reference.name)
    try:
        with path.open("rb") as file:
            content = file.read(_CONTENT_BYTES_MAX + 1)
    except OSError as error:
        raise _bad(
            reference, f"cannot be read ({error.strerror}): is the file on every machine?"
        ) from None
    if len(content) > _CONTENT_BYTES_MAX:
        raise _bad(reference, f"has more than {_CONTENT_BYTES_MAX} bytes: no file of passwords")
    return content


def _spark_file(name: str) -> Path:
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name))


def _bad(reference: CredentialsReference, what: str) -> SourceError:
    return SourceError(Code.AUTH_FAILED, f"credentials {reference} {what}")
