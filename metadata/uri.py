"""Where the metadata lives: `zk[+layout]://host:port;host:port/root`, and two relatives.

The path is the root of the cluster, not a chroot: the nodes have that absolute path for everyone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from metadata.layout import layout_of_class
from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType, check_root
from wire.errors import LedgerError

PORT_DEFAULT: Final = 2181
ROOT_DEFAULT: Final = "/ledgers"

_EXAMPLE: Final = "zk+hierarchical://zk1:2181;zk2:2181/ledgers"
_LAYOUTS: Final = {
    "hierarchical": LayoutType.HIERARCHICAL,
    "longhierarchical": LayoutType.LONG_HIERARCHICAL,
    "flat": LayoutType.FLAT,
    "null": None,
}
_SUFFIXES: Final = {layout: name for name, layout in _LAYOUTS.items() if layout is not None}

_URI: Final = re.compile(r"([^:/]*)://([^/]*)(.*)", re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_PULSAR: Final = "metadata-store:"
_PULSAR_STORE: Final = re.compile(r"(?:(zk):)?([^/]*)(.*)", re.DOTALL)
_OTHER_STORES: Final = ("memory:", "rocksdb:", "etcd:", "oxia:")


class InvalidUriError(LedgerError):
    """The address of the metadata store cannot be used as it is written."""


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int = PORT_DEFAULT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """Servers, the root of the cluster, and the layout to insist on (None: obey LAYOUT)."""

    servers: tuple[Server, ...]
    root: str = ROOT_DEFAULT
    layout: LayoutType | None = None

    @property
    def connect_string(self) -> str:
        """What a ZooKeeper client wants to hear. No chroot in it."""
        return ",".join(map(str, self.servers))

    def __str__(self) -> str:
        # The legacy layout has no name in a URI; a cluster that has it says so in LAYOUT.
        suffix = _SUFFIXES.get(self.layout) if self.layout is not None else None
        scheme = "zk" if suffix is None else f"zk+{suffix}"
        return f"{scheme}://{';'.join(map(str, self.servers))}{self.root}"


def parse_metadata_uri(text: str) -> MetadataUri:
    """Read a `metadataServiceUri`. Every error says what to write instead."""
    if text.lower().startswith(_PULSAR):
        return _parse_pulsar(text)
    match = _URI.fullmatch(text)
    if match is None:
        raise _invalid(text, f"write it like {_EXAMPLE}")
    scheme, servers, path = match.groups()
    return MetadataUri(
        servers=_servers(text, servers), root=_root(text, path), layout=_layout(text, scheme)
    )


def metadata_uri_of(
    *, zk_servers: str, root: str = ROOT_DEFAULT, factory_class: str | None = None
) -> MetadataUri:
    """The same from `zkServers`, `zkLedgersRootPath` and `ledgerManagerFactoryClass`, the old way.

    A path behind the servers comes in front of the root, which is where Java ends up too.
    """
    servers, slash, chroot = zk_servers.partition("/")
    prefix = slash + chroot.rstrip("/") if chroot else ""
    return MetadataUri(
        servers=_servers(zk_servers, servers),
        root=_root(zk_servers, prefix + root),
        layout=layout_of_class(factory_class) if factory_class else None,
    )


def _parse_pulsar(text: str) -> MetadataUri:
    """`metadata-store:[zk:]host:port[/chroot]`, as Pulsar's bookies read it.

    There the path is a chroot and the ledgers are in `/ledgers` inside it, always.
    """
    rest = text[len(_PULSAR) :]
    match = _PULSAR_STORE.fullmatch(rest)
    if match is None or rest.lower().startswith(_OTHER_STORES) or "://" in rest:
        raise _invalid(text, "of Pulsar's metadata stores only metadata-store:zk:host:port works")
    _, servers, chroot = match.groups()
    return MetadataUri(
        servers=_servers(text, servers), root=_root(text, chroot.rstrip("/") + ROOT_DEFAULT)
    )


def _layout(text: str, scheme: str) -> LayoutType | None:
    store, plus, name = scheme.lower().partition("+")
    if store != "zk":
        raise _invalid(text, f"unknown scheme {scheme!r}, write it like {_EXAMPLE}")
    if not plus:
        return None
    if name == "ms":
        raise _invalid(
            text, "the ms layout keeps ledgers outside the tree; only zk+hierarchical and the like"
        )
    if name not in _LAYOUTS:
        raise _invalid(text, f"unknown layout {name!r}, write one of {', '.join(_LAYOUTS)}")
    return _LAYOUTS[name]


def _servers(text: str, servers: str) -> tuple[Server, ...]:
    return tuple(_server(text, server.strip()) for server in re.split("[;,]", servers))


def _server(text: str, server: str) -> Server:
    if server.startswith("["):
        host, bracket, tail = server[1:].partition("]")
        valid = bool(bracket) and _IPV6.fullmatch(host) is not None and ":" in host
        colon, port = tail[:1], tail[1:]
        valid = valid and colon in ("", ":")
    else:
        host, colon, port = server.partition(":")
        valid = _HOST.fullmatch(host) is not None
        if ":" in port and _IPV6.fullmatch(server):
            raise _invalid(text, f"write the IPv6 address in brackets, like [{server}]:2181")
    if not host:
        raise _invalid(text, f"a host is missing, write it like {_EXAMPLE}")
    if not valid:
        raise _invalid(text, f"{server!r} is not a host and port, write it like zk1:2181")
    if not colon:
        return Server(host)
    if _PORT.fullmatch(port) is None or not 1 <= int(port) <= 65535:
        raise _invalid(text, f"{port!r} is not a port, want 1..65535")
    return Server(host, int(port))


def _root(text: str, path: str) -> str:
    if path in ("", "/"):
        raise _invalid(text, "the root path is missing, write /ledgers behind the servers")
    if path.endswith("/"):
        raise _invalid(text, "leave out the slash at the end")
    if re.search(r"[\s?#\x00]", path):
        raise _invalid(text, f"{path!r} is not a znode path, write one such as /ledgers")
    try:
        return check_root(path)
    except InvalidMetadataError as error:
        raise _invalid(text, str(error)) from None


def _invalid(text: str, what: str) -> InvalidUriError:
    return InvalidUriError(f"metadata service URI {text!r}: {what}")
