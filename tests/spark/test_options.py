"""Options: what is given is checked, what nobody knows is refused, secrets are never shown."""

from __future__ import annotations

import sys

import pytest

from pyspark_ledger import DefaultSource
from spark.core.position import Position, parse_position
from spark.core.selection import ByCustom, Everything, Listed, Span, parse_selection
from spark.credentials import parse_passwords, parse_reference, resolve
from spark.errors import BadOptionError, SourceError, check_spark
from spark.options import parse_columns, parse_sink, parse_source
from wire.errors import BadRequestError

URI = {"metadataServiceUri": "zk://h1:2181;h2:2181/ledgers"}
GOOD = {**URI, "ledgers": "5,7,10-20"}


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    batch, stream = parse_source(GOOD), parse_source(GOOD, streaming=True)
    assert (batch.open_ledgers, batch.starts_latest) == ("skip", False)
    assert (stream.open_ledgers, stream.starts_latest) == ("toLac", True)
    assert batch.target_partition_bytes == 128 << 20
    assert batch.selection == Listed((Span(5, 5), Span(7, 7), Span(10, 20)))
    assert batch.read_class_batch


def test_keys_have_any_case_and_values_have_units() -> None:
    given = {"METADATAserviceURI": URI["metadataServiceUri"], "LEDGERS": "all"}
    found = parse_source({**given, "batchbytes": "1m", "READTIMEOUT": "500ms", "path": "x"})
    assert found.selection == Everything()
    assert (found.batch_bytes, found.read_timeout_seconds) == (1 << 20, 0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ledger": "1"}, "there is no option ledger: did you mean ledgers?"),
        ({"zzzz": "1"}, "there is no option zzzz: there are batchBytes,"),
        ({"writeQuorum": "2"}, "option writeQuorum is for writing only"),
        ({"stream": "orders"}, "belongs to named streams"),
        ({"commit": "job-1"}, "exactly one of the options ledgers and commit"),
        ({"batchBytes": "1 parsec"}, "option batchBytes='1 parsec': want a number of bytes"),
        ({"batchBytes": "300m"}, "want 1 to 268435456"),
        ({"openLedgers": "recover"}, "want skip, toLac or fail"),
        ({"verifyDigest": "yes"}, "want true or false"),
        ({"readWindowBytes": "8k"}, "one request must fit"),
        ({"ledgers": "7-5"}, "want first <= last"),
        ({"ledgers": "5,5"}, "ledger 5 is meant twice"),
        ({"ledgers": "1-9,5"}, "ledger 5 is meant twice"),
        ({"ledgers": "-1"}, "is no ledger id"),
        ({"ledgers": ""}, "is no ledger id"),
        ({"ledgers": "custom:=x"}, "a key is missing"),
        ({"metadataServiceUri": "http://x/y"}, "unknown scheme"),
        ({"startingPosition": "latest"}, "is for streams"),
        ({"startingPosition": '{"ledger":1}'}, "is not a position"),
        ({"maxBytesPerTrigger": "1m"}, "is for streams"),
        ({"retryRounds": "-1"}, "want 0 to 100"),
    ],
)
def test_bad_option_is_refused_and_the_message_begins_with_its_code(
    change: dict[str, str], said: str
) -> None:
    with pytest.raises(BadOptionError) as caught:
        parse_source({**GOOD, **change})
    assert str(caught.value).startswith("BAD_OPTION: ")
    assert said in str(caught.value)


def test_missing_address_and_missing_ledgers_are_refused() -> None:
    with pytest.raises(BadOptionError, match="metadataServiceUri is missing"):
        parse_source({"ledgers": "1"})
    with pytest.raises(BadOptionError, match="exactly one"):
        parse_source(URI)


def test_options_at_load_may_be_those_of_a_stream() -> None:
    assert parse_columns({**GOOD, "maxBytesPerTrigger": "1m"}) == ("entries", False)
    assert parse_columns({**GOOD, "table": "ledgers"}) == ("ledgers", False)
    with pytest.raises(BadOptionError, match="there is no option ledger"):
        parse_columns({**GOOD, "ledger": "1"})


