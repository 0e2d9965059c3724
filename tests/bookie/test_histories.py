"""Ten thousand random histories against the model; a red one names its seed and tells its story.

QUIRE_SEED=4242 pytest tests/bookie/test_histories.py    # that one alone
"""

from __future__ import annotations

import os
import random

import pytest

from bookie.storage import log_table
from tests.bookie.histories import History

HISTORIES = 10_000
PER_TEST = 100


def seeds() -> list[range]:
    chosen = os.environ.get("QUIRE_SEED")
    if chosen is not None:
        return [range(int(chosen), int(chosen) + 1)]
    return [range(first, first + PER_TEST) for first in range(0, HISTORIES, PER_TEST)]


@pytest.mark.parametrize("chosen", seeds(), ids=lambda r: f"{r.start}-{r.stop - 1}")
def test_nothing_acknowledged_is_lost_in_any_history(
    chosen: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several pieces for each checkpoint, so that a crash can fall between them.
    monkeypatch.setattr(log_table, "PIECE_CHANGES", 4)
    for seed in chosen:
        history = History(seed)
        try:
            history.run(random.Random(seed).randint(30, 60))
        except Exception as error:
            story = "\n".join(history.trace)
            raise AssertionError(f"seed {seed}: {error}\n{story}") from error
