"""What a bookie announces about itself: the payload of its registration node.

The order of endpoints and properties comes from hash maps in Java and means nothing, so the value
here is unordered and payloads are never compared as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from metadata.model import InvalidMetadataError
from metadata.text_format import TextFormatError, missing_fields, utf8
from wire.bookkeeper_pb2 import BookieServiceInfoFormat
from wire.types import BookieId

#: The protocol of the endpoint that ledger clients connect to; no other spelling is found.
RPC_PROTOCOL: Final = "bookie-rpc"
#: Set to "1" by bookies that understand batch frames. Java ignores it.
ADD_BATCH_PROPERTY: Final = "quire.addBatch"

_RPC_ENDPOINT_ID: Final = "bookie"
_HTTP_ENDPOINT_ID: Final = "httpserver"


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """Where a bookie can be reached, and what it says about itself besides."""

    endpoints: frozenset[Endpoint] = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def rpc(self) -> Endpoint | None:
        """Where ledger clients connect. None: the bookie is listed but cannot be reached."""
        usable = (
            endpoint
            for endpoint in self.endpoints
            if endpoint.protocol == RPC_PROTOCOL and endpoint.host and 0 < endpoint.port < 65536
        )
        return min(usable, default=None)

    @property
    def http_url(self) -> str | None:
        """Where the admin paths are, if they are served and that was announced."""
        for endpoint in self.endpoints:
            if endpoint.id == _HTTP_ENDPOINT_ID and endpoint.host and 0 < endpoint.port < 65536:
                host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
                scheme = "https" if endpoint.protocol == "https" else "http"
                return f"{scheme}://{host}:{endpoint.port}"
        return None

    @property
    def takes_batches(self) -> bool:
        return self.properties.get(ADD_BATCH_PROPERTY) == "1"


def bookie_service_info(
    *,
    host: str,
    port: int,
    tls: bool = False,
    http: tuple[str, int] | None = None,
    http_tls: bool = False,
    properties: Mapping[str, str] | None = None,
) -> BookieServiceInfo:
    """What one of our bookies announces. `host` is its advertised address, whatever its id."""
    extensions = ("tls",) if tls else ()
    endpoints = {Endpoint(_RPC_ENDPOINT_ID, host, port, RPC_PROTOCOL, extensions=extensions)}
    if http is not None:
        protocol = "https" if http_tls else "http"
        endpoints.add(Endpoint(_HTTP_ENDPOINT_ID, *http, protocol))
    return BookieServiceInfo(frozenset(endpoints), dict(properties or {}))


def encode_service_info(info: BookieServiceInfo) -> bytes:
    message = BookieServiceInfoFormat(properties=info.properties)
    for endpoint in sorted(info.endpoints):
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    return message.SerializeToString(deterministic=True)


def decode_service_info(data: bytes, bookie_id: BookieId) -> BookieServiceInfo:
    """Read a registration payload.

    Bookies from before this format announce nothing; their id is then their address.
    """
    if not data:
        return _from_bookie_id(bookie_id)
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
        if missing_fields(message):
            raise _unreadable(bookie_id, f"fields are missing: {missing_fields(message)}")
        return BookieServiceInfo(
            frozenset(
                Endpoint(
                    id=utf8(endpoint.id),
                    host=utf8(endpoint.host),
                    port=endpoint.port,
                    protocol=utf8(endpoint.protocol),
                    auth=tuple(map(utf8, endpoint.auth)),
                    extensions=tuple(map(utf8, endpoint.extensions)),
                )
                for endpoint in message.endpoints
            ),
            {utf8(key): utf8(value) for key, value in message.properties.items()},
        )
    except (DecodeError, TextFormatError, UnicodeDecodeError):  # the last one for names in a map
        raise _unreadable(bookie_id, f"not a service info, found {data[:40]!r}") from None


def _from_bookie_id(bookie_id: BookieId) -> BookieServiceInfo:
    host, _, rest = bookie_id.partition(":")
    port = rest.partition(":")[0]
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return BookieServiceInfo()
    return BookieServiceInfo(frozenset({Endpoint(bookie_id, host, int(port), RPC_PROTOCOL)}))


def _unreadable(bookie_id: BookieId, what: str) -> InvalidMetadataError:
    return InvalidMetadataError(f"registration of bookie {bookie_id}: {what}")
