"""BookKeeper's `key=value` configuration into frozen dataclasses.

A component declares each of its options once, as a field of its own dataclass:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class HttpConfig:
        port: int = option("httpServerPort", 8080, minimum=0, maximum=65535, doc="...")

and everything else follows from the declaration: reading and checking (`Settings.build`),
the page for operators (`config_docs.py`), and the check that no key is misspelt
(`Settings.finish`). Defaults are Apache's; one that differs says why, and a test holds it to it.
Keys of our own begin with `quire_`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from runtime.config_keys import APACHE_KEYS, APACHE_PREFIXES
from runtime.logs import Secret
from runtime.properties import ConfigError, Setting, parse_properties, setting_of

__all__ = ["REQUIRED", "ConfigError", "Option", "Settings", "option", "options_of"]

ENVIRONMENT_PREFIX: Final = "BK_"

T = TypeVar("T")
#: The default of an option that must be set.
REQUIRED: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class Option:
    """What a component says about one key."""

    key: str
    kind: str  # int, float, bool, str, list or secret
    default: Any
    doc: str
    minimum: float | None
    maximum: float | None
    choices: tuple[Any, ...]
    why: str  # the reason when the default is not Apache's

    @property
    def allowed(self) -> str:
        """What may be written, as a phrase for error messages and documents."""
        if self.choices:
            return " or ".join(text_of(choice) for choice in self.choices)
        noun = _NOUNS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{noun} of at least {self.minimum}"
        if self.maximum is not None:
            return f"{noun} of at most {self.maximum}"
        return noun

    def read(self, setting: Setting) -> Any:
        """The value of a setting, checked."""
        try:
            value = _READERS[self.kind](setting)
        except ValueError:
            raise self._refusal(setting) from None
        if value is None or value == ():
            if self.default is REQUIRED:
                raise self._refusal(setting)
            return value
        outside = (
            (self.minimum is not None and value < self.minimum)
            or (self.maximum is not None and value > self.maximum)
            or (self.choices and value not in self.choices)
        )
        if outside:
            raise self._refusal(setting)
        return value

    def _refusal(self, setting: Setting) -> ConfigError:
        shown = "a secret" if self.kind == "secret" else repr(setting.text)
        return ConfigError(f"{setting.origin}: {self.key} is {shown}; it must be {self.allowed}")


def option(
    key: str,
    default: T,
    *,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[object] = (),
    why: str = "",
) -> T:
    """Declare a field of a configuration dataclass. The type of the field decides how it is read.

    `int`, `float`, `bool`, `str`, `tuple[str, ...]` (a list) and `Secret`; `str | None` and
    `Secret | None` take an empty value for None.
    """
    details = {
        "key": key, "doc": doc, "minimum": minimum, "maximum": maximum,
        "choices": tuple(choices), "why": why, "default": default,
    }  # fmt: skip
    given = {} if default is REQUIRED else {"default": default}
    return dataclasses.field(metadata={"option": details}, **given)  # type: ignore[call-overload,no-any-return]


def options_of(config: type) -> dict[str, Option]:
    """The options that a dataclass declares, by field name."""
    hints = typing.get_type_hints(config)
    found = {}
    for field in dataclasses.fields(config):
        if "option" in field.metadata:
            found[field.name] = Option(
                kind=_kind_of(hints[field.name], field.name), **field.metadata["option"]
            )
    return found


class Settings:
    """What the operator wrote: a file, overridden by the environment. Built into dataclasses.

    Usage: `read`, `build` for every component of the process, then `finish`.
    """

    def __init__(self, settings: Iterable[Setting], *, source: str = "configuration") -> None:
        self.source = source
        self._by_key: dict[str, list[Setting]] = {}
        self._declared: set[str] = set()
        for setting in settings:
            self._by_key.setdefault(setting.key, []).append(setting)

    @classmethod
    def read(cls, path: str | None, environment: Mapping[str, str] | None = None) -> Settings:
        """Read a file (or none) and the variables `BK_<key>`, which override it.

        Only names whose rest begins with a small letter are settings: containers are full of
        variables such as BK_HOME that are none.
        """
        settings = cls(() if path is None else _read_file(path), source=path or "environment")
        for name, value in sorted((os.environ if environment is None else environment).items()):
            key = name.removeprefix(ENVIRONMENT_PREFIX)
            if key != name and key[:1].islower():
                settings._by_key[key] = [setting_of(key, value, f"environment {name}")]
        return settings

    def build(self, config: type[T]) -> T:
        """The dataclass with everything that was set; the rest keeps its defaults."""
        values: dict[str, Any] = {}
        for name, declared in options_of(config).items():
            self._declared.add(declared.key)
            found = self._by_key.get(declared.key)
            if found is not None:
                values[name] = declared.read(self._single(declared, found))
            elif declared.default is REQUIRED:
                raise ConfigError(
                    f"{self.source}: {declared.key} is not set; give {declared.allowed}"
                )
        try:
            return config(**values)
        except ValueError as error:  # what a dataclass says about fields that do not go together
            raise ConfigError(f"{self.source}: {error}") from error

    def finish(self, *also_known: type) -> list[str]:
        """Refuse keys that nobody knows; one line for each known key that nothing here uses.

        `also_known` are declarations of components that this process does not run.
        """
        known = set(self._declared)
        for config in also_known:
            known.update(declared.key for declared in options_of(config).values())
        unused = []
        for key, found in self._by_key.items():
            if key in known:
                continue
            if key not in APACHE_KEYS and not key.startswith(APACHE_PREFIXES):
                raise ConfigError(_unknown(found[0], known))
            unused.append(f"{found[0].origin}: {key} has no effect in Quire")
        return unused

    def given(self, *declarations: type) -> dict[str, str]:
        """What was set, as text; secrets are masked, those that `declarations` know and others
        that look like one."""
        secrets = {
            declared.key
            for config in declarations
            for declared in options_of(config).values()
            if declared.kind == "secret"
        }
        return {
            key: "***"
            if key in secrets or _SECRET.search(key)
            else ",".join(setting.text for setting in found)
            for key, found in self._by_key.items()
        }

    def _single(self, declared: Option, found: list[Setting]) -> Setting:
        """One setting of several lines: lists grow, anything else must be said once."""
        first = found[0]
        if "${" in first.text:
            raise ConfigError(
                f"{first.origin}: {declared.key} is {first.text!r}; "
                "references are not resolved, write the value itself"
            )
        if len(found) == 1:
            return first
        if declared.kind != "list":
            raise ConfigError(
                f"{found[1].origin}: {declared.key} is set again; "
                f"it was set at {first.origin}, keep one of them"
            )
        items = tuple(item for setting in found for item in setting.items)
        return dataclasses.replace(first, items=items)


def text_of(value: object) -> str:
    """A value as it would stand in a file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _read_file(path: str) -> list[Setting]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; write it as UTF-8") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the configuration: {error.strerror}; check --conf"
        ) from None
    return parse_properties(text, path)