def test_sink_has_options_of_its_own() -> None:
    found = parse_sink({**URI, "ensemble": "3", "writeQuorum": "2", "orphanTtl": "1h"})
    assert (found.ensemble_size, found.write_quorum, found.orphan_ttl_seconds) == (3, 2, 3600.0)
    assert found.write_id != parse_sink(URI).write_id
    with pytest.raises(BadOptionError, match="is for reading only"):
        parse_sink({**URI, "ledgers": "1"})
    with pytest.raises(BadOptionError, match="want ensemble >= writeQuorum"):
        parse_sink({**URI, "ensemble": "1"})
    with pytest.raises(BadOptionError, match="writeId is for batches"):
        parse_sink({**URI, "writeId": "x"}, streaming=True)


# ---------------------------------------------------------------------- credentials


def test_password_that_was_put_in_place_of_a_reference_is_not_shown() -> None:
    with pytest.raises(BadOptionError) as caught:
        parse_source({**GOOD, "credentials": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "env:NAME" in str(caught.value)


def test_credentials_are_one_password_or_one_by_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORDS", '{"7": "seven", "10-20": "teens", "*": "rest"}')
    found = resolve(parse_reference("env:PASSWORDS"))
    assert [found.of(i) for i in (7, 10, 20, 21)] == [b"seven", b"teens", b"teens", b"rest"]
    assert resolve(None).of(1) == b""
    reference = parse_reference("file:secrets.txt")
    assert parse_passwords(b"plain\n", reference).of(1) == b"plain"
    assert "plain" not in repr(parse_passwords(b"plain\n", reference))
    assert "seven" not in repr(found)


@pytest.mark.parametrize("content", [b"{", b'{"7": 8}', b'{"seven": "x"}', b'{"all": "x"}'])
def test_bad_table_of_passwords_is_refused(content: bytes) -> None:
    with pytest.raises(SourceError, match=r"^AUTH_FAILED: credentials file:f "):
        parse_passwords(content, parse_reference("file:f"))


def test_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(SourceError, match=r"^AUTH_FAILED: credentials file:/nowhere/at-all "):
        resolve(parse_reference("file:/nowhere/at-all"))


# ---------------------------------------------------------------------- values


def test_position_has_one_text() -> None:
    assert Position(7, 12).text() == '{"entry":12,"ledger":7,"v":1}'
    assert parse_position(' { "v":1, "ledger":7, "entry":12 }') == Position(7, 12)


@pytest.mark.parametrize(
    "text", ["", "7", "{}", '{"entry":1,"ledger":2}', '{"entry":1.5,"ledger":2,"v":1}',
             '{"entry":true,"ledger":2,"v":1}', '{"entry":-1,"ledger":2,"v":1}',
             '{"entry":1,"ledger":2,"v":2}'],
)  # fmt: skip
def test_bad_position_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="is not a position such as"):
        parse_position(text)


def test_selection_by_custom_metadata_takes_escapes() -> None:
    found = parse_selection("custom:app=a%26b&tier")
    assert found == ByCustom((("app", b"a&b"), ("tier", None)))


def test_ranges_pick_what_exists_and_names_pick_anything() -> None:
    found = parse_selection("9,1-4,7")
    assert isinstance(found, Listed)
    assert list(found.pick([2, 3, 5, 9])) == [9, 2, 3, 7]
    assert [i for i in range(12) if found.takes(i)] == [1, 2, 3, 4, 7, 9]
    assert [i for i in range(12) if found.names(i)] == [7, 9]


def test_missing_pyarrow_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceError, match=r"^NO_PYARROW: rows travel as Arrow batches"):
        DefaultSource(GOOD).schema()


def test_spark_that_was_never_tried_is_refused() -> None:
    check_spark("4.3.0")
    with pytest.raises(BadOptionError, match=r"PySpark 4\.2\.1, and the data source was tested"):
        check_spark("4.2.1")
