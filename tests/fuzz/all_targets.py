"""All targets by their names."""

from __future__ import annotations

from tests.fuzz import targets_store, targets_text, targets_wire

TARGETS = {
    target.name: target
    for target in (*targets_wire.TARGETS, *targets_store.TARGETS, *targets_text.TARGETS)
}
