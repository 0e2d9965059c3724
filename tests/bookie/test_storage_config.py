"""What an operator configures reaches the engine, in its units."""

from __future__ import annotations

from bookie.storage.engine_values import EngineOptions
from bookie.storage_config import StorageConfig

MIB = 1 << 20


def storage_config(**changes: object) -> StorageConfig:
    return StorageConfig(
        journal_directories=("journal",),
        ledger_directories=("ledgers",),
        **changes,  # type: ignore[arg-type]
    )


def test_sizes_reach_the_engine_in_bytes() -> None:
    configured = storage_config(
        write_cache_mib=40, read_cache_mib=5, journal_pending_mib=6, log_cached_mib=7
    ).engine_options()
    assert configured.write_cache_bytes == 40 * MIB
    assert configured.generation_bytes == 5 * MIB
    assert configured.read_cache_bytes == 5 * MIB
    assert configured.journal_pending_bytes == 6 * MIB
    assert configured.log_cached_bytes == 7 * MIB


def test_nothing_configured_means_the_defaults_of_the_engine() -> None:
    assert storage_config().engine_options() == EngineOptions()
