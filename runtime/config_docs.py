"""The operator's page on configuration, written from the declarations.

The page has blocks between `<!-- options module.Class -->` and `<!-- end -->`. Each is filled
with the options that this class declares; the prose around them is written by hand. A test fails
when page and declarations differ; `python -m runtime.config_docs docs/configuration.md`
brings the page up to date.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Final

from runtime.config import REQUIRED, Option, options_of, text_of
from runtime.config_keys import APACHE_KEYS

_BLOCK: Final = re.compile(r"(<!-- options ([\w.]+)\.(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def classes_of(page: str) -> list[type]:
    """The dataclasses whose options the page shows."""
    return [_load(match[2], match[3]) for match in _BLOCK.finditer(page)]


def filled(page: str) -> str:
    """The page with every block as the declarations have it now."""
    return _BLOCK.sub(lambda match: match[1] + table_of(_load(match[2], match[3])) + match[4], page)


def table_of(config: type) -> str:
    lines = ["| key | default | what it does |", "|---|---|---|"]
    lines += [_row(declared) for declared in options_of(config).values()]
    return "\n".join(lines) + "\n"


def deviation_of(declared: Option) -> str | None:
    """Apache's default when ours is another, as text."""
    apache = APACHE_KEYS.get(declared.key)
    if apache is None:
        return None
    theirs = apache.default
    if theirs is None:
        return "unset" if declared.default not in (None, (), REQUIRED) else None
    if declared.kind in ("int", "float") and declared.default not in (None, REQUIRED):
        return None if float(theirs) == declared.default else theirs
    return None if theirs == _default_text(declared) else theirs


def _row(declared: Option) -> str:
    parts = [declared.doc]
    # A switch or a free text explains itself; a bound or a choice must be said.
    if declared.choices or declared.minimum is not None or declared.maximum is not None:
        parts.append(f"Allowed: {declared.allowed}.")
    apache = deviation_of(declared)
    if apache is not None:
        parts.append(f"Apache's default: `{apache}`. {declared.why}")
    text = " ".join(parts).replace("|", "\\|")
    default = _default_text(declared)
    shown = f"`{default}`" if default else "required" if declared.default is REQUIRED else "unset"
    return f"| `{declared.key}` | {shown} | {text} |"


def _default_text(declared: Option) -> str:
    return "" if declared.default is REQUIRED else text_of(declared.default)


def _load(module: str, name: str) -> type:
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type), f"{module}.{name} is no class"
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(filled(target.read_text()))
