"""All targets by their names."""

from __future__ import annotations

from tests.fuzz import (
    targets_auth,
    targets_entries,
    targets_http,
    targets_store,
    targets_text,
    targets_wire,
)

TARGETS = {
    target.name: target
    for module in (
        targets_wire,
        targets_entries,
        targets_auth,
        targets_store,
        targets_text,
        targets_http,
    )
    for target in module.TARGETS
}
