"""Metrics: BookKeeper's names and forms, quantiles that can be trusted, a text that parses."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from runtime import metrics
from runtime.metrics import SLICES, Distribution, Registry, counter, gauge
from wire.errors import LedgerError

VECTORS = Path(__file__).parent.parent / "vectors" / "metrics.json"


@pytest.mark.parametrize("share", [0.5, 0.75, 0.95, 0.99, 0.999, 1.0])
def test_distribution_quantile_is_at_most_one_step_above_the_true_one(share: float) -> None:
    rng = random.Random(5)
    values = sorted(rng.lognormvariate(0, 3) for _ in range(5000))
    distribution = Distribution()
    for value in values:
        distribution.record(value)
    true = values[math.ceil(share * len(values)) - 1]
    assert true <= distribution.snapshot().quantile(share) <= true * (1 + 1 / 16)


def test_distribution_quantile_of_equal_values_is_that_value() -> None:
    distribution = Distribution()
    distribution.record(1.3, count=1000)
    snapshot = distribution.snapshot()
    assert snapshot.quantile(0.5) == snapshot.quantile(1.0) == snapshot.maximum == 1.3
    assert snapshot.count == 1000
    assert snapshot.total == pytest.approx(1300)


def test_distribution_without_values_has_no_quantiles() -> None:
    snapshot = Distribution().snapshot()
    assert (snapshot.count, snapshot.total) == (0, 0)
    assert math.isnan(snapshot.quantile(0.5))
    assert math.isnan(snapshot.maximum)


def test_distribution_takes_any_number_into_bounded_memory() -> None:
    distribution = Distribution()
    for exponent in range(-40, 60):
        for step in range(64):
            distribution.record(2.0**exponent * (1 + step / 64))
    distribution.record(0)
    distribution.record(-1)
    distribution.record(math.inf)
    assert len(distribution.snapshot().buckets) == 70 * 32 + 2


def test_distribution_forgets_old_slices_but_not_what_it_counted() -> None:
    distribution = Distribution()
    distribution.record(100)
    for _ in range(SLICES - 1):
        distribution.rotate()
        distribution.record(1)
    assert distribution.snapshot().maximum == 100
    distribution.rotate()
    assert distribution.snapshot().maximum == 1
    for _ in range(SLICES):
        distribution.rotate()
    snapshot = distribution.snapshot()
    assert math.isnan(snapshot.maximum)
    assert (snapshot.count, snapshot.total) == (SLICES, 100 + SLICES - 1)


def test_page_is_written_as_bookkeeper_writes_it() -> None:
    registry = Registry()
    summary = registry.summary("bookie_flush", help="Time of a flush.", ledgerDir="d1")
    summary.success.record(2.0, count=3)
    registry.add_source(
        lambda: [
            gauge("bookie_SERVER_STATUS", 1, help="1 writable,\n0 read-only \\"),
            counter("bookie_WRITE_BYTES", 4096),
            gauge("bookie_ledgers_count", 2.5, ledgerDir='a"b\\c\nd'),
        ]
    )
    assert registry.render() == (
        "# HELP bookie_SERVER_STATUS 1 writable,\\n0 read-only \\\\\n"
        "# TYPE bookie_SERVER_STATUS gauge\n"
        "bookie_SERVER_STATUS 1\n"
        "# TYPE bookie_WRITE_BYTES counter\n"
        "bookie_WRITE_BYTES 4096\n"
        "# HELP bookie_flush Time of a flush.\n"
        "# TYPE bookie_flush summary\n"
        'bookie_flush{success="false",ledgerDir="d1",quantile="0.5"} NaN\n'
        'bookie_flush{success="false",ledgerDir="d1",quantile="0.75"} NaN\n'
        'bookie_flush{success="false",ledgerDir="d1",quantile="0.95"} NaN\n'
        'bookie_flush{success="false",ledgerDir="d1",quantile="0.99"} NaN\n'
        'bookie_flush{success="false",ledgerDir="d1",quantile="0.999"} NaN\n'
        'bookie_flush{success="false",ledgerDir="d1",quantile="0.9999"} NaN\n'
        'bookie_flush{success="false",ledgerDir="d1",quantile="1.0"} NaN\n'
        'bookie_flush_count{success="false",ledgerDir="d1"} 0\n'
        'bookie_flush_sum{success="false",ledgerDir="d1"} 0.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="0.5"} 2.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="0.75"} 2.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="0.95"} 2.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="0.99"} 2.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="0.999"} 2.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="0.9999"} 2.0\n'
        'bookie_flush{success="true",ledgerDir="d1",quantile="1.0"} 2.0\n'
        'bookie_flush_count{success="true",ledgerDir="d1"} 3\n'
        'bookie_flush_sum{success="true",ledgerDir="d1"} 6.0\n'
        "# TYPE bookie_ledgers_count gauge\n"
        'bookie_ledgers_count{ledgerDir="a\\"b\\\\c\\nd"} 2.5\n'
    )


def test_page_can_show_every_family_that_a_java_bookie_has() -> None:
    """Names, types, labels and quantiles of the capture survive our writer and a foreign parser."""
    families = [
        family
        for family in json.loads(VECTORS.read_text())["bookie"]
        if not family["name"].startswith(("jvm_", "process_"))
    ]
    registry = Registry()
    samples = []
    for family in families:
        labels = {key: values[0] for key, values in family["labels"].items() if key != "success"}
        if family["type"] == "summary":
            registry.summary(family["name"], **labels)
            assert tuple(family["quantiles"]) == metrics.QUANTILES
        else:
            samples.append(
                (gauge if family["type"] == "gauge" else counter)(family["name"], 7, **labels)
            )
    registry.add_source(lambda: samples)
    text = registry.render()
    parsed = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) > 140
    for family in families:
        found = parsed[family["name"].removesuffix("_total")]
        assert found.type == family["type"]
        assert all(
            set(sample.labels) - {"quantile"} == set(family["labels"]) for sample in found.samples
        )
        # The parser adds `_total` to counters by itself, so the text is asked as well.
        assert f"# TYPE {family['name']} {family['type']}\n" in text
        for suffix in family.get("suffixes", [""]):
            assert re.search(rf"^{family['name']}{suffix}[ {{]", text, re.MULTILINE)


def test_page_keeps_the_series_of_a_family_together() -> None:
    registry = Registry()
    registry.add_source(lambda: [gauge("b", 1, x="1"), gauge("a", 1), gauge("b", 2, x="2")])
    assert registry.render().splitlines() == [
        "# TYPE a gauge", "a 1", "# TYPE b gauge", 'b{x="1"} 1', 'b{x="2"} 2',
    ]  # fmt: skip


def test_page_asks_its_sources_anew_each_time() -> None:
    registry = Registry()
    numbers = iter([1, 2])
    registry.add_source(lambda: [counter("n", next(numbers))])
    assert "n 1\n" in registry.render()
    assert "n 2\n" in registry.render()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"), (True, "1"), (0.1, "0.1"), (1e300, "1e+300"),
        (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"),
    ],
)  # fmt: skip
def test_page_writes_numbers_as_prometheus_reads_them(value: float, text: str) -> None:
    registry = Registry()
    registry.add_source(lambda: [gauge("n", value)])
    assert registry.render() == f"# TYPE n gauge\nn {text}\n"


def test_page_with_a_series_twice_or_of_two_kinds_is_our_mistake() -> None:
    registry = Registry()
    registry.add_source(lambda: [gauge("n", 1), gauge("n", 2)])
    with pytest.raises(AssertionError, match="exported twice"):
        registry.render()
    registry = Registry()
    registry.add_source(lambda: [gauge("n", 1), counter("n", 2, x="y")])
    with pytest.raises(AssertionError, match="a gauge and a counter"):
        registry.render()
    registry = Registry()
    registry.add_source(lambda: [gauge(metrics.name_part("a/b-c"), 1), gauge("a/b", 1)])
    with pytest.raises(AssertionError, match="'a/b' is no name"):
        registry.render()


def test_page_ends_with_the_process() -> None:
    registry = Registry()
    registry.add_source(lambda: [gauge("n", 1)])
    text = metrics.page(registry).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"n", "process_open_fds", "process_cpu_seconds"} <= names


def test_page_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(LedgerError, match=r"install quire\[bookie\]"):
        metrics.page(Registry())


async def test_registry_rotates_as_time_goes_by(autojump_clock: trio.testing.MockClock) -> None:
    registry = Registry()
    summary = registry.summary("s")
    summary.success.record(5)
    summary.failure.record(6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.rotate_forever, 60)
        await trio.sleep(55)
        assert summary.success.snapshot().maximum == 5
        await trio.sleep(6)
        assert math.isnan(summary.success.snapshot().maximum)
        assert math.isnan(summary.failure.snapshot().maximum)
        nursery.cancel_scope.cancel()


def test_second_name_shows_the_same_numbers_and_ages_with_the_first() -> None:
    registry = Registry()
    first = registry.summary("first")
    registry.alias("second", first)
    first.success.record(7.0)
    page = registry.render()
    assert 'first_count{success="true"} 1\n' in page
    assert 'second_count{success="true"} 1\n' in page
    assert 'second{success="true",quantile="0.99"} 7.0\n' in page
    for _ in range(SLICES - 1):
        registry.rotate()
    assert 'second{success="true",quantile="0.99"} 7.0\n' in registry.render()
    registry.rotate()
    assert 'second{success="true",quantile="0.99"} NaN\n' in registry.render()
