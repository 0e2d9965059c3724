"""Ledger metadata to bytes and back, in the three formats that clusters hold.

Every record begins with one line that names its format. A ledger keeps the format it was created
with: a process too old for a newer format would otherwise lose sight of ledgers it owns.

| Format | Body | What it cannot say |
|---|---|---|
| 1 | lines of text | ack quorum, digest type, password, ctime, custom metadata, token |
| 2 | protobuf text | token |
| 3 | length, then protobuf | nothing; the default |
"""

from __future__ import annotations

import re
from typing import Final

from google.protobuf.message import DecodeError

from metadata.model import (
    FORMAT_MAX,
    Fragment,
    InvalidMetadataError,
    LedgerMetadata,
    LedgerState,
)
from metadata.text_format import TextFormatError, format_text, missing_fields, parse_text, utf8
from wire.bookkeeper_pb2 import LedgerMetadataFormat
from wire.types import NO_ENTRY, BookieId, DigestType, LedgerId

_MAGIC: Final = b"BookieMetadataFormatVersion\t"
_HEADER: Final = re.compile(re.escape(_MAGIC) + rb"([0-9]{1,9})\n")
_HEADER_BYTES_MAX: Final = len(_MAGIC) + 10

#: Format 1 marks a ledger under recovery as closed at this impossible entry.
_IN_RECOVERY_V1: Final = -102
_CLOSED_V1: Final = "CLOSED"
_INTEGER_V1: Final = re.compile(r"-?[0-9]{1,19}")

