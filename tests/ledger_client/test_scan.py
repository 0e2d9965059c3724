"""The decisions of a scan: how fast, and whose turn it is."""

from __future__ import annotations

from ledger_client.core.scan import Pace, RunSticky


def test_replica_stays_for_a_run_and_then_moves_on() -> None:
    sticky = RunSticky(1, 3, requests=4)
    assert [sticky.order()[0] for _ in range(12)] == [1] * 4 + [2] * 4 + [0] * 4


def test_replica_that_failed_is_left_at_once() -> None:
    sticky = RunSticky(0, 3, requests=10)
    sticky.order()
    sticky.on_error(0)
    assert sticky.order() == [1, 2, 0]


def test_pace_is_kept_over_time_and_allows_a_burst_after_a_pause() -> None:
    pace = Pace(bytes_per_second=1000, burst_bytes=500)
    assert pace.taken(500, now=100.0) == 0.0  # the burst
    assert pace.taken(1000, now=100.0) == 1.0
    assert pace.taken(1000, now=101.0) == 1.0
    assert pace.taken(500, now=200.0) == 0.0
    assert pace.taken(1, now=200.0) > 0.0
