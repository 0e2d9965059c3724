"""What is read from a bookie's metrics page, and what becomes of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from quire.console.metrics_text import Latency, Scrape, parse_metrics
from quire.console.rates import RateMeter, Rates, total
from runtime.metrics import Registry, counter, gauge

VECTORS = Path(__file__).parent.parent / "vectors"

PAGE = """\
# TYPE bookkeeper_server_ADD_ENTRY_REQUEST summary
bookkeeper_server_ADD_ENTRY_REQUEST{success="false",quantile="0.99"} 900.0
bookkeeper_server_ADD_ENTRY_REQUEST{success="true",quantile="0.5"} 1.5
bookkeeper_server_ADD_ENTRY_REQUEST{success="true",quantile="0.99"} 12.25
bookkeeper_server_ADD_ENTRY_REQUEST_count{success="false"} 3
bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"} 40
bookkeeper_server_READ_ENTRY_REQUEST{success="true",quantile="0.5"} NaN
bookie_BOOKIE_READ_ENTRY_BYTES_count{success="true"} 7
bookie_WRITE_BYTES 4096
bookie_READ_BYTES 70
bookie_SERVER_STATUS 1
bookie_ledger_dir__data_1_usage 25.0
bookie_ledger_dir__data_2_usage 81.5
quire_loop_lag_ms{success="true",quantile="0.99"} 0.5
"""


def test_page_of_a_bookie_is_understood() -> None:
    assert parse_metrics(PAGE) == Scrape(
        adds=40,
        reads=7,
        added_bytes=4096,
        read_bytes=70,
        add_latency=Latency(p50=1.5, p99=12.25),
        read_latency=Latency(),
        loop_lag_p99_ms=0.5,
        disk_used=0.815,
        is_writable=True,
    )


def test_page_of_apache_s_bookie_is_understood() -> None:
    """One line of each family, as captured from a live one."""
    captured = json.loads((VECTORS / "metrics.json").read_text())["bookie"]
    scrape = parse_metrics("\n".join(family["sample"] for family in captured))
    assert (scrape.added_bytes, scrape.read_bytes) == (20202754, 11174721)
    assert scrape.read_latency == Latency(p99=78.161)
    assert scrape.disk_used == pytest.approx(0.7373051)
    assert scrape.is_writable


@pytest.mark.parametrize(
    "page",
    [
        "",
        "\x00\xff" * 100,
        "bookie_WRITE_BYTES\nbookie_WRITE_BYTES x\n{} 1\n= = =",
        "bookie_WRITE_BYTES NaN\nbookie_SERVER_STATUS +Inf\nbookie_ledger_dir_a_usage NaN",
        "<html>404</html>",
    ],
)
def test_page_of_a_stranger_says_nothing(page: str) -> None:
    assert parse_metrics(page) == Scrape()


def test_labels_with_braces_in_their_quotes_do_no_harm() -> None:
    assert parse_metrics('x{path="a\\"}b"} 1\nbookie_WRITE_BYTES 2\n').added_bytes == 2


def test_our_own_registry_is_understood() -> None:
    """Names and labels as our bookies write them."""
    registry = Registry()
    adds = registry.summary("bookkeeper_server_ADD_ENTRY_REQUEST")
    adds.success.record(3.0, 5)
    adds.failure.record(9.0)
    registry.add_source(
        lambda: [counter("bookie_WRITE_BYTES", 17), gauge("bookie_ledger_dir_x_usage", 50.0)]
    )
    scrape = parse_metrics(registry.render())
    assert (scrape.adds, scrape.added_bytes, scrape.disk_used) == (5, 17, 0.5)
    assert scrape.add_latency.p50 == pytest.approx(3.0, rel=0.05)
    assert scrape.read_latency == Latency()


def test_rates_come_from_two_looks() -> None:
    meter = RateMeter()
    assert meter.on_look(Scrape(adds=10, added_bytes=100), 1.0) == Rates()
    assert meter.on_look(Scrape(adds=30, added_bytes=500), 3.0) == Rates(adds=10, added_bytes=200)


def test_counter_that_began_anew_has_no_rate() -> None:
    meter = RateMeter()
    meter.on_look(Scrape(adds=1000, reads=5), 1.0)
    assert meter.on_look(Scrape(adds=2, reads=6), 2.0) == Rates(reads=1)
    assert meter.on_look(Scrape(adds=4, reads=6), 3.0) == Rates(adds=2, reads=0)


def test_look_after_a_long_pause_has_no_rate() -> None:
    meter = RateMeter()
    meter.on_look(Scrape(adds=0), 1.0)
    assert meter.on_look(Scrape(adds=1_000_000), 600.0) == Rates()


def test_sums_leave_out_what_nobody_knows() -> None:
    found = total([Rates(adds=1.5), Rates(), Rates(adds=2, reads=0)])
    assert found == Rates(adds=3.5, reads=0)
    assert not math.isnan(found.adds or 0)
