"""What an operator or another client can write: metadata nodes, cookies, configuration, URIs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bookie.config import BookieConfig
from bookie.storage_config import StorageConfig
from metadata import layout, records, service_info
from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.cookie import COOKIE_VERSION, Cookie, decode_cookie, encode_cookie
from metadata.model import LedgerMetadata
from metadata.uri import parse_metadata_uri
from runtime.config import Settings
from runtime.properties import parse_properties
from tests.fuzz.target import Target, judged
from wire.types import BookieId, LedgerId

_ROOT = Path(__file__).parents[2]
_VECTORS = _ROOT / "tests" / "vectors"


def ledger_metadata(data: bytes) -> None:
    """What is understood can be written, and means the same when it is read again."""
    found = judged(lambda data: decode_ledger_metadata(data, ledger_id=LedgerId(7)), data)
    if isinstance(found, LedgerMetadata):
        again = decode_ledger_metadata(encode_ledger_metadata(found), ledger_id=LedgerId(7))
        assert again == found


def cookies(data: bytes) -> None:
    found = judged(lambda data: decode_cookie(data, source="VERSION"), data)
    if isinstance(found, Cookie):
        # Whatever version it was, it is written in that of today.
        assert decode_cookie(encode_cookie(found), source="VERSION") == replace(
            found, version=COOKIE_VERSION
        )


def nodes(data: bytes) -> None:
    """The small nodes of the tree."""
    judged(layout.parse_layout, data)
    for decode in (
        records.decode_mark,
        records.decode_lock,
        records.decode_vote,
        records.decode_check_time,
        records.decode_delay,
        records.decode_instance_id,
    ):
        judged(decode, data)
    judged(lambda data: service_info.decode_service_info(data, BookieId("b:1")), data)


def configuration(data: bytes) -> None:
    text = data.decode("utf-8", "replace")

    def build(_: bytes) -> None:
        settings = Settings(parse_properties(text, "bk_server.conf"))
        settings.build(BookieConfig)
        settings.build(StorageConfig)
        settings.finish()

    judged(build, data)


def uris(data: bytes) -> None:
    judged(lambda data: parse_metadata_uri(data.decode("utf-8", "replace")), data)


def _hex_values(value: Any) -> Iterable[bytes]:
    """All bytes that a file of vectors holds, wherever they are in it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key.endswith("hex") and isinstance(inner, str):
                yield bytes.fromhex(inner)
            else:
                yield from _hex_values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _hex_values(inner)


def _vectors(*names: str) -> Iterable[bytes]:
    for name in names:
        found = _hex_values(json.loads((_VECTORS / name).read_text()))
        yield from (data for data in dict.fromkeys(found) if len(data) <= 4096)


def _configuration_seeds() -> Iterable[bytes]:
    yield b"bookiePort=3181\njournalDirectories=/a,/b\nledgerDirectories=/c\n"
    yield b"metadataServiceUri=zk+hierarchical://h1:2181;h2/ledgers\nallowLoopback=true\n"
    lines = (_ROOT / "conf" / "bk_server.conf").read_text().splitlines()
    yield from (line.lstrip("# ").encode() for line in lines if "=" in line)


def _uri_seeds() -> Iterable[bytes]:
    return (
        b"zk://127.0.0.1:2181/ledgers",
        b"zk+hierarchical://h1:2181;h2:2182/a/b",
        b"metadata-store:zk:h1:2181,h2:2181/ledgers",
        b"zk+null://[::1]:2181/ledgers",
    )


TARGETS = (
    Target(
        "ledger_metadata",
        ledger_metadata,
        lambda: _vectors("metadata-ledgers.json", "metadata-parser-cases.json"),
    ),
    Target("cookies", cookies, lambda: _vectors("cookies.json")),
    Target(
        "nodes",
        nodes,
        lambda: _vectors("metadata-tree.json", "underreplication.json", "registration.json"),
    ),
    Target("configuration", configuration, _configuration_seeds),
    Target("uris", uris, _uri_seeds),
)
