"""Rules about znode paths that every store keeps, whatever is behind it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from metadata.store import (
    Change,
    Create,
    InvalidPathError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    SetData,
)

#: Paths of plain names, which is what nearly all are; others are looked at closely.
_SOUND: Final = re.compile(r"(?:/[A-Za-z0-9_:-][A-Za-z0-9._:-]*)+", re.ASCII)

#: ZooKeeper takes requests of just under 1 MiB; a path and an access list go along.
DATA_BYTES_MAX: Final = 1_000_000


def check_path(path: str) -> None:
    """Refuse what ZooKeeper would refuse.

    kazoo would quietly tidy such a path instead, and two spellings of one node are one too many.
    """
    if _SOUND.fullmatch(path) is not None:  # an audit reads the records of all ledgers
        return
    if not path.startswith("/"):
        raise InvalidPathError(f"znode path {path!r} is not absolute: begin it with '/'")
    if path == "/":
        return
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise InvalidPathError(f"znode path {path!r} has an empty, '.' or '..' component")
        if any(_is_forbidden(character) for character in name):
            raise InvalidPathError(f"znode path {path!r} holds a character ZooKeeper forbids")


def _is_forbidden(character: str) -> bool:
    code = ord(character)
    return (
        code < 0x20
        or 0x7F <= code <= 0x9F
        or 0xD800 <= code <= 0xF8FF
        or 0xFFF0 <= code <= 0xFFFF
        or code > 0xFFFF
    )


def check_data(path: str, data: bytes) -> None:
    """Refuse what does not fit into a request.

    A ZooKeeper server closes the connection on a request above `jute.maxbuffer`: to its sender
    that is an unknown outcome, again and again, and to everyone else on it as well.
    """
    if len(data) > DATA_BYTES_MAX:
        raise MetadataError(
            f"{path}: {len(data)} bytes are too many for a znode, at most {DATA_BYTES_MAX}"
        )


def check_change(change: Change) -> None:
    check_path(change.path)
    if isinstance(change, Create | SetData):
        check_data(change.path, change.data)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


async def create_with_parents(
    path: str,
    create: Callable[[], Awaitable[str]],
    create_parent: Callable[[str], Awaitable[str]],
) -> str:
    """Create a node, and on the way whatever is missing above it.

    The leaf is tried first, since its parents nearly always exist. Others delete emptied parents
    at any time, so a parent made a moment ago may be gone again and the climb starts over; a
    bound on that keeps a broken store from holding us for ever.
    """
    for _ in range(_ATTEMPTS):
        try:
            return await create()
        except NoNodeError:
            await _ensure(parent_of(path), create_parent)
    return await create()


async def _ensure(path: str, create: Callable[[str], Awaitable[str]]) -> None:
    missing = [path]
    # Climb until a level exists, then come down again creating the rest.
    while missing:
        try:
            await create(missing[-1])
        except NodeExistsError:
            pass
        except NoNodeError:
            if len(missing) > _DEPTH_MAX:
                raise
            missing.append(parent_of(missing[-1]))
            continue
        missing.pop()


_ATTEMPTS: Final = 8
_DEPTH_MAX: Final = 64
