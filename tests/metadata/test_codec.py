"""Ledger records byte for byte: against records captured from Java, and against damage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.model import (
    Fragment,
    InvalidMetadataError,
    LedgerMetadata,
    LedgerState,
    new_ledger,
)
from metadata.paths import LayoutType, LedgerPaths
from wire.bookkeeper_pb2 import LedgerMetadataFormat
from wire.types import ID_MAX, BookieId, DigestType, LedgerId

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)

VECTORS = Path(__file__).parent.parent / "vectors"
LEDGERS: list[dict[str, Any]] = json.loads((VECTORS / "metadata-ledgers.json").read_text())
CASES: list[dict[str, Any]] = json.loads((VECTORS / "metadata-parser-cases.json").read_text())
CASE_BY_NAME = {case["name"]: case for case in CASES}

#: 4.17 writes bytes 7 and 11 as letters, 4.18 as octal. We write what 4.18 writes; both read it.
SPELLED_OTHERWISE = "serializer/4.17.3/v2-escapes"

#: Where the releases disagree on a record made by hand, what we do and why.
CHOICES = {
    # An unknown name is skipped: format 3 does so in both releases, and a later release that
    # adds a field should not take the ledger away from us.
    "v2-unknown": "ok",
    # The number of an enum value says the same as its name.
    "v2-numenum": "ok",
    # Required is required. A record that lost a line must not pass for a whole one.
    "v2-missing-length": "error",
    # Guessing CRC32 would turn the guess into a fact with our next write.
    "v2-pw-only": "error",
    "v3-pw-no-digest": "error",
    # A map takes the last value; refusing would cost the ledger over a comment on it.
    "v3-dupcustom": "ok",
}


def decode(data: bytes, ledger_id: int = 1) -> LedgerMetadata:
    return decode_ledger_metadata(data, ledger_id=LedgerId(ledger_id))


def record(version: int, body: bytes) -> bytes:
    return f"BookieMetadataFormatVersion\t{version}\n".encode() + body


def fields_of(metadata: LedgerMetadata) -> dict[str, Any]:
    """A value in the words of the vector files."""
    fields: dict[str, Any] = {
        "quorumSize": metadata.write_quorum,
        "ensembleSize": metadata.ensemble_size,
        "length": metadata.length,
        "state": metadata.state.name,
        "segments": [
            {"firstEntryId": one.first_entry_id, "members": list(one.ensemble)}
            for one in metadata.fragments
        ],
    }
    if metadata.format_version == 1:
        if metadata.state is LedgerState.IN_RECOVERY:
            fields["lastEntryId"] = -102
        elif metadata.state is LedgerState.CLOSED:
            fields["lastEntryId"] = metadata.last_entry_id
        return fields
    assert metadata.digest_type is not None
    assert metadata.password is not None
    fields["lastEntryId"] = -1 if metadata.last_entry_id is None else metadata.last_entry_id
    fields["ackQuorumSize"] = metadata.ack_quorum
    fields["digestType"] = metadata.digest_type.name
    fields["password_hex"] = metadata.password.hex()
    if metadata.ctime_ms is not None:
        fields["ctime"] = metadata.ctime_ms
    if metadata.custom:
        fields["customMetadata"] = [
            {"key": key, "value_hex": value.hex()} for key, value in metadata.custom
        ]
    if metadata.format_version == 3:
        fields["cToken"] = metadata.creator_token
    return fields


@pytest.mark.parametrize("vector", LEDGERS, ids=lambda vector: vector["name"])
def test_captured_record_decodes_and_encodes_to_the_same_bytes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["data_hex"])
    metadata = decode(data, vector.get("ledger_id", 1))
    assert metadata.format_version == vector["format_version"]
    assert fields_of(metadata) == vector["fields"]
    encoded = encode_ledger_metadata(metadata)
    if vector["name"] == SPELLED_OTHERWISE:
        assert encoded == data.replace(rb"\a", rb"\007").replace(rb"\v", rb"\013")
    else:
        assert encoded == data


def test_vector_files_are_whole() -> None:
    assert len(LEDGERS) == 189
    assert len(CASES) == 33
    assert {vector["format_version"] for vector in LEDGERS} == {1, 2, 3}


def test_captured_updates_of_java_are_what_our_changes_make() -> None:
    """Every update that Java wrote must be one of our changes applied to the record before it.

    Recovery, ensemble change, close and re-replication all occur. Custom metadata may come back
    in another order, from a hash map; nothing else may differ.
    """
    seen: set[str] = set()
    records: dict[tuple[str, str, int], LedgerMetadata] = {}
    for vector in LEDGERS:
        if vector["origin"] != "zookeeper":
            continue
        java, path, version = vector["java"], vector["path"], vector["znode_version"]
        after = decode(bytes.fromhex(vector["data_hex"]), vector["ledger_id"])
        records[java, path, version] = after
        before = records.get((java, path, version - 1))
        if before is not None:
            name, expected = _change_between(before, after)
            seen.add(name)
            assert dict(expected.custom) == dict(after.custom)
            assert replace(expected, custom=after.custom) == after, vector["name"]
    assert seen == {"in_recovery", "closed_at", "ensemble change", "closed_by_recovery", "replace"}


def _change_between(before: LedgerMetadata, after: LedgerMetadata) -> tuple[str, LedgerMetadata]:
    if after.state is LedgerState.IN_RECOVERY and before.state is LedgerState.OPEN:
        return "in_recovery", before.in_recovery()
    if after.is_closed and not before.is_closed:
        assert after.last_entry_id is not None
        end = {"last_entry_id": after.last_entry_id, "length": after.length}
        if before.state is LedgerState.OPEN:
            return "closed_at", before.closed_at(**end)
        changed = [one for one in after.fragments if one not in before.fragments]
        return "closed_by_recovery", before.closed_by_recovery(**end, fragments=changed)
    if before.fragments == after.fragments:
        return "nothing", replace(before, creator_token=0)
    if before.state is LedgerState.OPEN and before.last_fragment != after.last_fragment:
        slots = zip(before.last_fragment.ensemble, after.last_fragment.ensemble, strict=True)
        changes = {slot: new for slot, (old, new) in enumerate(slots) if old != new}
        return "ensemble change", before.with_ensemble_change(
            first_entry_id=after.last_fragment.first_entry_id, replacements=changes
        )
    value = before
    for old_one, new_one in zip(before.fragments, after.fragments, strict=True):
        pairs = zip(old_one.ensemble, new_one.ensemble, strict=True)
        for slot, (old, new) in enumerate(pairs):
            if old != new and value.holds(
                first_entry_id=old_one.first_entry_id, slot=slot, bookie_id=old
            ):
                value = value.with_bookie_replaced(
                    first_entry_id=old_one.first_entry_id, slot=slot, old=old, new=new
                )
    return "replace", value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_record_made_by_hand_is_read_where_java_reads_it(case: dict[str, Any]) -> None:
    outcomes = {case["4.18.0"]["parse"], case["4.17.3"]["parse"]}
    expected = CHOICES[case["name"]] if len(outcomes) == 2 else outcomes.pop()
    data = bytes.fromhex(case["data_hex"])
    if expected == "error":
        with pytest.raises(InvalidMetadataError):
            decode(data)
        return
    encoded = encode_ledger_metadata(decode(data))
    rewritten = {
        case[release].get("rewritten_hex", case["data_hex"])
        for release in ("4.18.0", "4.17.3")
        if case[release].get("rewrite") in ("same", "changed")
    }
    assert rewritten <= {encoded.hex()}
    assert decode(encoded) == decode(data)


def test_choices_are_made_exactly_where_the_releases_disagree() -> None:
    disagree = {
        case["name"] for case in CASES if case["4.18.0"]["parse"] != case["4.17.3"]["parse"]
    }
    assert disagree == set(CHOICES)


def test_digest_without_a_password_survives_a_rewrite() -> None:
    """Java reads such a record and cannot write it back. We keep what there is."""
    data = bytes.fromhex(CASE_BY_NAME["v3-digest-no-pw"]["data_hex"])
    metadata = decode(data)
    assert (metadata.digest_type, metadata.password) == (DigestType.CRC32C, None)
    assert decode(encode_ledger_metadata(metadata)) == metadata


def test_golden_samples_of_the_layout_page() -> None:
    bookies = [BookieId(f"bk{number}.example.com:3181") for number in range(1, 5)]
    created = new_ledger(
        ledger_id=LedgerId(12345),
        ensemble=bookies[:3],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        custom={"application": b"demo"},
        creator_token=0x0123456789ABCDEF,
    )
    encoded = encode_ledger_metadata(created)
    assert len(encoded) == 164
    assert encoded.endswith(bytes.fromhex("60ef9bafcdf8acd19101"))
    closed = created.with_ensemble_change(
        first_entry_id=500, replacements={1: bookies[3]}
    ).closed_at(last_entry_id=999, length=1234567)
    encoded = encode_ledger_metadata(closed)
    assert len(encoded) == 221
    assert encoded.endswith(bytes.fromhex("5a130a0b6170706c69636174696f6e120464656d6f6000"))


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a ledger record: there are no bytes"),
        (b"\x00\x01\x02", "not a ledger record"),
        (b"BookieMetadata", "cut off after 14 bytes, in its header"),
        (b"BookieMetadataFormatVersion\t", "cut off after 28 bytes, in its header"),
        (b"BookieMetadataFormatVersion\t3", "cut off after 29 bytes, in its header"),
        (b"BookieMetadataFormatVersion\tX\n", r"found b'BookieMetadataFormatVersion\\tX"),
        (b"BookieMetadataFormatVersion\t1234567890\n", "not a ledger record"),
        (b"BookieMetadataFormatVersion 3\n", "not a ledger record"),
        (record(0, b""), "no metadata format 0"),
        (record(4, b""), "metadata format 4 was written by a newer release.*upgrade"),
        (record(3, b""), "cut off behind its header"),
        (record(3, b"\x80\x80"), "cut off behind its header"),
        (record(3, b"\xff\xff\xff\xff\xff\xff"), "no number"),
        (record(3, b"\x05\x08\x01"), "should hold 5 bytes, found 2"),
        (record(3, b"\x02\xff\xff"), "not a protobuf message"),
        (record(3, b"\x00"), "required fields are missing: quorumSize, ensembleSize"),
        (record(2, b"quorumSize 1"), "format 2: line 1: expected :"),
        (record(2, b"quorumSize: 1\nstate: AJAR"), "line 2: state has no such value"),
        (record(2, b"quorumSize: 5000000000"), "out of range"),
        (record(2, b'password: "\\q"'), "unknown escape"),
        (record(1, b"3\n3\n"), "cut off: format 1 begins with three numbers"),
        (record(1, b"3\nx\n0\n"), "expected a number, found 'x'"),
        (record(1, b"1\n1\n0\n"), "no fragment"),
        (record(1, b"1\n1\n0\n0\tbk1:3181\n4\tCLOSE"), "cut off in its last line"),
        (record(1, b"1\n1\n0\n0\tbk1:3181\n\n"), "expected a number, found ''"),
        (record(1, b"1\n1\n0\n0\tbk1:3181\n-7\tCLOSED"), "last entry id -7"),
        (record(1, b"\xff\n1\n0\n"), "not UTF-8"),
    ],
)
def test_unreadable_record_is_explained_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(InvalidMetadataError, match=message) as caught:
        decode(data, 77)
    assert str(caught.value).startswith("ledger 77: ")
    assert "\n" not in str(caught.value)


def test_error_names_the_path_when_it_is_known() -> None:
    with pytest.raises(InvalidMetadataError, match=r"^ledger 5 at /ledgers/00/0000/L0005: not a"):
        decode_ledger_metadata(b"x", ledger_id=LedgerId(5), path="/ledgers/00/0000/L0005")


def test_closed_record_without_a_last_entry_is_refused() -> None:
    message = LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=0, state="CLOSED")
    message.segment.add(ensembleMember=["a:1"], firstEntryId=0)
    body = message.SerializeToString()
    with pytest.raises(InvalidMetadataError, match="CLOSED without a last entry"):
        decode(record(3, bytes((len(body),)) + body))


def test_text_that_is_not_utf8_is_refused() -> None:
    good = encode_ledger_metadata(sample())
    assert good.count(b"bk1:3181") == 1
    with pytest.raises(InvalidMetadataError):
        decode(good.replace(b"bk1:3181", b"bk\xff:3181"))


def sample(version: int = 3) -> LedgerMetadata:
    return new_ledger(
        ledger_id=LedgerId(1),
        ensemble=[BookieId("bk1:3181"), BookieId("bk2:3181")],
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"pw",
        custom={"a": b"b"},
        ctime_ms=1750000000000,
        creator_token=5,
        format_version=version,
    )


def test_format_1_refuses_an_ack_quorum_that_it_cannot_record() -> None:
    with pytest.raises(InvalidMetadataError, match="format 1 cannot record an ack quorum"):
        encode_ledger_metadata(replace(sample(1), ack_quorum=1))


def test_presence_of_ctime_and_the_format_survive_changes() -> None:
    for version in (1, 2, 3):
        for ctime_ms in (None, 0, 1750000000000):
            created = replace(sample(version), ctime_ms=ctime_ms)
            read = decode(encode_ledger_metadata(created))
            updated = decode(encode_ledger_metadata(read.in_recovery()))
            assert updated.format_version == version
            assert updated.ctime_ms == (None if version == 1 else ctime_ms)


# ---------------------------------------------------------------------- round trips

_names = st.from_regex(r"[A-Za-z0-9._:\-]{1,12}", fullmatch=True).filter(
    lambda name: name.lower() != "readonly"
)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    version = draw(st.integers(1, 3))
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = write_quorum if version == 1 else draw(st.integers(1, write_quorum))
    starts = draw(st.lists(st.integers(1, ID_MAX), max_size=3, unique=True).map(sorted))
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    stored = version > 1
    return LedgerMetadata(
        ledger_id=LedgerId(draw(st.integers(0, ID_MAX))),
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        fragments=tuple(
            Fragment(
                start,
                tuple(map(BookieId, draw(st.lists(_names, min_size=size, max_size=size)))),
            )
            for start in (0, *starts)
        ),
        state=state,
        last_entry_id=draw(st.integers(-1, ID_MAX)) if closed else None,
        length=draw(st.integers(0, ID_MAX)) if closed else 0,
        digest_type=draw(st.sampled_from(DigestType)) if stored else None,
        password=draw(st.binary(max_size=20)) if stored else None,
        ctime_ms=draw(st.none() | st.integers(0, ID_MAX)) if stored else None,
        custom=tuple(
            draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)).items()
        )
        if stored
        else (),
        creator_token=draw(st.integers(0, ID_MAX)) if version == 3 else 0,
        format_version=version,
    )


@steady
@given(ledgers())
def test_every_ledger_survives_its_format(metadata: LedgerMetadata) -> None:
    data = encode_ledger_metadata(metadata)
    assert decode(data, metadata.ledger_id) == metadata


def try_decode(data: bytes) -> LedgerMetadata | None:
    """Damage may leave a readable record, or an InvalidMetadataError of one line; nothing else."""
    try:
        return decode(data)
    except InvalidMetadataError as caught:
        message = str(caught)
    assert "\n" not in message
    assert len(message) < 1000
    return None


@steady
@given(ledgers(), st.data())
def test_damaged_record_is_read_or_refused_and_never_anything_else(
    metadata: LedgerMetadata, data: st.DataObject
) -> None:
    encoded = bytearray(encode_ledger_metadata(metadata))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    try_decode(bytes(encoded))


@steady
@given(st.integers(1, 3), st.binary(max_size=200))
def test_random_body_is_read_or_refused_and_never_anything_else(version: int, body: bytes) -> None:
    try_decode(record(version, body))


def test_every_prefix_of_a_record_is_refused_or_misses_only_optional_lines() -> None:
    """Format 3 knows its length. Formats 1 and 2 end where the text ends, so some cuts behind the
    fragments cannot be seen, by Java neither; any other must be noticed.
    """
    for version in (1, 2, 3):
        whole = encode_ledger_metadata(replace(sample(version)).in_recovery())
        for size in range(len(whole)):
            metadata = try_decode(whole[:size])
            if version == 3:
                assert metadata is None
            if metadata is not None:
                assert metadata.fragments == sample().fragments
                assert version == 2 or whole[:size].endswith(b"\n")


def test_paths_of_captured_records_are_ours() -> None:
    layouts = {
        "hierarchical": LayoutType.HIERARCHICAL,
        "hierarchical-by-null-uri": LayoutType.HIERARCHICAL,
        "longhierarchical": LayoutType.LONG_HIERARCHICAL,
        "flat": LayoutType.FLAT,
        "legacyhierarchical": LayoutType.LEGACY_HIERARCHICAL,
    }
    for vector in LEDGERS:
        if "layout" not in vector:
            continue
        if vector["layout"] in ("flat", "legacyhierarchical") and vector["ledger_id"] >= 10**10:
            continue  # Java let it collide (legacy) or hid it from every walk (flat)
        root = "/" + vector["path"].split("/")[1]
        paths = LedgerPaths(root, layouts[vector["layout"]])
        assert paths.id_of(vector["path"]) == vector["ledger_id"]
        if vector["ledger_id"] <= paths.id_max:
            assert paths.path_of(LedgerId(vector["ledger_id"])) == vector["path"]
