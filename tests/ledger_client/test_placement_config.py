"""Placement by BookKeeper's keys."""

from __future__ import annotations

import pytest

from ledger_client.core.placement import DefaultPolicy
from ledger_client.core.topology_placement import RackAware, RegionAware, ZoneAware
from ledger_client.placement_config import PlacementConfig, placement_of
from runtime.config import ConfigError

PACKAGE = "org.apache.bookkeeper.client."


@pytest.mark.parametrize(
    ("name", "policy", "default"),
    [
        ("RackawareEnsemblePlacementPolicy", RackAware, ("default-rack",)),
        ("RegionAwareEnsemblePlacementPolicy", RegionAware, ("default-region", "default-rack")),
        (
            "ZoneawareEnsemblePlacementPolicy",
            ZoneAware,
            ("default-zone", "default-upgradedomain"),
        ),
    ],
)
def test_policy_is_found_by_the_name_of_apaches_class(
    name: str, policy: type, default: tuple[str, ...]
) -> None:
    for spelling in (name, PACKAGE + name):
        chosen, topology = placement_of(PlacementConfig(policy=spelling, table="racks"))
        assert type(chosen) is policy
        assert topology is not None
        assert topology.locations.default == default


def test_racks_without_a_topology_are_no_racks() -> None:
    policy, topology = placement_of(PlacementConfig())
    assert type(policy) is DefaultPolicy
    assert topology is None


def test_enforced_racks_without_a_topology_stay_enforced() -> None:
    policy, topology = placement_of(PlacementConfig(enforces_racks=True))
    assert type(policy) is RackAware
    assert topology is not None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"policy": "com.example.Mine"}, "'com.example.Mine': there are Rackaware"),
        ({"script": "a", "table": "b"}, "both set"),
        ({"local": "rack"}, "quire_localNetworkLocation: 'rack' is not"),
    ],
)
def test_keys_that_make_no_sense_are_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        PlacementConfig(**given)  # type: ignore[arg-type]
