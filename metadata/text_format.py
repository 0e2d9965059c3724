"""Protobuf text as Apache's processes write and read it.

The library's own printer and parser come close, but not close enough: the printer spells bytes 8
and 12 as octal where Java writes `\\b` and `\\f`, and the parser refuses unknown names (4.18 skips
them), hands escapes to Python's (which knows others than protobuf does and only warns about bad
ones) and recurses as deep as the input asks. Names and types still come from the descriptors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wire.errors import LedgerError

_M = TypeVar("_M", bound=Message)

#: Our messages nest two deep; unknown fields may go a little further.
DEPTH_MAX: Final = 16

_INT_RANGES: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}


class TextFormatError(LedgerError):
    """Not protobuf text, or not of this message."""


# ---------------------------------------------------------------------- writing

_ESCAPES: Final = {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x27: "\\'",
    0x5C: "\\\\",
}
_ESCAPED: Final = tuple(
    _ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
    for byte in range(256)
)


def format_text(message: Message) -> bytes:
    """One field per line in the order of field numbers; ASCII only."""
    return "".join(_lines(message, "")).encode("ascii")


def _lines(message: Message, indent: str) -> Iterator[str]:
    for field, value in message.ListFields():
        for item in value if field.is_repeated else (value,):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                yield f"{indent}{field.name} {{\n"
                yield from _lines(item, indent + "  ")
                yield f"{indent}}}\n"
            else:
                yield f"{indent}{field.name}: {_scalar_text(field, item)}\n"


def _scalar_text(field: FieldDescriptor, value: Any) -> str:
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return str(field.enum_type.values_by_number[value].name)
    if field.type == FieldDescriptor.TYPE_STRING:
        value = value.encode()
    if isinstance(value, bytes):
        return '"' + "".join(_ESCAPED[byte] for byte in value) + '"'
    return str(value)


# ---------------------------------------------------------------------- reading

_SKIP: Final = re.compile(rb"(?:[ \t\r\n\f\v]|#[^\n]*)*")
_TOKEN: Final = re.compile(
    rb"""(?P<word>[A-Za-z_][A-Za-z0-9_]*)
       | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
       | (?P<number>-?(?:0[xX][0-9A-Fa-f]+|[0-9](?:[0-9A-Za-z_.]|(?<=[eE])[-+])*))
       | (?P<sign>[{}<>:;,\[\]./-])""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(rb"-?(?:0[xX][0-9A-Fa-f]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19})")
_ESCAPE: Final = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_UNESCAPED: Final = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"?": b"?",
}


def parse_text(text: bytes, message: _M) -> _M:
    """Fill `message` from `text` and return it; every required field must be there.

    Unknown names are skipped, as 4.18 does and as both releases do in binary. Of a single field
    given twice the last one counts, again as in binary.
    """
    _Parser(text).fields(message, closing=b"", depth=0)
    missing = missing_fields(message)
    if missing:
        raise TextFormatError(f"required fields are missing: {', '.join(missing)}")
    return message


def missing_fields(message: Message) -> list[str]:
    """Required fields that are not set, by their path. The stubs do not know this method."""
    found: list[str] = cast(Any, message).FindInitializationErrors()
    return found


def utf8(value: object) -> str:
    """A text field of a message parsed from binary, where the library lets damaged text pass.

    It then hands out bytes, whatever the stubs say.
    """
    if not isinstance(value, str):
        raise TextFormatError(f"a text field is not UTF-8, found {value!r:.60}")
    return value


def _field_named(message: Message, name: str) -> FieldDescriptor | None:
    return cast("Mapping[str, FieldDescriptor]", message.DESCRIPTOR.fields_by_name).get(name)


