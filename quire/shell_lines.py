"""Lines in the shape of Apache's shell: a message, and what belongs to it in braces.

Apache writes results to its log, and whether the values are seen depends on the log's pattern.
Here they are the output.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.output import say

_HEX_COLUMNS = 16


def line(message: str, **attributes: object) -> None:
    """`message {a=1, b=2}`, attributes by name."""
    say(shaped(message, attributes))


def shaped(message: str, attributes: Mapping[str, object]) -> str:
    if not attributes:
        return message
    inside = ", ".join(f"{name}={_text(attributes[name])}" for name in sorted(attributes))
    return f"{message} {{{inside}}}"


def payload_lines(payload: bytes, entry_format: str) -> list[str]:
    """A payload for people: text with dots for what is not printable, or a hex dump."""
    if entry_format == "string":
        text = payload.decode("utf-8", errors="replace")
        return ["".join(c if c.isprintable() else "." for c in text)]
    lines = []
    for start in range(0, len(payload), _HEX_COLUMNS):
        part = payload[start : start + _HEX_COLUMNS]
        digits = " ".join(f"{byte:02X}" for byte in part)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08X} {digits:<{3 * _HEX_COLUMNS - 1}} {text}")
    return lines


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return "-" if value is None else str(value)
