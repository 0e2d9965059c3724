"""Placement by the keys that BookKeeper's operators know, for daemons that choose bookies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger_client.core.placement import DefaultPolicy, PlacementPolicy
from ledger_client.core.topology import Location, parse_location
from ledger_client.core.topology_placement import RackAware, RegionAware, ZoneAware
from ledger_client.topology import Resolver, Topology, TopologyScript, TopologyTable
from runtime.config import ConfigError, option
from wire.errors import BadRequestError

_PACKAGE: Final = "org.apache.bookkeeper.client."
_RACK: Final = "RackawareEnsemblePlacementPolicy"
_REGION: Final = "RegionAwareEnsemblePlacementPolicy"
_ZONE: Final = "ZoneawareEnsemblePlacementPolicy"
_DEFAULT: Final = "DefaultEnsemblePlacementPolicy"

_DEFAULT_PLACES: Final[dict[str, Location]] = {
    _RACK: ("default-rack",),
    _REGION: ("default-region", "default-rack"),
    _ZONE: ("default-zone", "default-upgradedomain"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Where copies go."""

    policy: str = option(
        "ensemblePlacementPolicy",
        _PACKAGE + _RACK,
        doc="The policy, by the name of Apache's class: Rackaware, RegionAware, Zoneaware or "
        "DefaultEnsemblePlacementPolicy. Without a topology every bookie stands in one rack.",
    )
    script: str | None = option(
        "networkTopologyScriptFileName",
        None,
        doc="A program that is given hosts and prints the location of each, one a line.",
    )
    table: str | None = option(
        "quire_networkTopologyTableFile",
        None,
        doc="A file with one `host /region/rack` in each line, instead of a script.",
    )
    local: str | None = option(
        "quire_localNetworkLocation",
        None,
        doc="Where this process stands itself, such as `/eu/rack-7`; its rack, or region, comes "
        "first.",
    )
    minimum_racks: int = option(
        "minNumRacksPerWriteQuorum", 2, minimum=1, doc="Racks that each write set spans at least."
    )
    enforces_racks: bool = option(
        "enforceMinNumRacksPerWriteQuorum", False, doc="Rather no bookie than one in a wrong rack."
    )
    minimum_regions: int = option(
        "reppMinimumRegionsForDurability",
        2,
        minimum=1,
        doc="Regions that each ack quorum spans at least.",
    )
    regions: str | None = option(
        "reppRegionsToWrite", None, doc="Regions to write to, with `;` between them. Unset: all."
    )
    enforces_regions: bool = option(
        "reppEnableDurabilityEnforcementInReplace",
        False,
        doc="Rather no bookie than one in a wrong region when a failed bookie is replaced.",
    )
    minimum_zones: int = option(
        "minNumZonesPerWriteQuorum", 2, minimum=1, doc="Zones that each write set spans at least."
    )
    desired_zones: int = option(
        "desiredNumZonesPerWriteQuorum", 3, minimum=1, doc="Zones to use where there are so many."
    )
    is_strict: bool = option(
        "enforceStrictZoneawarePlacement",
        True,
        doc="Rather no bookie than one in a wrong zone, or in none that is known.",
    )

    @property
    def kind(self) -> str:
        return self.policy.removeprefix(_PACKAGE)

    def __post_init__(self) -> None:
        if self.kind not in (*_DEFAULT_PLACES, _DEFAULT):
            raise ConfigError(
                f"ensemblePlacementPolicy is {self.policy!r}: there are {_RACK}, {_REGION}, "
                f"{_ZONE} and {_DEFAULT}"
            )
        if self.script is not None and self.table is not None:
            raise ConfigError(
                "networkTopologyScriptFileName and quire_networkTopologyTableFile are both set: "
                "keep one of them"
            )
        try:
            self.place()
        except BadRequestError as error:
            raise ConfigError(f"quire_localNetworkLocation: {error}") from None

    def place(self) -> Location | None:
        return None if self.local is None else parse_location(self.local)


def placement_of(config: PlacementConfig) -> tuple[PlacementPolicy, Topology | None]:
    """The policy, and the topology that must be followed for it, if there is one."""
    resolver: Resolver | None = None
    if config.table is not None:
        resolver = TopologyTable(config.table)
    elif config.script is not None:
        resolver = TopologyScript(config.script)
    if config.kind == _DEFAULT or (
        resolver is None and config.kind == _RACK and not config.enforces_racks
    ):
        return DefaultPolicy(), None  # one rack for all is no rack at all
    topology = Topology(resolver or _Nowhere(), default=_DEFAULT_PLACES[config.kind])
    locations, local = topology.locations, config.place()
    policy: PlacementPolicy
    if config.kind == _RACK:
        policy = RackAware(
            locations,
            minimum_racks=config.minimum_racks,
            enforce=config.enforces_racks,
            local=local,
        )
    elif config.kind == _REGION:
        policy = RegionAware(
            locations,
            minimum_regions=config.minimum_regions,
            minimum_racks=config.minimum_racks,
            enforce_replacement=config.enforces_regions,
            regions=[name for name in (config.regions or "").split(";") if name],
            local=local,
        )
    else:
        policy = ZoneAware(
            locations,
            minimum_zones=config.minimum_zones,
            desired_zones=config.desired_zones,
            strict=config.is_strict,
            local=local,
        )
    return policy, topology


class _Nowhere:
    """The resolver of whoever has none: everybody stays at the default place."""

    async def resolve(self, hosts: object) -> dict[str, Location]:
        return {}
