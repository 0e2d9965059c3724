"""Registration payloads, compared as values: their order means nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.model import InvalidMetadataError
from metadata.service_info import (
    ADD_BATCH_PROPERTY,
    RPC_PROTOCOL,
    BookieServiceInfo,
    Endpoint,
    bookie_service_info,
    decode_service_info,
    encode_service_info,
)
from wire.bookkeeper_pb2 import BookieServiceInfoFormat
from wire.types import BookieId

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)

VECTORS = Path(__file__).parent.parent / "vectors"
CAPTURED: list[dict[str, Any]] = json.loads((VECTORS / "registration.json").read_text())
NODES = [vector for vector in CAPTURED if vector["kind"] == "node"]
BOOKIE = BookieId("bk1:3181")


@pytest.mark.parametrize("vector", NODES, ids=lambda vector: vector["name"])
def test_captured_registration_is_read_and_written_back_as_the_same_value(
    vector: dict[str, Any],
) -> None:
    data = bytes.fromhex(vector["data_hex"])
    info = decode_service_info(data, BookieId(vector["path"].rpartition("/")[2]))
    assert info.endpoints == {
        Endpoint(
            id=endpoint["id"],
            host=endpoint["host"],
            port=endpoint["port"],
            protocol=endpoint["protocol"],
            auth=tuple(endpoint["auth"]),
            extensions=tuple(endpoint["extensions"]),
        )
        for endpoint in vector["fields"]["endpoints"]
    }
    assert info.properties == vector["fields"]["properties"]
    assert decode_service_info(encode_service_info(info), BOOKIE) == info
    assert info.rpc is not None
    assert info.rpc.id == "bookie"


def test_golden_registration() -> None:
    info = bookie_service_info(host="bk1.example.com", port=3181, http=("0.0.0.0", 8080))
    assert encode_service_info(info).hex() == (
        "32280a06626f6f6b696510ed181a0f626b312e6578616d706c652e636f6d220a626f6f6b69652d727063321e"
        "0a0a6874747073657276657210903f1a07302e302e302e30220468747470"
    )


def test_our_bookies_say_that_they_take_batches_and_java_ignores_it() -> None:
    info = bookie_service_info(host="h", port=1, tls=True, properties={ADD_BATCH_PROPERTY: "1"})
    read = decode_service_info(encode_service_info(info), BOOKIE)
    assert read.properties == {"quire.addBatch": "1"}
    assert read.takes_batches
    assert read.rpc == Endpoint("bookie", "h", 1, "bookie-rpc", extensions=("tls",))
    assert not bookie_service_info(host="h", port=1).takes_batches


@pytest.mark.parametrize(
    ("bookie_id", "address"),
    [
        ("bk1:3181", ("bk1", 3181)),
        ("127.0.0.1:3181", ("127.0.0.1", 3181)),
        ("bk_2.site-a:7", ("bk_2.site-a", 7)),
        ("a:7:x", ("a", 7)),
        ("bk-alpha", None),
        ("bk:x", None),
        ("bk:", None),
        (":5", None),
        ("bk:0", None),
        ("bk:65536", None),
        ("bk:123456789", None),
    ],
)
def test_empty_payload_means_that_the_id_is_the_address(
    bookie_id: str, address: tuple[str, int] | None
) -> None:
    rpc = decode_service_info(b"", BookieId(bookie_id)).rpc
    assert (None if rpc is None else (rpc.host, rpc.port)) == address
    if rpc is not None:
        assert (rpc.id, rpc.protocol) == (bookie_id, RPC_PROTOCOL)


def test_only_the_exact_protocol_is_connected_to() -> None:
    def info(protocol: str) -> BookieServiceInfo:
        return BookieServiceInfo(frozenset({Endpoint("bookie", "h", 1, protocol)}))

    assert info("bookie-rpc").rpc is not None
    assert info("Bookie-RPC").rpc is None
    assert info("bookie-rpc2").rpc is None


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"garbage",
        BookieServiceInfoFormat(endpoints=[{"id": "bookie"}]).SerializePartialToString(),
        bytes.fromhex(NODES[0]["data_hex"]).replace(b"bookie-rpc", b"bookie\xffrpc"),
        BookieServiceInfoFormat(properties={"key": "v"}).SerializeToString().replace(b"k", b"\xff"),
        BookieServiceInfoFormat(properties={"key": "v"}).SerializeToString().replace(b"v", b"\xff"),
    ],
)
def test_unreadable_payload_names_the_bookie(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError, match="registration of bookie bk1:3181: ") as caught:
        decode_service_info(data, BOOKIE)
    assert "\n" not in str(caught.value)


@steady
@given(st.binary(max_size=80))
def test_any_payload_is_read_or_refused(data: bytes) -> None:
    try:
        info = decode_service_info(data, BOOKIE)
    except InvalidMetadataError:
        return
    if data:
        again = encode_service_info(info)
        assert not again or decode_service_info(again, BOOKIE) == info


@pytest.mark.parametrize(
    ("http", "tls", "url"),
    [
        (None, False, None),
        (("10.0.0.1", 8080), False, "http://10.0.0.1:8080"),
        (("::1", 8080), True, "https://[::1]:8080"),
    ],
)
def test_address_of_the_admin_paths_is_announced(
    http: tuple[str, int] | None, tls: bool, url: str | None
) -> None:
    info = bookie_service_info(host="10.0.0.1", port=3181, http=http, http_tls=tls)
    assert info.http_url == url
    assert decode_service_info(encode_service_info(info), BookieId("a:1")).http_url == url
