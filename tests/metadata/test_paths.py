"""Ids to paths and back, in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metadata.model import InvalidMetadataError
from metadata.paths import (
    LONG_FORM_FROM,
    ClusterPaths,
    LayoutType,
    LedgerPaths,
    check_root,
    is_special_name,
    ledger_of_mark_name,
    mark_name,
    sequence_of,
)
from wire.types import ID_MAX, BookieId, LedgerId

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)

VECTORS = Path(__file__).parent.parent / "vectors"
FLAT = LedgerPaths("/ledgers", LayoutType.FLAT)
LEGACY = LedgerPaths("/ledgers", LayoutType.LEGACY_HIERARCHICAL)
HYBRID = LedgerPaths("/ledgers", LayoutType.HIERARCHICAL)
LONG = LedgerPaths("/ledgers", LayoutType.LONG_HIERARCHICAL)
ALL = [FLAT, LEGACY, HYBRID, LONG]
CLUSTER = ClusterPaths("/ledgers")


@pytest.mark.parametrize(
    ("paths", "ledger_id", "path"),
    [
        (FLAT, 12345, "/ledgers/L0000012345"),
        (FLAT, 2147483646, "/ledgers/L2147483646"),
        (LEGACY, 12345, "/ledgers/00/0001/L2345"),
        (LEGACY, 2147483646, "/ledgers/21/4748/L3646"),
        (HYBRID, 0, "/ledgers/00/0000/L0000"),
        (HYBRID, 12345, "/ledgers/00/0001/L2345"),
        (HYBRID, 2147483646, "/ledgers/21/4748/L3646"),
        (HYBRID, 2147483647, "/ledgers/000/0000/0021/4748/L3647"),
        (HYBRID, 4294967296, "/ledgers/000/0000/0042/9496/L7296"),
        (HYBRID, ID_MAX, "/ledgers/922/3372/0368/5477/L5807"),
        (LONG, 0, "/ledgers/000/0000/0000/0000/L0000"),
        (LONG, 12345, "/ledgers/000/0000/0000/0001/L2345"),
        (LONG, ID_MAX, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_path_is_the_one_java_uses(paths: LedgerPaths, ledger_id: int, path: str) -> None:
    assert paths.path_of(LedgerId(ledger_id)) == path
    assert paths.id_of(path) == ledger_id


def test_boundary_of_the_hybrid_layout_is_2_to_the_31_minus_1() -> None:
    assert LONG_FORM_FROM == 2147483647
    forms = [len(HYBRID.path_of(LedgerId(2147483647 + step)).split("/")) for step in (-2, -1, 0, 1)]
    assert forms == [5, 5, 7, 7]


@pytest.mark.parametrize("paths", ALL, ids=lambda paths: paths.layout.value)
@pytest.mark.parametrize("ledger_id", [-1, 2**63, 2**64])
def test_id_that_is_no_ledger_id_has_no_path(paths: LedgerPaths, ledger_id: int) -> None:
    with pytest.raises(InvalidMetadataError, match="does not fit"):
        paths.path_of(LedgerId(ledger_id))


@pytest.mark.parametrize("paths", [FLAT, LEGACY], ids=lambda paths: paths.layout.value)
@pytest.mark.parametrize("ledger_id", [2147483647, 4294967296, 10**10, ID_MAX])
def test_small_layout_refuses_ids_that_collide_or_vanish_there(
    paths: LedgerPaths, ledger_id: int
) -> None:
    assert paths.id_max == 2147483646
    with pytest.raises(InvalidMetadataError, match=r"want 0\.\.2147483646"):
        paths.path_of(LedgerId(ledger_id))


@pytest.mark.parametrize(
    ("paths", "path", "ledger_id"),
    [
        (FLAT, "/ledgers/L2147483647", 2147483647),
        (LEGACY, "/ledgers/92/2337/L2036", 9223372036),
    ],
)
def test_small_layout_lists_what_others_put_there_all_the_same(
    paths: LedgerPaths, path: str, ledger_id: int
) -> None:
    assert paths.id_of(path) == ledger_id


@pytest.mark.parametrize("paths", ALL, ids=lambda paths: paths.layout.value)
@steady
@given(ledger_id=st.integers(0, ID_MAX))
@example(ledger_id=LONG_FORM_FROM)
@example(ledger_id=LONG_FORM_FROM - 1)
def test_path_round_trips(paths: LedgerPaths, ledger_id: int) -> None:
    ledger_id = min(ledger_id, paths.id_max)
    path = paths.path_of(LedgerId(ledger_id))
    assert paths.id_of(path) == ledger_id
    names = path.removeprefix("/ledgers/").split("/")
    assert paths.is_top_level(names[0])
    assert paths.levels_below(names[0]) == len(names) - 1
    assert list(paths.parents_of(path)) == [
        "/ledgers/" + "/".join(names[:count]) for count in range(len(names) - 1, 0, -1)
    ]


@steady
@given(st.lists(st.integers(0, ID_MAX), min_size=2, max_size=2, unique=True))
def test_paths_sort_like_ids_within_each_form(pair: list[int]) -> None:
    """Garbage collection needs ranges in ascending order: 2-digit tops, then 3-digit ones."""
    low, high = sorted(pair)
    keys = [
        (len(path.split("/")[2]), path)
        for path in (HYBRID.path_of(LedgerId(low)), HYBRID.path_of(LedgerId(high)))
    ]
    assert keys == sorted(keys)
    assert LONG.path_of(LedgerId(low)) < LONG.path_of(LedgerId(high))


@pytest.mark.parametrize(
    ("paths", "path"),
    [
        (HYBRID, "/ledgers/000/0000/0000/0001/L2345"),  # a small id in the long form
        (HYBRID, "/ledgers/21/4748/L3647"),  # a large one in the short form
        (HYBRID, "/ledgers/999/9999/9999/9999/L9999"),  # more than 63 bits
        (HYBRID, "/ledgers/00/0001/2345"),
        (HYBRID, "/ledgers/00/0001/L234"),
        (HYBRID, "/ledgers/00/0001/L23456"),
        (HYBRID, "/ledgers/00/0001/L2345/x"),
        (HYBRID, "/ledgers/0/0001/L2345"),
        (HYBRID, "/ledgers/L0000012345"),
        (HYBRID, "/other/00/0001/L2345"),
        (HYBRID, "/ledgersx/00/0001/L2345"),
        (HYBRID, "/ledgers"),
        (HYBRID, ""),
        (HYBRID, "/ledgers/00/0001/L\u0662\u0663\u0664\u0665"),
        (LONG, "/ledgers/00/0001/L2345"),
        (LEGACY, "/ledgers/000/0000/0021/4748/L3647"),
        (FLAT, "/ledgers/00/0001/L2345"),
        (FLAT, "/ledgers/L9223372036854775807"),
    ],
)
def test_path_that_the_layout_does_not_use_is_refused(paths: LedgerPaths, path: str) -> None:
    with pytest.raises(InvalidMetadataError, match="is not the path of a ledger"):
        paths.id_of(path)


def test_top_level_names_of_each_layout() -> None:
    names = ["00", "99", "000", "L0000000001", "L00000000010", "0", "0000", "available", "LAYOUT"]
    assert {
        paths.layout: [name for name in names if paths.is_top_level(name)] for paths in ALL
    } == {
        LayoutType.FLAT: ["L0000000001"],
        LayoutType.LEGACY_HIERARCHICAL: ["00", "99"],
        LayoutType.HIERARCHICAL: ["00", "99", "000"],
        LayoutType.LONG_HIERARCHICAL: ["000"],
    }
    assert [paths.removes_parents for paths in ALL] == [False, False, True, True]


def test_special_names_are_those_of_java() -> None:
    for name in ("available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen"):
        assert is_special_name(name)
    assert is_special_name("idgen-long")
    assert is_special_name("ID-0000000004")
    assert not is_special_name("disableHealthCheck")
    assert not is_special_name("00")


@pytest.mark.parametrize("root", ["", "ledgers", "/", "/ledgers/", "/a//b", "//a"])
def test_root_that_makes_invalid_paths_is_refused(root: str) -> None:
    for build in (check_root, ClusterPaths, lambda text: LedgerPaths(text, LayoutType.FLAT)):
        with pytest.raises(InvalidMetadataError, match="write an absolute path"):
            build(root)


def test_root_may_be_nested() -> None:
    paths = LedgerPaths("/a/b/ledgers", LayoutType.HIERARCHICAL)
    assert paths.path_of(LedgerId(1)) == "/a/b/ledgers/00/0000/L0001"
    assert paths.parents_of("/a/b/ledgers/00/0000/L0001") == (
        "/a/b/ledgers/00/0000",
        "/a/b/ledgers/00",
    )


# ---------------------------------------------------------------------- everything else


def test_fixed_nodes_have_the_names_of_java() -> None:
    bookie = BookieId("bk1.example.com:3181")
    assert CLUSTER.layout == "/ledgers/LAYOUT"
    assert CLUSTER.instance_id == "/ledgers/INSTANCEID"
    assert CLUSTER.registration(bookie) == "/ledgers/available/bk1.example.com:3181"
    assert (
        CLUSTER.registration(bookie, readonly=True)
        == "/ledgers/available/readonly/bk1.example.com:3181"
    )
    assert CLUSTER.cookie(bookie) == "/ledgers/cookies/bk1.example.com:3181"
    assert CLUSTER.disable_health_check == "/ledgers/disableHealthCheck"
    assert CLUSTER.id_prefix_flat == "/ledgers/ID-"
    assert CLUSTER.id_prefix == "/ledgers/idgen/ID-"
    assert CLUSTER.high_bits(1) == "/ledgers/idgen-long/HOB-0000000001"
    assert CLUSTER.id_prefix_long(1) == "/ledgers/idgen-long/HOB-0000000001/ID-"
    assert CLUSTER.underreplication_layout == "/ledgers/underreplication/LAYOUT"
    assert CLUSTER.rereplication_disabled == "/ledgers/underreplication/disable"
    assert CLUSTER.vote_prefix == "/ledgers/underreplication/auditorelection/V_"


def test_bookie_id_that_would_leave_its_directory_gets_no_path() -> None:
    for text in ("../LAYOUT", "a/b", "", "readonly"):
        with pytest.raises(InvalidMetadataError):
            CLUSTER.cookie(BookieId(text))
        with pytest.raises(InvalidMetadataError):
            CLUSTER.registration(BookieId(text))


def test_every_captured_name_is_one_of_ours() -> None:
    """All paths below `underreplication` that a live cluster used."""
    nodes: list[dict[str, Any]] = json.loads((VECTORS / "underreplication.json").read_text())[
        "nodes"
    ]
    for node in nodes:
        path = node["path"]
        cluster = ClusterPaths("/" + path.split("/")[1])
        parent, _, name = path.rpartition("/")
        if node["kind"] == "UnderreplicatedLedgerFormat":
            ledger_id = cluster.marked_ledger(path)
            assert cluster.mark(ledger_id) == path
            assert cluster.mark_parents(ledger_id)[0] == parent
        elif node["kind"] == "LockDataFormat":
            assert cluster.lock(ledger_of_mark_name(name)) == path
        elif name.startswith("V_"):
            assert path == f"{cluster.vote_prefix}{sequence_of(path, 'V_'):010d}"
        else:
            assert path in {
                cluster.election,
                cluster.underreplication_layout,
                cluster.lost_bookie_recovery_delay,
                cluster.check_all_ledgers_ctime,
                cluster.placement_policy_check_ctime,
                cluster.replicas_check_ctime,
            }


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (12345, "/ledgers/underreplication/ledgers/0000/0000/0000/3039/urL0000012345"),
        (4294967296, "/ledgers/underreplication/ledgers/0000/0001/0000/0000/urL4294967296"),
        (
            ID_MAX,
            "/ledgers/underreplication/ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807",
        ),
    ],
)
def test_mark_lies_in_hexadecimal_directories_under_a_decimal_name(
    ledger_id: int, path: str
) -> None:
    assert CLUSTER.mark(LedgerId(ledger_id)) == path
    assert CLUSTER.marked_ledger(path) == ledger_id


@steady
@given(st.integers(0, ID_MAX))
def test_mark_and_lock_round_trip(ledger_id: int) -> None:
    mark = CLUSTER.mark(LedgerId(ledger_id))
    assert CLUSTER.marked_ledger(mark) == ledger_id
    assert CLUSTER.lock(LedgerId(ledger_id)).rpartition("/")[2] == mark.rpartition("/")[2]
    parents = CLUSTER.mark_parents(LedgerId(ledger_id))
    assert len(parents) == 4
    assert parents[-1].rpartition("/")[0] == CLUSTER.marks


@pytest.mark.parametrize(
    "name",
    [
        "urL",
        "urL5",
        "urL-000000005",
        "L0000000005",
        "urL0000000005x",
        "urL00000000005",
        "urL9999999999999999999",
    ],
)
def test_name_of_no_mark_is_refused(name: str) -> None:
    with pytest.raises(InvalidMetadataError, match="is not the name of a mark"):
        ledger_of_mark_name(name)


def test_mark_in_a_foreign_directory_is_refused() -> None:
    with pytest.raises(InvalidMetadataError, match="is not where the mark"):
        CLUSTER.marked_ledger("/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000002")
    with pytest.raises(InvalidMetadataError):
        mark_name(LedgerId(-1))
    with pytest.raises(InvalidMetadataError):
        CLUSTER.lock(LedgerId(2**63))


def test_sequence_number_is_read_also_after_the_counter_has_wrapped() -> None:
    assert sequence_of("/ledgers/idgen/ID-0000000007", "ID-") == 7
    assert sequence_of("/ledgers/idgen/ID--2147483648", "ID-") == -2147483648
    for path in ("/ledgers/idgen/XX-0000000007", "/ledgers/idgen/ID-", "/ledgers/idgen/ID-7x"):
        with pytest.raises(InvalidMetadataError, match="sequential"):
            sequence_of(path, "ID-")
