"""Runs story files: a command, `----`, what happened, prose between.

A paragraph with a line `----` is a step: every line above it is a command, every line below it is
what the core answered. Any other paragraph is prose. The first step names the kind of story. With
`QUIRE_REWRITE=1` in the environment the answers are written back instead of compared, so that a
change of behaviour is a diff to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ledger_client.core.commands import Outcome
from wire.types import BookieId

RULE = "----"
REWRITE = "QUIRE_REWRITE"


class Story(Protocol):
    def obey(self, line: str) -> list[str]:
        """Carry out one command; what happened, line by line."""


@dataclass
class Arguments:
    """`verb word word name=value`, taken apart."""

    verb: str
    words: list[str]
    named: dict[str, str]
    in_order: list[str]  # both, as written

    @classmethod
    def parse(cls, line: str) -> Arguments:
        verb, *rest = line.split()
        named = dict(word.split("=", 1) for word in rest if "=" in word)
        return cls(verb, [word for word in rest if "=" not in word], named, rest)

    def number(self, name: str, default: int | None = None) -> int:
        value = self.named.get(name)
        if value is None:
            assert default is not None, f"{self.verb}: {name}= is missing"
            return default
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        return float(self.named.get(name, default))

    def outcome(self, default: str = "ok") -> Outcome:
        return outcome_of(self.named.get("outcome", default))


def outcome_of(text: str) -> Outcome:
    return Outcome[text.upper().replace("-", "_")]


def bookie_ids(text: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in text.split(","))


def slots_text(slots: dict[int, BookieId]) -> str:
    return " ".join(f"{slot}={bookie}" for slot, bookie in sorted(slots.items()))


def told(path: Path, kinds: dict[str, Callable[[Arguments], Story]]) -> str:
    """The story as it goes today."""
    story: Story | None = None
    paragraphs: list[str] = []
    for paragraph in re.split(r"\n{2,}", path.read_text().strip("\n")):
        lines = paragraph.splitlines()
        if RULE not in lines:
            paragraphs.append(paragraph)
            continue
        commands = lines[: lines.index(RULE)]
        happened: list[str] = []
        for line in commands:
            arguments = Arguments.parse(line)
            if arguments.verb in kinds:
                story = kinds[arguments.verb](arguments)
                happened.append("ready")
            else:
                assert story is not None, f"{path.name}: the first command must name the story"
                happened += story.obey(line)
        paragraphs.append("\n".join([*commands, RULE, *(happened or ["nothing"])]))
    return "\n\n".join(paragraphs) + "\n"
