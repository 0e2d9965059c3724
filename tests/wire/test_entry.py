"""Entries: built one by one and by the hundred, checked one by one and by the hundred."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import v2
from wire.batch import join_records, split_records
from wire.build_v2 import add_prefix, add_requests
from wire.digest import digest_for
from wire.entry import (
    Entry,
    decode_entries,
    decode_entry,
    decode_lac,
    encode_entries,
    encode_entry,
    encode_lac,
    encode_records,
)
from wire.errors import CorruptionError
from wire.types import DigestType, Flag, LedgerId

TYPES = {"CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C}
TYPES["DUMMY"] = DigestType.DUMMY
PAYLOADS = [b"", b"a", b"bc" * 300, b"d" * 512, b"e" * 513, b"f"]

all_digests = pytest.mark.parametrize(
    "digest", [digest_for(kind, b"pwd") for kind in DigestType], ids=lambda d: d.type.name
)


@pytest.mark.parametrize("vector", v2.load("entry-digests.json"))
def test_captured_body_is_built_and_split(vector: dict[str, Any]) -> None:
    digest = digest_for(TYPES[vector["digest_type"]], vector["password"].encode())
    body = bytes.fromhex(vector["body_hex"])
    ledger_id = LedgerId(vector["ledger_id"])
    if vector["kind"] == "explicit_lac":
        assert encode_lac(ledger_id=ledger_id, lac=vector["lac"], digest=digest) == body
        assert decode_lac(body, ledger_id=ledger_id, digest=digest) == vector["lac"]
        return
    entry = Entry(
        ledger_id=ledger_id,
        entry_id=vector["entry_id"],
        lac=vector["lac"],
        length=vector["length"],
        payload=bytes.fromhex(vector["payload_hex"]),
    )
    built = encode_entry(
        entry.payload,
        ledger_id=ledger_id,
        entry_id=entry.entry_id,
        lac=entry.lac,
        length=entry.length,
        digest=digest,
    )
    assert built == body
    for asked in (entry.entry_id, None):
        assert decode_entry(body, ledger_id=ledger_id, entry_id=asked, digest=digest) == entry


@all_digests
def test_many_entries_equal_single_ones(digest: Any) -> None:
    lengths = list(accumulate(map(len, PAYLOADS), initial=1000))[1:]
    single = [
        encode_entry(payload, ledger_id=7, entry_id=20 + i, lac=18, length=length, digest=digest)
        for i, (payload, length) in enumerate(zip(PAYLOADS, lengths, strict=True))
    ]
    common: Any = {"ledger_id": 7, "first_entry_id": 20, "lac": 18, "length": 1000}
    assert encode_entries(PAYLOADS, **common, digest=digest) == single
    records = encode_records(PAYLOADS, **common, digest=digest)
    assert records == join_records(single)
    bounds = split_records(records, 0, len(records))
    assert [records[a + 4 : b] for a, b in pairwise(bounds)] == single

    entries = decode_entries(
        records, bounds, 4, ledger_id=7, entry_ids=range(20, 26), digest=digest
    )
    assert entries.payloads == PAYLOADS
    assert entries.lengths == lengths
    assert entries.lac == 18
    assert entries.error is None


def _records(digest: Any, count: int = 5) -> bytes:
    payloads = [b"payload %d" % i for i in range(count)]
    return encode_records(payloads, ledger_id=7, first_entry_id=0, lac=-1, length=0, digest=digest)


@pytest.mark.parametrize("bad", range(5))
def test_bad_entry_ends_the_list_and_spares_those_before_it(bad: int) -> None:
    digest = digest_for(DigestType.CRC32C)
    records = bytearray(_records(digest))
    bounds = split_records(bytes(records), 0, len(records))
    records[bounds[bad + 1] - 1] ^= 1
    entries = decode_entries(
        bytes(records), bounds, 4, ledger_id=7, entry_ids=range(5), digest=digest
    )
    assert entries.payloads == [b"payload %d" % i for i in range(bad)]
    assert entries.error is not None
    assert f"entry {bad} of ledger 7 does not match its CRC32C digest" in str(entries.error)


@all_digests
def test_every_flipped_bit_is_found(digest: Any) -> None:
    """With DUMMY only the ids are protected; the others notice each of the bits."""
    body = encode_entry(b"payload", ledger_id=7, entry_id=3, lac=1, length=9, digest=digest)
    protected = 16 if digest.type is DigestType.DUMMY else len(body)
    for bit in range(protected * 8):
        wrong = bytearray(body)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_entry(bytes(wrong), ledger_id=7, entry_id=3, digest=digest)
        many = decode_entries(
            bytes(wrong), [0, len(wrong)], 0, ledger_id=7, entry_ids=[3], digest=digest
        )
        assert many.payloads == []
        assert isinstance(many.error, CorruptionError)


@all_digests
def test_short_entry_is_corruption_whatever_its_length(digest: Any) -> None:
    body = encode_entry(b"", ledger_id=7, entry_id=3, lac=1, length=9, digest=digest)
    for size in range(len(body)):
        with pytest.raises(CorruptionError, match=f"has {size} bytes"):
            decode_entry(body[:size], ledger_id=7, entry_id=3, digest=digest)
        many = decode_entries(body[:size], [0, size], 0, ledger_id=7, entry_ids=[3], digest=digest)
        assert f"has {size} bytes" in str(many.error)
        many = decode_entries(body, [0, size, 90], 4, ledger_id=7, entry_ids=[3, 4], digest=digest)
        assert many.payloads == []


def test_wrong_ids_say_what_was_asked_and_what_came() -> None:
    digest = digest_for(DigestType.DUMMY)
    body = encode_entry(b"x", ledger_id=7, entry_id=3, lac=1, length=9, digest=digest)
    with pytest.raises(
        CorruptionError, match="asked for entry 4 of ledger 7, got bytes of entry 3"
    ):
        decode_entry(body, ledger_id=7, entry_id=4, digest=digest)
    with pytest.raises(CorruptionError, match="of ledger 8, got bytes of entry 3 of ledger 7"):
        decode_entry(body, ledger_id=8, entry_id=None, digest=digest)


def test_wrong_password_is_found_by_hmac() -> None:
    body = encode_entry(
        b"x", ledger_id=7, entry_id=3, lac=1, length=9, digest=digest_for(DigestType.HMAC, b"one")
    )
    with pytest.raises(CorruptionError, match="check the password"):
        decode_entry(body, ledger_id=7, entry_id=3, digest=digest_for(DigestType.HMAC, b"other"))


@all_digests
def test_bad_explicit_lac_is_corruption(digest: Any) -> None:
    body = encode_lac(ledger_id=7, lac=5, digest=digest)
    with pytest.raises(CorruptionError, match="names ledger 7"):
        decode_lac(body, ledger_id=8, digest=digest)
    for size in range(len(body)):
        with pytest.raises(CorruptionError, match="bytes, not"):
            decode_lac(body[:size], ledger_id=7, digest=digest)
    if digest.size:
        with pytest.raises(CorruptionError, match="does not match"):
            decode_lac(body[:-1] + bytes([body[-1] ^ 1]), ledger_id=7, digest=digest)


@given(
    payload=st.binary(max_size=2000),
    ledger_id=v2.ids,
    entry_id=v2.ids,
    lac=v2.signed,
    length=v2.ids,
    kind=st.sampled_from(DigestType),
)
def test_entry_survives(
    payload: bytes, ledger_id: LedgerId, entry_id: int, lac: int, length: int, kind: DigestType
) -> None:
    digest = digest_for(kind, b"pwd")
    body = encode_entry(
        payload, ledger_id=ledger_id, entry_id=entry_id, lac=lac, length=length, digest=digest
    )
    assert decode_entry(
        memoryview(body), ledger_id=ledger_id, entry_id=entry_id, digest=digest
    ) == Entry(ledger_id=ledger_id, entry_id=entry_id, lac=lac, length=length, payload=payload)


@all_digests
def test_records_with_the_prefix_of_an_add_are_its_frames(digest: Any) -> None:
    payloads = [b"", b"a" * 100, b"b" * 2000]
    single = encode_entries(
        payloads, ledger_id=7, first_entry_id=5, lac=4, length=90, digest=digest
    )
    key = bytes(range(20))
    frames = encode_records(
        payloads, ledger_id=7, first_entry_id=5, lac=4, length=90, digest=digest,
        prefix=add_prefix(key, Flag.DEFERRED_SYNC),
    )  # fmt: skip
    assert frames == add_requests(single, master_key=key, flags=Flag.DEFERRED_SYNC)
