"""Asking over HTTP, and what an answer looks like when its values do not matter."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VECTORS = Path(__file__).parent.parent / "vectors" / "http.json"
SECONDS = 90.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(
    url: str,
    method: str,
    path: str,
    *,
    query: str = "",
    body: str | bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
    try:
        target = f"{path}?{query}" if query else path
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read().decode())
    finally:
        connection.close()


def captured() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    assert len(found) > 300
    return found


def shape(value: object) -> object:
    """Members by name, or by "*" where the names are values; types; sentences without numbers."""
    if isinstance(value, dict):
        return {_masked(str(name)): _kind(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return _masked(value) if isinstance(value, str) else type(value).__name__


def agrees(ours: object, theirs: object) -> bool:
    """Whether the shapes go together: what is empty goes with everything of its kind."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if not ours or not theirs:
            return True
        return ours.keys() == theirs.keys() and all(agrees(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return not ours or not theirs or agrees(ours[0], theirs[0])
    return ours == theirs


def _kind(member: object) -> object:
    return shape(member) if isinstance(member, dict | list) else type(member).__name__


def _masked(text: str) -> str:
    for pattern, name in _VALUES:
        text = re.sub(pattern, name, text)
    return text.strip()


_VALUES = (
    (r"\d+\.\d+\.\d+\.\d+:\d+", "BOOKIE"),
    (r"^(\d+|BOOKIE)$", "*"),
    (r"\b[0-9a-f]+\.(txn|jnl)\b", "FILE"),
    (r"/[\w./-]+", "PATH"),
    (r"\d+", "N"),
    (r"(Auditor: ).*", r"\1ID"),
)
