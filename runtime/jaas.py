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
from typing import Final

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
        there = ", ".join(found) or "none"
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
        _expect(tokens, "{", path, f"section {name}")
        options: dict[str, Secret] = {}
        sections[name] = options
        for module in tokens:
            if module == "}":
                break
            _read_module(tokens, path, module, options)
        _expect(tokens, ";", path, f"the end of section {name}")
    return sections


def _read_module(tokens: Iterator[str], path: str, module: str, options: dict[str, Secret]) -> None:
    flag = next(tokens, "")
    if flag not in _FLAGS:
        raise ConfigError(f"{path}: {module} needs one of {', '.join(_FLAGS)} behind it")
    is_digest = module.rpartition(".")[2] == _DIGEST_MODULE
    if not is_digest:
        _log.warning("only DIGEST-MD5 is spoken here; this module is ignored", module=module)
    for name in tokens:
        if name == ";":
            return
        _expect(tokens, "=", path, f"option {name}")
        value = next(tokens, "")
        if is_digest:
            options[name] = Secret(value)
    raise ConfigError(f"{path}: {module} does not end with a semicolon")


def _tokens(text: str, path: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise ConfigError(f"{path}:{line}: a quotation mark is not closed")
        at = match.end()
        if match["text"] is not None:
            yield re.sub(r"\\(.)", r"\1", match["text"][1:-1])
        elif match.lastgroup is not None:
            yield match[0]


def _expect(tokens: Iterator[str], mark: str, path: str, where: str) -> None:
    if next(tokens, "") != mark:
        raise ConfigError(f"{path}: {where} wants {mark!r} next; see docs/security.md for a sample")
