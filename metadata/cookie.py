"""A bookie's identity: which directories belong to which bookie id in which cluster.

The same text lies in the metadata store and in every directory of the bookie. At start they are
held against the configuration, so that a bookie with an exchanged disk, a moved journal or
another cluster's data does not come up and answer "no such entry" for entries it once confirmed.
Comparison is literal: two directories in another order are another cookie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from posixpath import normpath
from typing import Final, NoReturn, Self

from metadata.text_format import TextFormatError, format_text, parse_text
from wire.bookkeeper_pb2 import CookieFormat
from wire.errors import LedgerError
from wire.types import BookieId

#: The version we write. Everything from 4 on is read alike.
COOKIE_VERSION: Final = 5
_VERSION_MIN: Final = 3
_SEPARATOR: Final = "\t"
_VERSION_LINE: Final = re.compile(r"\s*([0-9]{1,9})\s*", re.ASCII)


class InvalidCookieError(LedgerError):
    """The bookie must not start on these directories with this configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """Directory fields are kept as written, because that is how they are compared."""

    bookie_id: BookieId
    journal_dirs: str
    ledger_dirs: str
    index_dirs: str | None = None
    instance_id: str | None = None
    version: int = COOKIE_VERSION

    @classmethod
    def of(
        cls,
        *,
        bookie_id: BookieId,
        journal_dirs: Sequence[str],
        ledger_dirs: Sequence[str],
        index_dirs: Sequence[str] | None = None,
        instance_id: str | None = None,
    ) -> Self:
        """The cookie that a configuration implies. Paths as configured, without `current`.

        `index_dirs` stays None unless configured explicitly.
        """
        return cls(
            bookie_id=bookie_id,
            journal_dirs=",".join(journal_dirs),
            ledger_dirs=_join(ledger_dirs),
            index_dirs=None if index_dirs is None else _join(index_dirs),
            instance_id=instance_id,
        )

    @property
    def ledger_paths(self) -> tuple[str, ...]:
        return _split(self.ledger_dirs)

    @property
    def index_paths(self) -> tuple[str, ...]:
        """Indexes lie with the ledgers unless somebody says otherwise."""
        return _split(self.index_dirs or self.ledger_dirs)

    def __str__(self) -> str:
        return "; ".join(encode_cookie(self).decode("ascii").splitlines())


def encode_cookie(cookie: Cookie) -> bytes:
    """Always in the version of today, as Java does."""
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=cookie.journal_dirs,
        ledgerDirs=cookie.ledger_dirs,
        instanceId=cookie.instance_id,
        indexDirs=cookie.index_dirs,
    )
    return f"{COOKIE_VERSION}\n".encode() + format_text(message)


def decode_cookie(data: bytes, *, source: str) -> Cookie:
    """`source` names the file or znode; no error is of use without it."""
    first, _, body = data.partition(b"\n")
    match = _VERSION_LINE.fullmatch(first.decode("latin-1"))
    if not data:
        raise InvalidCookieError(f"cookie in {source} is empty")
    if match is None:
        raise InvalidCookieError(
            f"cookie in {source}: Invalid string {first[:40].decode('latin-1')!r}, "
            "cannot parse cookie, want a version number"
        )
    version = int(match[1])
    if version < _VERSION_MIN:
        raise InvalidCookieError(f"cookie in {source} is of too old version {version}")
    if version == _VERSION_MIN:
        return _decode_v3(body, source)
    try:
        message = parse_text(body, CookieFormat())
    except TextFormatError as error:
        raise InvalidCookieError(f"cookie in {source} cannot be read: {error}") from error
    return Cookie(
        bookie_id=BookieId(message.bookieHost),
        journal_dirs=message.journalDir,
        ledger_dirs=message.ledgerDirs,
        index_dirs=message.indexDirs or None,
        instance_id=message.instanceId or None,
        version=version,
    )


def _decode_v3(body: bytes, source: str) -> Cookie:
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError:
        raise InvalidCookieError(f"cookie in {source} cannot be read: not UTF-8") from None
    if len(lines) < 3 or not all(lines[:3]):
        raise InvalidCookieError(f"cookie in {source} is cut off, version 3 has four lines")
    return Cookie(
        bookie_id=BookieId(lines[0]),
        journal_dirs=lines[1],
        ledger_dirs=lines[2],
        version=_VERSION_MIN,
    )


def verify_cookie(
    own: Cookie, found: Cookie, *, source: str, allow_expansion: bool = False
) -> None:
    """Raise unless `found` is the cookie of the bookie that `own`, the configuration, describes.

    With expansion allowed, directories may have been added. The journal may not: entries that
    were confirmed and not yet flushed exist only there.
    """
    if allow_expansion:
        dirs_match = set(own.ledger_paths) >= set(found.ledger_paths) and (
            set(own.index_paths) >= set(found.index_paths)
        )
    else:
        dirs_match = own.ledger_dirs == found.ledger_dirs and (
            (own.index_dirs or own.ledger_dirs) == (found.index_dirs or found.ledger_dirs)
        )
    if not (
        dirs_match and own.bookie_id == found.bookie_id and own.journal_dirs == found.journal_dirs
    ):
        raise InvalidCookieError(f"Cookie [{own}] is not matching with [{found}] in {source}")
    if own.instance_id != found.instance_id:
        raise InvalidCookieError(
            f"instanceId {own.instance_id or 'null'} is not matching with "
            f"{found.instance_id or 'null'} in {source}: the data belongs to another cluster"
        )


