"""The LAYOUT node: which way ledgers are laid out, agreed by everybody who shares a tree.

Two processes with different ideas of the layout destroy each other's data (see `paths`), so a
stored layout is obeyed or the start fails; it is never overruled. The node names a Java class,
and must: a name that Java cannot load locks every Java process out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType

#: Format of the node's own text; version 1 held short type names instead of classes.
_FORMAT: Final = 2
_MANAGER_VERSION: Final = 1
_PACKAGE: Final = "org.apache.bookkeeper.meta."

CLASS_NAMES: Final = {
    LayoutType.FLAT: _PACKAGE + "FlatLedgerManagerFactory",
    LayoutType.LEGACY_HIERARCHICAL: _PACKAGE + "LegacyHierarchicalLedgerManagerFactory",
    LayoutType.HIERARCHICAL: _PACKAGE + "HierarchicalLedgerManagerFactory",
    LayoutType.LONG_HIERARCHICAL: _PACKAGE + "LongHierarchicalLedgerManagerFactory",
}
_TYPE_BY_CLASS: Final = {name: layout for layout, name in CLASS_NAMES.items()}
_TYPE_BY_NAME_V1: Final = {
    "flat": LayoutType.FLAT,
    "hierarchical": LayoutType.HIERARCHICAL,
}
#: Keeps ledgers in a metadata store of its own making, not in the tree.
_MS_CLASS: Final = _PACKAGE + "MSLedgerManagerFactory"

_INTEGER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LayoutNode:
    """What the node says, before we judge whether we can live with it."""

    manager: str  # a class name, or a type name in format version 1
    manager_version: int = _MANAGER_VERSION
    format_version: int = _FORMAT


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The layout to use; `data` is what to create the node with, or None if it stands already.

    Somebody else may create it first. Then read it and decide again: that either agrees or
    raises.
    """

    layout: LayoutType
    data: bytes | None = None


def format_layout(node: LayoutNode) -> bytes:
    return f"{node.format_version}\n{node.manager}:{node.manager_version}".encode()


def parse_layout(data: bytes, *, path: str = "LAYOUT") -> LayoutNode:
    """Lines after the second are ignored, as in Java."""
    lines = data.decode("utf-8", "replace").split("\n")
    parts = lines[1].split(":") if len(lines) > 1 else []
    if (
        _INTEGER.fullmatch(lines[0]) is None
        or len(parts) != 2
        or _INTEGER.fullmatch(parts[1]) is None
    ):
        raise InvalidMetadataError(
            f"{path} is not a layout: want a number and then <class>:<number>, found {data[:80]!r}"
        )
    version = int(lines[0])
    if not 1 <= version <= _FORMAT:
        raise InvalidMetadataError(
            f"{path} has format {version}, this release knows 1..{_FORMAT}; upgrade"
        )
    return LayoutNode(manager=parts[0], manager_version=int(parts[1]), format_version=version)


def layout_of_class(name: str, *, shaded_prefix: str = "") -> LayoutType:
    """The layout behind a Java class name, as LAYOUT or `ledgerManagerFactoryClass` give it.

    `shaded_prefix` is what a build that relocates packages puts in front of it.
    """
    known = _TYPE_BY_CLASS.get(name) or _TYPE_BY_CLASS.get(name.removeprefix(shaded_prefix))
    if known is not None:
        return known
    if name == _MS_CLASS:
        raise InvalidMetadataError(
            f"{name} keeps ledgers outside the ZooKeeper tree, which is not supported; "
            f"use a hierarchical layout"
        )
    raise InvalidMetadataError(
        f"ledger manager {name!r} is not supported, want one of {', '.join(CLASS_NAMES.values())}"
    )


def decide_layout(
    stored: LayoutNode | None,
    configured: LayoutType | None,
    *,
    shaded_prefix: str = "",
    path: str = "LAYOUT",
) -> LayoutDecision:
    """Which layout a starting process uses.

    | stored | configured | |
    |---|---|---|
    | nothing | nothing | write hierarchical |
    | nothing | a type | write that |
    | a layout | nothing | obey it |
    | a layout | a type | must agree |
    """
    if stored is None:
        layout = configured or LayoutType.HIERARCHICAL
        return LayoutDecision(layout, format_layout(LayoutNode(CLASS_NAMES[layout])))
    if stored.manager_version != _MANAGER_VERSION:
        raise InvalidMetadataError(
            f"{path} asks for version {stored.manager_version} of {stored.manager}, "
            f"only {_MANAGER_VERSION} is known; upgrade"
        )
    if stored.format_version == 1:
        found = _TYPE_BY_NAME_V1.get(stored.manager)
        if found is None:
            raise InvalidMetadataError(f"{path} names the unknown layout {stored.manager!r}")
    else:
        found = layout_of_class(stored.manager, shaded_prefix=shaded_prefix)
    if configured not in (None, found):
        assert configured is not None
        raise InvalidMetadataError(
            f"the configured layout {configured.value} does not match existing layout "
            f"{found.value} in {path}; correct the metadata service URI"
        )
    return LayoutDecision(found)
