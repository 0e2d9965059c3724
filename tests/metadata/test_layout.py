"""The LAYOUT node, and who gives way when it disagrees with the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata.layout import (
    CLASS_NAMES,
    LayoutDecision,
    LayoutNode,
    decide_layout,
    format_layout,
    layout_of_class,
    parse_layout,
)
from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType

VECTORS = Path(__file__).parent.parent / "vectors"
HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


def test_default_layout_is_the_golden_sample() -> None:
    decision = decide_layout(None, None)
    assert decision == LayoutDecision(LayoutType.HIERARCHICAL, HIERARCHICAL)
    assert len(HIERARCHICAL) == 63


def captured_layouts(value: object) -> Iterator[tuple[str, str]]:
    """Every LAYOUT node anywhere in a vector file: its path and its data."""
    if isinstance(value, dict):
        path, data = value.get("path"), value.get("data_hex")
        if isinstance(path, str) and path.count("/") == 2 and path.endswith("/LAYOUT") and data:
            yield path, data
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for child in children:  # type: ignore[attr-defined]
            yield from captured_layouts(child)


def test_every_captured_layout_is_parsed_and_written_back() -> None:
    found: set[str] = set()
    for path, data in captured_layouts(json.loads((VECTORS / "metadata-tree.json").read_text())):
        node = parse_layout(bytes.fromhex(data), path=path)
        assert format_layout(node).hex() == data
        assert decide_layout(node, None) == LayoutDecision(layout_of_class(node.manager))
        found.add(node.manager)
    assert found == set(CLASS_NAMES.values())


@pytest.mark.parametrize("configured", [None, *LayoutType])
@pytest.mark.parametrize("stored", LayoutType)
def test_stored_layout_is_obeyed_or_the_start_fails(
    stored: LayoutType, configured: LayoutType | None
) -> None:
    node = LayoutNode(CLASS_NAMES[stored])
    if configured in (None, stored):
        assert decide_layout(node, configured) == LayoutDecision(stored)
    else:
        with pytest.raises(InvalidMetadataError, match="does not match existing layout"):
            decide_layout(node, configured)


@pytest.mark.parametrize("configured", LayoutType)
def test_configured_layout_is_written_where_there_is_none(configured: LayoutType) -> None:
    decision = decide_layout(None, configured)
    assert decision.layout is configured
    assert decision.data is not None
    # Somebody else was faster with the same idea.
    assert decide_layout(parse_layout(decision.data), configured) == LayoutDecision(configured)


@pytest.mark.parametrize(
    ("data", "layout"),
    [(b"1\nflat:1", LayoutType.FLAT), (b"1\nhierarchical:1", LayoutType.HIERARCHICAL)],
)
def test_layout_of_version_1_names_a_type(data: bytes, layout: LayoutType) -> None:
    assert decide_layout(parse_layout(data), None) == LayoutDecision(layout)
    assert decide_layout(parse_layout(data), layout) == LayoutDecision(layout)
    with pytest.raises(InvalidMetadataError):
        decide_layout(parse_layout(data), LayoutType.LONG_HIERARCHICAL)


def test_further_lines_are_ignored() -> None:
    assert parse_layout(HIERARCHICAL + b"\nmore\n") == parse_layout(HIERARCHICAL)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b"2\n",
        b"x\nflat:1",
        b"2\nflat",
        b"2\nflat:1:2",
        b"2\nflat:x",
        b"-2\nf:1",
        b"\xff\n:",
    ],
)
def test_bytes_that_are_no_layout_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError, match="/ledgers/LAYOUT is not a layout") as caught:
        parse_layout(data, path="/ledgers/LAYOUT")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [0, 3, 17])
def test_layout_of_another_format_is_refused(version: int) -> None:
    with pytest.raises(InvalidMetadataError, match=f"has format {version}"):
        parse_layout(f"{version}\nflat:1".encode())


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (LayoutNode(CLASS_NAMES[LayoutType.FLAT], manager_version=2), "version 2 of"),
        (LayoutNode("org.apache.bookkeeper.meta.MSLedgerManagerFactory"), "outside the ZooKeeper"),
        (LayoutNode("quire.metadata.Layout"), "is not supported"),
        (LayoutNode("longhierarchical", format_version=1), "unknown layout"),
    ],
)
def test_layout_that_we_do_not_implement_stops_the_start(node: LayoutNode, message: str) -> None:
    with pytest.raises(InvalidMetadataError, match=message):
        decide_layout(node, None)


def test_shaded_class_is_known_by_its_prefix_only_when_told() -> None:
    node = LayoutNode("dlshade." + CLASS_NAMES[LayoutType.HIERARCHICAL])
    with pytest.raises(InvalidMetadataError):
        decide_layout(node, None)
    decision = decide_layout(node, LayoutType.HIERARCHICAL, shaded_prefix="dlshade.")
    assert decision == LayoutDecision(LayoutType.HIERARCHICAL)
