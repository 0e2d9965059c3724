"""Who a bookie is: its id and address, and the cookie that ties both to its directories.

A bookie that comes up under the wrong name, on the wrong disks or in the wrong cluster would answer
"no such entry" for entries that it once confirmed. So before anything else its cookie is compared:
the configuration, every directory and the metadata store must agree (`metadata/cookie.py`).
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.config import BookieConfig
from bookie.storage.store_files import CURRENT
from metadata.cookie import (
    Cookie,
    CookieAction,
    DirectoryFacts,
    StoredCookie,
    check_not_pre_v3,
    decide_start,
    decode_cookie,
    encode_cookie,
)
from metadata.cookies import Cookies
from metadata.model import InvalidMetadataError, check_bookie_id
from runtime.config import ConfigError
from runtime.files import FileSystem
from wire.types import BookieId

VERSION_NAME: Final = "VERSION"
_HARMLESS: Final = {VERSION_NAME, f"{VERSION_NAME}.new", "LOCK", "lost+found"}
_COOKIE_BYTES_MAX: Final = 1 << 20
_SIOCGIFADDR: Final = 0x8915
ANY_ADDRESS: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Identity:
    """Fixed once the port is known."""

    bookie_id: BookieId
    host: str  # what clients connect to
    listen_host: str
    former_ids: tuple[BookieId, ...]  # other ids that the same configuration may have had


class Resolver:
    """Names and addresses of this machine; replaced in tests."""

    def host_name(self) -> str:
        return socket.getfqdn()

    def address(self, host: str) -> str:
        return socket.gethostbyname(host)

    def interface_address(self, interface: str) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])


def listen_host(config: BookieConfig, resolver: Resolver) -> str:
    """Where to listen: one interface, the loopback if that is all we are, or everywhere."""
    if config.interface is not None:
        return _interface_address(config.interface, resolver)
    host = config.advertised_address or resolver.host_name()
    address = _address(host, resolver, "advertisedAddress")
    return address if _is_loopback(address) else ANY_ADDRESS


def identify(config: BookieConfig, port: int, resolver: Resolver) -> Identity:
    """Work out who we are. Raises ConfigError when that would be nobody anyone can reach."""
    name = resolver.host_name()
    if config.interface is not None:
        own_address = _interface_address(config.interface, resolver)
    else:
        own_address = _address(name, resolver, "the host name")
    short = name.partition(".")[0] if config.use_short_host_name else name
    if config.advertised_address is not None:
        host = config.advertised_address
        address = _address(host, resolver, "advertisedAddress")
    else:
        host, address = (short if config.use_host_name else own_address), own_address
    if _is_loopback(address) and not config.allow_loopback:
        raise ConfigError(
            f"the bookie would be known as {host}, a loopback address, which no other machine can "
            "reach: set advertisedAddress or listeningInterface, or allowLoopback=true for a "
            "cluster on one machine"
        )
    if config.bookie_id is not None:
        return Identity(_checked(config.bookie_id), host, listen_host(config, resolver), ())
    mine = _checked(f"{host}:{port}")
    names = [own_address, short, *filter(None, [config.advertised_address])]
    former = {_checked(f"{other}:{port}") for other in names} - {mine}
    return Identity(mine, host, listen_host(config, resolver), tuple(sorted(former)))


async def check_cookie(
    own: Cookie,
    former_ids: Sequence[BookieId],
    cookies: Cookies,
    files: FileSystem,
    directories: Sequence[str],
    *,
    allow_expansion: bool,
    allow_loss: bool = False,
    on_new: Callable[[], None] = lambda: None,
) -> Callable[[], None] | None:
    """Compare the cookie everywhere, and write it where a new bookie has none.

    Directories come first: a crash in between must not look like lost data. If everything was
    lost, and that is allowed, nothing is written: call what is returned to stamp the directories,
    as soon as the loss is on record there.
    """
    stored: list[StoredCookie] = []
    for bookie_id in (own.bookie_id, *former_ids):
        found = await cookies.find(bookie_id)
        if found is not None:
            stored.append(found)
    facts = [_facts(files, path) for path in dict.fromkeys(directories)]
    decision = decide_start(
        own,
        stored=stored,
        directories=facts,
        allow_expansion=allow_expansion,
        allow_loss=allow_loss,
    )
    if decision.action is CookieAction.NOTHING:
        return None

    def stamp() -> None:
        for fact in facts:
            _write(files, fact.path, encode_cookie(own))

    if decision.action is CookieAction.RETURN:
        return stamp
    stamp()
    if decision.action is CookieAction.CREATE:
        on_new()
        await cookies.create(own)
    else:
        assert decision.version is not None
        await cookies.update(own, version=decision.version)
    return None


def local_cookies(files: FileSystem, directories: Sequence[str]) -> dict[str, Cookie]:
    """The cookies that directories hold, for whoever only wants to look."""
    facts = [_facts(files, path) for path in directories]
    return {fact.path: fact.cookie for fact in facts if fact.cookie is not None}


def _facts(files: FileSystem, path: str) -> DirectoryFacts:
    current = os.path.join(path, CURRENT)
    if not files.exists(current):
        if files.exists(path):
            check_not_pre_v3(path, files.list_directory(path))
        return DirectoryFacts(path, None, empty=True)
    names = files.list_directory(current)
    cookie = None
    if VERSION_NAME in names:
        name = os.path.join(current, VERSION_NAME)
        file = files.open(name, read_only=True)
        try:
            cookie = decode_cookie(file.read(_COOKIE_BYTES_MAX, 0), source=name)
        finally:
            file.close()
    return DirectoryFacts(path, cookie, empty=not set(names) - _HARMLESS)


def _write(files: FileSystem, path: str, data: bytes) -> None:
    current = os.path.join(path, CURRENT)
    files.make_directories(current)
    name = os.path.join(current, VERSION_NAME)
    new = name + ".new"
    if files.exists(new):
        files.remove(new)
    file = files.open(new, create=True)
    try:
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    files.rename(new, name)
    files.sync_directory(current)


def _checked(bookie_id: str) -> BookieId:
    try:
        return check_bookie_id(BookieId(bookie_id))
    except InvalidMetadataError as error:
        raise ConfigError(f"bookieId {bookie_id!r} cannot be used: {error}") from None


def _address(host: str, resolver: Resolver, what: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return resolver.address(host)
    except OSError as error:
        raise ConfigError(
            f"{what} {host!r} has no address: {error.strerror or error}; correct it, or set "
            "advertisedAddress to an address of this machine"
        ) from None


def _interface_address(interface: str, resolver: Resolver) -> str:
    try:
        return resolver.interface_address(interface)
    except OSError as error:
        raise ConfigError(
            f"listeningInterface {interface!r} has no IPv4 address: {error.strerror or error}"
        ) from None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
