"""What an output looks like when its values do not matter: to compare ours with Apache's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent.parent / "vectors" / "shell.json"

_VALUES = (
    (r"^(INFO|WARN|ERROR) *", ""),
    (r"zk(\+\w+)?://[^,}\s]+", "URI"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "UUID"),
    (r"\[\d+\.\d+\.\d+\.\d+:\d+(, \d+\.\d+\.\d+\.\d+:\d+)*\]", "BOOKIES"),
    (r"/[^\s,}\"\\]+", "PATH"),
    (r"\b[0-9a-f]+\.(txn|jnl|log)\b", "FILE"),
    (r"\blocalhost\b", "127.0.0.1"),
    (r"password=[^,}]*", "password=PASSWORD"),
    (r"base64:[\w=+/]*", "BASE64"),
    (r"-?\d+(\.\d+)*", "N"),
)


def shape(line: str) -> str:
    for pattern, name in _VALUES:
        line = re.sub(pattern, name, line)
    return line.rstrip()


def shapes(lines: Iterable[str]) -> set[str]:
    return {shape(line) for line in lines}


def captured(verb: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    return next(row for row in found if row["verb"] == verb)


def apache(verb: str, arguments: str | None = None) -> set[str]:
    """The shapes of what Apache's shell wrote; lines that were cut are left out."""
    row = captured(verb)
    output = row["example_output"]
    if arguments is not None:
        output = next(e["output"] for e in row["more_examples"] if e["args"] == arguments)
    lines = output.splitlines() if isinstance(output, str) else output
    return {shape(line) for line in lines if not line.startswith("... (")}