class _Parser:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self._start = 0
        self._kind = ""
        self._token = b""
        self._next()

    def fields(self, message: Message | None, *, closing: bytes, depth: int) -> None:
        """Up to the closing sign (empty: the end of the text). Without a message, only skip."""
        if depth > DEPTH_MAX:
            raise self._error("nested too deep")
        while self._token != closing:
            name = self._name()
            field = None if message is None else _field_named(message, name)
            colon = self._take_sign(b":")
            if self._take_sign(b"["):
                self._list(message, field, depth)
            else:
                self._value(message, field, colon=colon, depth=depth)
            _ = self._take_sign(b";") or self._take_sign(b",")
        self._next()

    def _list(self, message: Message | None, field: FieldDescriptor | None, depth: int) -> None:
        if field is not None and not field.is_repeated:
            raise self._error(f"{field.name} takes one value, found a list")
        if self._take_sign(b"]"):
            return
        self._value(message, field, colon=True, depth=depth)
        while self._take_sign(b","):
            self._value(message, field, colon=True, depth=depth)
        if not self._take_sign(b"]"):
            raise self._error("expected , or ]")

    def _value(
        self, message: Message | None, field: FieldDescriptor | None, *, colon: bool, depth: int
    ) -> None:
        if field is None or message is None:
            self._skip_value(colon=colon, depth=depth)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            target = getattr(message, field.name)
            if field.is_repeated:
                target = target.add()
            else:
                target.SetInParent()
            self.fields(target, closing=self._opening(), depth=depth + 1)
        else:
            if not colon:
                raise self._error(f"expected : after {field.name}")
            value = self._scalar(field)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)

    def _skip_value(self, *, colon: bool, depth: int) -> None:
        if self._token in (b"{", b"<"):
            self.fields(None, closing=self._opening(), depth=depth + 1)
        elif not colon:
            raise self._error("expected : or {")
        elif self._kind == "string":
            self._string()
        else:
            self._take_sign(b"-")
            if self._kind not in ("word", "number"):
                raise self._error("expected a value")
            self._next()

    def _opening(self) -> bytes:
        if self._take_sign(b"{"):
            return b"}"
        if self._take_sign(b"<"):
            return b">"
        raise self._error("expected {")

    def _name(self) -> str:
        if self._kind == "word":
            return self._next().decode()
        if not self._take_sign(b"["):
            raise self._error("expected a field name")
        # The name of an extension. None of our messages has any, so it is skipped like a typo.
        while not self._take_sign(b"]"):
            if self._kind != "word" and self._token not in (b".", b"/"):
                raise self._error("expected the name of an extension")
            self._next()
        return ""

    def _scalar(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._string()
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                return self._string().decode()
            except UnicodeDecodeError:
                raise self._error(f"{field.name} is not UTF-8") from None
        number = self._enum_word(field) if self._kind == "word" else self._integer(field)
        enum = field.enum_type
        if enum is not None and number not in enum.values_by_number:
            raise self._error(f"{field.name} has no value {number}")
        return number

    def _enum_word(self, field: FieldDescriptor) -> int:
        known = field.enum_type and field.enum_type.values_by_name.get(self._token.decode())
        if not known:
            raise self._error(f"{field.name} has no such value")
        self._next()
        return int(known.number)

    def _integer(self, field: FieldDescriptor) -> int:
        if self._kind != "number" or _NUMBER.fullmatch(self._token) is None:
            raise self._error(f"{field.name} is not an integer")
        digits = self._token.removeprefix(b"-")
        base = 16 if digits[:2] in (b"0x", b"0X") else 8 if digits[:1] == b"0" else 10
        number = int(digits, base) * (-1 if digits != self._token else 1)
        low, high = _INT_RANGES.get(field.type, _INT_RANGES[FieldDescriptor.TYPE_INT32])
        if not low <= number <= high:
            raise self._error(f"{field.name} is out of range")
        self._next()
        return number

    def _string(self) -> bytes:
        """One or more strings; neighbours are joined, as in C."""
        if self._kind != "string":
            raise self._error("expected a string")
        parts = []
        while self._kind == "string":
            parts.append(_ESCAPE.sub(self._unescaped, self._token[1:-1]))
            self._next()
        return b"".join(parts)

    def _unescaped(self, match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, letter = match.groups()
        if octal is not None:
            return bytes((int(octal, 8) & 0xFF,))
        if hexadecimal is not None:
            return bytes((int(hexadecimal, 16),))
        if letter not in _UNESCAPED:
            raise self._error(f"unknown escape \\{letter.decode('latin-1')}")
        return _UNESCAPED[letter]

    def _take_sign(self, sign: bytes) -> bool:
        if self._kind != "sign" or self._token != sign:
            return False
        self._next()
        return True

    def _next(self) -> bytes:
        """Step to the next token and return the one just left."""
        left = self._token
        skipped = _SKIP.match(self._text, self._at)
        assert skipped is not None  # it also matches nothing at all
        self._start = skipped.end()
        if self._start == len(self._text):
            self._kind, self._token, self._at = "end", b"", self._start
            return left
        match = _TOKEN.match(self._text, self._start)
        if match is None:
            raise self._error("unexpected character")
        self._kind, self._token, self._at = match.lastgroup or "", match[0], match.end()
        return left

    def _error(self, what: str) -> TextFormatError:
        line = self._text.count(b"\n", 0, self._start) + 1
        found = self._text[self._start : self._start + 20].decode("latin-1")
        return TextFormatError(f"line {line}: {what}, found {repr(found) if found else 'the end'}")
