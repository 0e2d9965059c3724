"""Java's files with users and passwords (JAAS), as far as BookKeeper's DIGEST-MD5 uses them.

    Bookie {
      org.apache.zookeeper.server.auth.DigestLoginModule required
        user_alice="her password";
    };
    BookKeeper {
      org.apache.zookeeper.server.auth.DigestLoginModule required
        username="alice" password="her password";
    };

Keeping the form keeps one file for both makes, and keeps passwords out of configurations and out
of command lines. Every value is a `Secret`, user names included: the file holds nothing else.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from runtime import logs
from runtime.config import ConfigError
from runtime.logs import Secret

_DIGEST_MODULE: Final = "DigestLoginModule"
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_USER_PREFIX: Final = "user_"
_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[^\s{};="]+)|(?P<mark>[{};=])""",
    re.DOTALL,
)
_log = logs.get("runtime.jaas")


class _Token(NamedTuple):
    text: str
    line: int
    is_quoted: bool = False

    def is_mark(self, mark: str) -> bool:
        return self.text == mark and not self.is_quoted


@dataclass(frozen=True, slots=True)
class Login:
    """Who to be."""

    user: str
    password: Secret


def read_users(path: str, section: str) -> dict[str, Secret]:
    """Who may come in, and their passwords: the options `user_<name>` of a section."""
    options = _section(path, section)
    users = {
        name.removeprefix(_USER_PREFIX): password
        for name, password in options.items()
        if name.startswith(_USER_PREFIX)
    }
    if not users:
        raise ConfigError(
            f'{path}: section {section} names no users: write user_alice="password" behind its '
            "module"
        )
    return users


def read_login(path: str, section: str) -> Login:
    """Who we are: the options `username` and `password` of a section."""
    options = _section(path, section)
    try:
        return Login(options["username"].reveal(), options["password"])
    except KeyError as error:
        raise ConfigError(f"{path}: section {section} does not say {error.args[0]}") from None


def _section(path: str, name: str) -> Mapping[str, Secret]:
    found = _sections(path)
    if name not in found:
        there = ", ".join(filter(str.isidentifier, found)) or "none"
        raise ConfigError(f"{path}: there is no section {name} (there are: {there}); add it")
    return found[name]


def _sections(path: str) -> dict[str, dict[str, Secret]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        mode = os.stat(path).st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path}: users cannot be read: {why}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning("passwords that every user of this machine may read: chmod 600", file=path)
    tokens = _tokens(text, path)
    sections: dict[str, dict[str, Secret]] = {}
    for name in tokens:
        end = _expect(tokens, "{", path, name, "a section's name")
        options: dict[str, Secret] = {}
        for module in tokens:
            end = module
            if module.is_mark("}"):
                break
            _read_module(tokens, path, module, options)
        _expect(tokens, ";", path, end, "the end of a section")
        sections[name.text] = options
    return sections


def _read_module(
    tokens: Iterator[_Token], path: str, module: _Token, options: dict[str, Secret]
) -> None:
    flag = next(tokens, module)
    if flag.text not in _FLAGS:
        raise ConfigError(
            f"{path}:{module.line}: a module needs one of {', '.join(_FLAGS)} behind it"
        )
    is_digest = module.text.rpartition(".")[2] == _DIGEST_MODULE
    if not is_digest:
        _log.warning(
            "only DIGEST-MD5 is spoken here; a module is ignored", file=path, line=module.line
        )
    for name in tokens:
        if name.is_mark(";"):
            return
        equals = _expect(tokens, "=", path, name, "an option's name")
        value = next(tokens, equals)
        if is_digest:
            options[name.text] = Secret(value.text)
    raise ConfigError(f"{path}:{module.line}: a module does not end with a semicolon")


def _tokens(text: str, path: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigError(f"{path}:{line}: a quotation mark is not closed")
        at = match.end()
        if match["text"] is not None:
            yield _Token(re.sub(r"\\(.)", r"\1", match["text"][1:-1]), line, is_quoted=True)
        elif match.lastgroup is not None:
            yield _Token(match[0], line)
        line += match[0].count("\n")


def _expect(tokens: Iterator[_Token], mark: str, path: str, behind: _Token, what: str) -> _Token:
    """The mark. Errors say where, and not what was there: it may be part of a password."""
    found = next(tokens, None)
    if found is None or not found.is_mark(mark):
        raise ConfigError(
            f"{path}:{behind.line}: {what} wants {mark!r} behind it; see docs/security.md for a "
            "sample"
        )
    return found
