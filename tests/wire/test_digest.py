"""Digests and keys against captured ones."""

from __future__ import annotations

import hmac
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import v2
from wire.digest import JOIN_BYTES_MAX, digest_for, mac_key, master_key
from wire.types import DigestType

TYPES = {"CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C}
TYPES["DUMMY"] = DigestType.DUMMY


@pytest.mark.parametrize("vector", v2.load("master-keys.json"), ids=lambda v: v["password"])
def test_keys_are_the_captured_ones(vector: dict[str, Any]) -> None:
    password = bytes.fromhex(vector["password_utf8_hex"])
    assert master_key(password).hex() == vector["master_key_hex"]
    assert mac_key(password).hex() == vector["mac_key_hex"]


@pytest.mark.parametrize("vector", v2.load("entry-digests.json"))
def test_digest_is_the_captured_one(vector: dict[str, Any]) -> None:
    digest = digest_for(TYPES[vector["digest_type"]], vector["password"].encode())
    names = {"entry": "ledger_id entry_id lac length", "explicit_lac": "ledger_id lac"}
    header = b"".join(struct.pack(">q", vector[n]) for n in names[vector["kind"]].split())
    payload = bytes.fromhex(vector.get("payload_hex", ""))
    assert digest.of(header, payload).hex() == vector["digest_hex"]
    assert digest.size == len(vector["digest_hex"]) // 2
    assert digest.type is TYPES[vector["digest_type"]]


def test_captured_digests_cover_every_type_and_both_kinds() -> None:
    found = {(v["kind"], v["digest_type"]) for v in v2.load("entry-digests.json")}
    assert {name for _, name in found} == set(TYPES)
    assert {kind for kind, _ in found} == {"entry", "explicit_lac"}


@pytest.mark.parametrize("size", [0, 1, JOIN_BYTES_MAX, JOIN_BYTES_MAX + 1, 5000])
def test_checksums_of_joined_and_chained_bytes_are_the_same(size: int) -> None:
    """Small payloads are joined with their header, large ones chained behind it."""
    header, payload = bytes(range(32)), bytes(i % 251 for i in range(size))
    digest = digest_for(DigestType.CRC32C)
    assert digest.of(header, payload) == digest.of(header + payload, b"")
    digest = digest_for(DigestType.CRC32)
    assert digest.of(header, payload) == digest.of(header + payload, b"")
    assert digest.of(header, payload)[:4] == bytes(4)


def test_crc32c_check_value() -> None:
    assert digest_for(DigestType.CRC32C).of(b"1234", b"56789").hex() == "e3069283"


@given(password=st.binary(max_size=80), header=st.binary(max_size=40), payload=st.binary())
def test_hmac_agrees_with_the_library_entry_after_entry(
    password: bytes, header: bytes, payload: bytes
) -> None:
    digest = digest_for(DigestType.HMAC, password)
    for message in (payload, payload + b"x", payload):
        expected = hmac.digest(mac_key(password), header + message, "sha1")
        assert digest.of(header, message) == expected