# ---------------------------------------------------------------------- start-up


@dataclass(frozen=True, slots=True)
class StoredCookie:
    """A cookie in the metadata store, under the id of its node."""

    node_id: BookieId
    cookie: Cookie
    version: int  # of the node, for the conditional update


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """One directory of the bookie as found at start."""

    path: str  # as configured
    cookie: Cookie | None  # of <path>/current/VERSION
    empty: bool  # nothing in <path>/current, apart from VERSION


class CookieAction(Enum):
    NOTHING = "nothing"  # everything is as it was
    CREATE = "create"  # stamp all directories, then create the node
    UPDATE = "update"  # stamp all directories, then set the node, comparing versions
    RETURN = "return"  # all was lost: stamp all directories once nothing is denied any more


@dataclass(frozen=True, slots=True)
class StartDecision:
    """What to write. Directories come first: a crash in between must not look like lost data."""

    action: CookieAction
    version: int | None = None  # for UPDATE


def decide_start(
    own: Cookie,
    *,
    stored: Sequence[StoredCookie],
    directories: Sequence[DirectoryFacts],
    allow_expansion: bool = False,
    allow_loss: bool = False,
) -> StartDecision:
    """Whether the bookie may start, and what it writes before it does.

    With `allow_loss` a bookie that finds no cookie in any of its directories may come back under
    its old name: whoever allows it sees to it that the bookie denies nothing that it may have had.

    `stored` holds what was found under every id this machine may have used (a configured id
    alone, or else address, host name and advertised name): a bookie that changed its name must
    not pass for a new one. `directories` are the distinct journal, ledger and index directories.
    """
    for candidate in stored:
        source = f"the metadata store, bookie {candidate.node_id}"
        verify_cookie(own, candidate.cookie, source=source, allow_expansion=allow_expansion)
        if candidate.node_id != own.bookie_id:
            raise InvalidCookieError(
                f"cookie of bookie {own.bookie_id} is stored under {candidate.node_id}; "
                "remove it or start with that id"
            )
    for directory in directories:
        if directory.cookie is not None:
            verify_cookie(
                own, directory.cookie, source=directory.path, allow_expansion=allow_expansion
            )
    missing = [directory for directory in directories if directory.cookie is None]
    if not stored:
        return _decide_without_stored(missing, directories)
    if not missing:
        return StartDecision(CookieAction.NOTHING)
    if allow_loss and len(missing) == len(directories):
        return StartDecision(CookieAction.RETURN)
    if not allow_expansion:
        _refuse(
            "There are directories without a cookie, and this is neither a new environment, "
            "nor is storage expansion enabled",
            missing,
        )
    _check_expansion(missing, stored, directories)
    return StartDecision(CookieAction.UPDATE, stored[0].version)


def _decide_without_stored(
    missing: Sequence[DirectoryFacts], directories: Sequence[DirectoryFacts]
) -> StartDecision:
    """A new bookie, or one that crashed while it stamped its directories for the first time.

    Both hold no data anywhere. Data beside a directory without a cookie means that a disk was
    exchanged after the cookie had been deleted: the entries on it are gone.
    """
    if not missing:
        raise InvalidCookieError(
            "Cookie for this bookie is not stored in metadata store. Bookie failing to come up; "
            "if it is the right cluster, create the cookie again"
        )
    occupied = [directory for directory in directories if not directory.empty]
    if occupied:
        _refuse("Not all the new directories are empty", occupied)
    return StartDecision(CookieAction.CREATE)


def _check_expansion(
    missing: Sequence[DirectoryFacts],
    stored: Sequence[StoredCookie],
    directories: Sequence[DirectoryFacts],
) -> None:
    """A directory is new only if no cookie has ever named it, otherwise its data is gone.

    Apache asks the ledger and index directories alone, so that a wiped journal slips through and
    takes unflushed entries with it. Ours asks the journals too.
    """
    cookies = [candidate.cookie for candidate in stored]
    cookies += (directory.cookie for directory in directories if directory.cookie is not None)
    known = {
        normpath(path)
        for cookie in cookies
        for path in (*cookie.ledger_paths, *cookie.index_paths, *cookie.journal_dirs.split(","))
    }
    refused = [
        directory
        for directory in missing
        if not directory.empty or normpath(directory.path) in known
    ]
    if refused:
        _refuse(
            "Either not all local directories have cookies or directories being added newly "
            "are not empty",
            refused,
        )


def _refuse(what: str, directories: Iterable[DirectoryFacts]) -> NoReturn:
    raise InvalidCookieError(f"{what}: {', '.join(directory.path for directory in directories)}")


def check_not_pre_v3(path: str, names: Iterable[str]) -> None:
    """Refuse a directory of the oldest bookies, which kept their files beside `current`.

    `names` are the children of `path`, to be asked when `current` is missing: making one there
    would start an empty bookie on top of old data.
    """
    if any(name == "VERSION" or name.endswith((".txn", ".idx", ".log")) for name in names):
        raise InvalidCookieError(
            f"{path} holds data of a release before layout 3; upgrade it with an older Apache "
            "release first, or choose an empty directory"
        )


def _join(paths: Sequence[str]) -> str:
    return _SEPARATOR.join((str(len(paths)), *paths))


def _split(encoded: str) -> tuple[str, ...]:
    return tuple(encoded.split(_SEPARATOR)[1:]) if _SEPARATOR in encoded else (encoded,)