def _unknown(setting: Setting, declared: set[str]) -> str:
    keys = {key.lower(): key for key in (*APACHE_KEYS, *declared)}
    near = difflib.get_close_matches(setting.key.lower(), keys, n=1)
    hint = f"did you mean {keys[near[0]]}?" if near else "remove it, or see docs/configuration.md"
    return f"{setting.origin}: unknown key {setting.key!r}; {hint}"


def _kind_of(hint: object, name: str) -> str:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [part for part in typing.get_args(hint) if part is not types.NoneType]
        assert len(kinds) == 1, f"{name}: a union other than with None"
        hint = kinds[0]
    kind = _KINDS.get(hint)
    assert kind is not None, f"{name}: options of type {hint} cannot be read"
    return kind


def _read_int(setting: Setting) -> int:
    text = setting.text
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
        return int(text, 16)
    raise ValueError(text)


def _read_float(setting: Setting) -> float:
    value = float(setting.text)
    if not math.isfinite(value) or "_" in setting.text:
        raise ValueError(setting.text)
    return value


def _read_bool(setting: Setting) -> bool:
    text = setting.text.lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(text)
    return text in _TRUE


def _read_str(setting: Setting) -> str | None:
    return setting.text or None


def _read_secret(setting: Setting) -> Secret | None:
    return Secret(setting.text) if setting.text else None


_SECRET: Final = re.compile("(?i)passw|secret|token(?!File)")
#: Every spelling that BookKeeper's configuration library accepts.
_TRUE: Final = ("true", "yes", "on", "t", "y", "1")
_FALSE: Final = ("false", "no", "off", "f", "n", "0")
_KINDS: Final[dict[object, str]] = {
    int: "int", float: "float", bool: "bool", str: "str", tuple[str, ...]: "list", Secret: "secret",
}  # fmt: skip
_NOUNS: Final = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
    "list": "a list separated by commas", "secret": "a text",
}  # fmt: skip
_READERS: Final[dict[str, Callable[[Setting], Any]]] = {
    "int": _read_int, "float": _read_float, "bool": _read_bool, "str": _read_str,
    "list": lambda setting: setting.items, "secret": _read_secret,
}  # fmt: skip
