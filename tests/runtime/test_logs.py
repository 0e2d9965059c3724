"""Logs: one event, one line, whatever the values are; secrets and silence cost nothing."""

from __future__ import annotations

import io
import json
import logging
import pickle
from collections.abc import Iterator

import pytest

from runtime import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave the root logger as it was: it belongs to the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(format: logs.Format = "text", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, format, stream)
    return stream


def line_of(stream: io.StringIO) -> str:
    """The one line that was written, without its time."""
    (line,) = stream.getvalue().splitlines()
    return line.split(" ", 1)[1]


def test_log_line_is_level_name_event_and_fields() -> None:
    stream = written()
    logs.get("bookie.journal").info("flushed", bytes=4096, ms=1.25, ok=True, path="a/b", none=None)
    assert (
        line_of(stream)
        == "INFO bookie.journal flushed bytes=4096 ms=1.25 ok=true path=a/b none=None"
    )


def test_log_line_begins_with_the_time_in_utc() -> None:
    record = logging.LogRecord("n", logging.INFO, "", 0, "event", (), None)
    record.created, record.msecs = 86400.5, 500.0
    assert logs.TextFormatter().format(record) == "1970-01-02T00:00:00.500Z INFO n event"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two words", '"two words"'),
        ("", '""'),
        ('say "hi"', '"say \\"hi\\""'),
        ("a=b", '"a=b"'),
        ("back\\slash", '"back\\\\slash"'),
        ("two\nlines\r\x1b[31m", '"two\\nlines\\r\\x1b[31m"'),
        ("\u2028", '"\\u2028"'),
        ("grüße", "grüße"),
        (b"\x00\xff", "00ff"),
        (logs.Secret("hunter2"), "***"),
    ],
)
def test_log_value_is_quoted_when_it_could_be_misread(value: object, shown: str) -> None:
    stream = written()
    logs.get("n").info("e", v=value)
    assert line_of(stream) == f"INFO n e v={shown}"


def test_log_event_cannot_break_the_line() -> None:
    stream = written()
    logs.get("n").info("a\nb")
    assert line_of(stream) == "INFO n a\\nb"


def test_log_value_that_is_too_long_is_cut() -> None:
    stream = written()
    logs.get("n").info("e", v="x" * 5000)
    assert line_of(stream) == "INFO n e v=" + "x" * 1000 + "..."


def test_log_json_is_one_object_per_line() -> None:
    stream = written("json")
    logs.get("n").info(
        "e", count=3, share=0.5, bad=float("nan"), text='two\n"lines"', pw=logs.Secret("x"), time=1
    )
    (line,) = stream.getvalue().splitlines()
    parsed = json.loads(line)
    assert parsed.pop("time").endswith("Z")
    assert parsed == {
        "level": "INFO", "logger": "n", "event": "e",
        "count": 3, "share": 0.5, "bad": "nan", "text": 'two\n"lines"', "pw": "***",
    }  # fmt: skip


def test_log_error_is_shown_with_its_type() -> None:
    stream = written()
    logs.get("n").warning("retrying", error=OSError("no route"), attempt=2)
    assert line_of(stream) == 'WARNING n retrying attempt=2 error="OSError: no route"'


@pytest.mark.parametrize("format", ["text", "json"])
def test_log_exception_carries_its_traceback(format: logs.Format) -> None:
    stream = written(format)
    try:
        raise ValueError("deep")
    except ValueError as error:
        logs.get("n").exception("bug", error)
    text = stream.getvalue()
    assert "Traceback" in text
    assert "ValueError: deep" in text
    if format == "json":
        assert "test_logs.py" in json.loads(text)["traceback"]
    else:
        assert all(line.startswith("  ") for line in text.splitlines()[1:])


def test_log_below_the_level_formats_nothing() -> None:
    class Explosive:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    stream = written(level="warning")
    log = logs.get("n")
    log.debug("e", v=Explosive())
    log.info("e", v=Explosive())
    assert stream.getvalue() == ""
    assert log.is_enabled("warning")
    assert not log.is_enabled("info")


def test_log_configured_twice_writes_once() -> None:
    first = written()
    second = written()
    logs.get("n").info("e")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_log_of_a_library_comes_out_in_the_same_form() -> None:
    stream = written()
    logging.getLogger("kazoo").warning("dropped %s", "a\nb")
    assert line_of(stream) == "WARNING kazoo dropped a\\nb"


def test_log_level_must_be_one_of_ours() -> None:
    with pytest.raises(ValueError, match="want one of debug, info, warning, error"):
        logs.configure("loud")


def test_secret_shows_itself_only_when_asked() -> None:
    secret = logs.Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {secret!s} {secret:>20} {[secret]} {(secret,)}"
    assert secret.reveal() == "hunter2"
    assert secret == logs.Secret("hunter2")
    assert secret != logs.Secret("other")
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