#: A length in front of a record of ZooKeeper's size never needs more than five bytes.
_VARINT_BYTES_MAX: Final = 5


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The record as Apache 4.18 would write it, in the format that the ledger has."""
    header = _MAGIC + f"{metadata.format_version}\n".encode()
    if metadata.format_version == 1:
        return header + _encode_v1(metadata)
    message = _message_of(metadata)
    if metadata.format_version == 2:
        message.ClearField("cToken")
        return header + format_text(message)
    body = message.SerializeToString(deterministic=True)
    return header + _varint(len(body)) + body


def decode_ledger_metadata(
    data: bytes, *, ledger_id: LedgerId, path: str | None = None
) -> LedgerMetadata:
    """Read a record of any format. `path` only makes errors easier to act on."""
    try:
        version, body = _split_header(data)
        if version == 1:
            return _decode_v1(body, ledger_id)
        message = _parse_v2(body) if version == 2 else _parse_v3(body)
        return _metadata_of(message, ledger_id, version)
    except InvalidMetadataError as error:
        where = f"ledger {ledger_id}" if path is None else f"ledger {ledger_id} at {path}"
        what = str(error).removeprefix(f"ledger {ledger_id}: ")
        raise InvalidMetadataError(f"{where}: {what}") from error


def _split_header(data: bytes) -> tuple[int, bytes]:
    match = _HEADER.match(data)
    if match is None:
        start = data[:_HEADER_BYTES_MAX]
        if not start:
            raise InvalidMetadataError("not a ledger record: there are no bytes")
        if _MAGIC.startswith(start) or re.fullmatch(re.escape(_MAGIC) + rb"[0-9]{0,9}", data):
            raise InvalidMetadataError(f"record is cut off after {len(data)} bytes, in its header")
        raise InvalidMetadataError(
            f"not a ledger record: it should begin with {_MAGIC.decode().strip()}, found {start!r}"
        )
    version = int(match[1])
    if version > FORMAT_MAX:
        raise InvalidMetadataError(
            f"metadata format {version} was written by a newer release, this one knows up to "
            f"{FORMAT_MAX}; upgrade"
        )
    if version < 1:
        raise InvalidMetadataError(f"there is no metadata format {version}, want 1..{FORMAT_MAX}")
    return version, data[match.end() :]


# ---------------------------------------------------------------------- formats 2 and 3


def _message_of(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=NO_ENTRY if metadata.last_entry_id is None else metadata.last_entry_id,
        state=metadata.state.name,
        digestType=None if metadata.digest_type is None else metadata.digest_type.name,
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
        ctime=metadata.ctime_ms,
        cToken=metadata.creator_token,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    for key, value in metadata.custom:
        message.customMetadata.add(key=key, value=value)
    return message


def _metadata_of(
    message: LedgerMetadataFormat, ledger_id: LedgerId, version: int
) -> LedgerMetadata:
    """Java ignores length and last entry unless CLOSED, so do we: older writers left an LAC there.

    A duplicate custom key takes the last value; that is what a map does.
    """
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise InvalidMetadataError("CLOSED without a last entry id")
    try:
        custom = {utf8(item.key): item.value for item in message.customMetadata}
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=message.ensembleSize,
            write_quorum=message.quorumSize,
            ack_quorum=(
                message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
            ),
            fragments=tuple(
                Fragment(
                    segment.firstEntryId,
                    tuple(BookieId(utf8(member)) for member in segment.ensembleMember),
                )
                for segment in message.segment
            ),
            state=state,
            last_entry_id=message.lastEntryId if closed else None,
            length=message.length if closed else 0,
            digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
            password=message.password if message.HasField("password") else None,
            ctime_ms=message.ctime if message.HasField("ctime") else None,
            custom=tuple(custom.items()),
            creator_token=message.cToken if version >= 3 else 0,
            format_version=version,
        )
    except TextFormatError as error:
        raise InvalidMetadataError(f"format {version}: {error}") from None


def _parse_v2(body: bytes) -> LedgerMetadataFormat:
    try:
        return parse_text(body, LedgerMetadataFormat())
    except TextFormatError as error:
        raise InvalidMetadataError(f"format 2: {error}") from error


def _parse_v3(body: bytes) -> LedgerMetadataFormat:
    """Bytes behind the message are ignored, as both Java releases do."""
    size, start = _read_varint(body)
    if len(body) - start < size:
        raise InvalidMetadataError(
            f"record is cut off: it should hold {size} bytes, found {len(body) - start}"
        )
    message = LedgerMetadataFormat()
    try:
        message.ParseFromString(body[start : start + size])
    except DecodeError:
        raise InvalidMetadataError("format 3: not a protobuf message") from None
    missing = missing_fields(message)
    if missing:
        raise InvalidMetadataError(f"format 3: required fields are missing: {', '.join(missing)}")
    return message


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    if len(data) < _VARINT_BYTES_MAX:
        raise InvalidMetadataError("record is cut off behind its header")
    raise InvalidMetadataError("format 3: the length of the record is no number")


# ---------------------------------------------------------------------- format 1


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    if metadata.ack_quorum != metadata.write_quorum:
        # A reader takes the write quorum for both. Recovery would then end the ledger at the
        # first bookie without an entry, although the writer had confirmed it elsewhere.
        raise InvalidMetadataError(
            f"ledger {metadata.ledger_id}: format 1 cannot record an ack quorum of "
            f"{metadata.ack_quorum} below the write quorum {metadata.write_quorum}"
        )
    lines = [f"{metadata.write_quorum}\n{metadata.ensemble_size}\n{metadata.length}\n"]
    lines += (
        "\t".join((str(fragment.first_entry_id), *fragment.ensemble)) + "\n"
        for fragment in metadata.fragments
    )
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY_V1}\t{_CLOSED_V1}")
    elif metadata.state is LedgerState.CLOSED:
        lines.append(f"{metadata.last_entry_id}\t{_CLOSED_V1}")
    return "".join(lines).encode()


def _decode_v1(body: bytes, ledger_id: LedgerId) -> LedgerMetadata:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidMetadataError("format 1: not UTF-8") from None
    *lines, rest = text.split("\n")
    if len(lines) < 3:
        raise InvalidMetadataError("record is cut off: format 1 begins with three numbers")
    write_quorum, ensemble_size, length = (_integer_v1(line) for line in lines[:3])
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, None
    for line in (*lines[3:], rest):
        first, *members = line.split("\t")
        if members[:1] == [_CLOSED_V1]:
            end = _integer_v1(first)
            if end == _IN_RECOVERY_V1:
                state = LedgerState.IN_RECOVERY
            else:
                state, last_entry_id = LedgerState.CLOSED, end
            break
        if len(fragments) < len(lines) - 3:
            fragments.append(Fragment(_integer_v1(first), tuple(map(BookieId, members))))
        elif rest:
            # Only the closing line comes without a newline. Java takes half a bookie id for a
            # whole one here; we would rather not look for a bookie that never was.
            raise InvalidMetadataError(f"record is cut off in its last line, found {rest[:40]!r}")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        format_version=1,
    )


def _integer_v1(text: str) -> int:
    if _INTEGER_V1.fullmatch(text) is None:
        raise InvalidMetadataError(f"format 1: expected a number, found {text[:40]!r}")
    return int(text)
