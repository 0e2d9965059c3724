"""Structured logging on the standard library: an event, and what belongs to it as key=value.

    log = logs.get("bookie.journal")
    log.info("flushed", bytes=4096, ms=1.3)

writes `2031-05-01T12:00:00.123Z INFO bookie.journal flushed bytes=4096 ms=1.3`, or the same as
one JSON object per line. A level that is off costs one look-up and formats nothing. A line of
log is never more than a line: values are quoted and escaped. Secrets travel as `Secret`, which
shows itself to nobody.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, Literal, TextIO

Format = Literal["text", "json"]

LEVELS: Final = ("debug", "info", "warning", "error")
#: A longer value is cut: a log is no place for payloads.
VALUE_CHARACTERS_MAX: Final = 1000


class Secret:
    """A text that is never shown by accident: not printed, not logged, not put into an error."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")


class Log:
    """One named source of lines."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._emit(logging.DEBUG, event, fields, None)

    def info(self, event: str, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._emit(logging.INFO, event, fields, None)

    def warning(self, event: str, *, error: BaseException | None = None, **fields: object) -> None:
        """Something went wrong and the work went on regardless."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._emit(logging.WARNING, event, fields, error)

    def error(self, event: str, *, error: BaseException | None = None, **fields: object) -> None:
        """A human should look."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._emit(logging.ERROR, event, fields, error)

    def exception(self, event: str, error: BaseException, **fields: object) -> None:
        """A bug, with its traceback."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._emit(logging.ERROR, event, fields, error, traceback=True)

    def is_enabled(self, level: str) -> bool:
        """Whether lines of this level are written, for callers whose fields cost something."""
        return self._logger.isEnabledFor(logging.getLevelNamesMapping()[level.upper()])

    def _emit(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        error: BaseException | None,
        *,
        traceback: bool = False,
    ) -> None:
        if error is not None:
            fields["error"] = f"{type(error).__name__}: {error}"
        logger = self._logger
        record = logger.makeRecord(logger.name, level, "", 0, event, (), None)
        record.fields = fields
        if traceback and error is not None:
            record.exc_info = (type(error), error, error.__traceback__)
        logger.handle(record)


def get(name: str) -> Log:
    return Log(logging.getLogger(name))


def is_told(count: int) -> bool:
    """Whether the count-th of something that may go on for ever is worth a line: 1, 2, 4, 8, ..."""
    return count & (count - 1) == 0


def configure(
    level: str = "info", format: Format = "text", stream: TextIO | None = None
) -> logging.Handler:
    """Send every line of the process to `stream`, standard error unless told otherwise.

    Replaces what an earlier call set up, so that calling it twice does not double the lines.
    Libraries that use plain logging come out in the same form.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r}: want one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.set_name(_HANDLER_NAME)
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.get_name() == _HANDLER_NAME]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


class TextFormatter(logging.Formatter):
    """`time LEVEL name event key=value ...`; tracebacks follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_timestamp(record)} {record.levelname} {record.name} {_one_line(_event(record))}"
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        if not record.exc_info:
            return head + fields
        lines = self.formatException(record.exc_info).splitlines()
        return "\n  ".join([head + fields, *lines])


class JsonFormatter(logging.Formatter):
    """One object per line. Our own keys win over a field of the same name."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "event": _event(record),
        }
        for key, value in _fields(record).items():
            line.setdefault(key, _plain(value))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _event(record: logging.LogRecord) -> str:
    return record.getMessage()


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _timestamp(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{moment}.{int(record.msecs):03d}Z"


def _plain(value: object) -> object:
    """A value that JSON can carry."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no NaN and no infinity
    return _text(value)


def _quoted(value: object) -> str:
    text = _text(value)
    if text and not any(character in ' "=\\' or not character.isprintable() for character in text):
        return text
    return '"' + _one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value.hex() if isinstance(value, bytes) else str(value)
    if len(text) > VALUE_CHARACTERS_MAX:
        return text[:VALUE_CHARACTERS_MAX] + "..."
    return text


def _one_line(text: str) -> str:
    """The text with everything escaped that could end the line or play tricks on a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


_HANDLER_NAME: Final = "quire"
