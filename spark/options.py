"""The options of the data source, checked in one place, as frozen values.

They arrive as texts with keys of any case. What is read (`parse_source`) and what is written
(`parse_sink`) have options of their own; one that belongs to the other side is an error, like
every key that nobody knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ledger_client import DigestType
from metadata.uri import InvalidUriError, parse_metadata_uri
from spark import option_values as values
from spark.core.commits import CommitError, Identity
from spark.core.position import Position, parse_position
from spark.core.selection import Committed, Selection, parse_selection
from spark.credentials import CredentialsReference, parse_reference
from spark.errors import BadOptionError
from wire.errors import BadRequestError

ENTRIES: Final = "entries"
LEDGERS: Final = "ledgers"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
SKIP: Final = "skip"
TO_LAC: Final = "toLac"
FAIL: Final = "fail"

_K: Final = 1024
_M: Final = 1024 * _K
_G: Final = 1024 * _M

#: Arrow's offsets are 32-bit, and a batch is built, sent and held in one piece.
BATCH_BYTES_MAX: Final = 256 * _M
#: A bookie answers one request with one frame.
CHUNK_BYTES_MAX: Final = 4 * _M
_COUNT_MAX: Final = 2**31 - 1
_BYTES_MAX: Final = 2**62
_SECONDS_MAX: Final = 86400.0
#: Concurrent tasks to assume where nobody says: too many would cut small jobs to crumbs.
PARALLELISM: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, and how. `None` stands for "no limit" unless it is said otherwise."""

    metadata_service_uri: str
    selection: Selection
    table: str = ENTRIES
    starting_position: Position | None = None  # None: as `starts_latest` says
    starts_latest: bool = False
    ending_position: Position | None = None  # exclusive
    open_ledgers: str = SKIP
    target_partition_bytes: int = 128 * _M
    open_cost_bytes: int = 4 * _M
    min_partitions: int | None = None  # None: from the parallelism
    max_partitions: int = 20_000
    batch_bytes: int = 4 * _M
    batch_rows: int = 4096
    read_chunk_bytes: int = 1 * _M
    read_window_bytes: int = 8 * _M
    verify_digest: bool = True
    null_on_digest_error: bool = False
    fail_on_data_loss: bool = True
    include_metadata: bool = False
    max_entries_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = 1 * _G
    metadata_grace_seconds: float = 60.0
    read_bytes_per_second: int | None = None  # of the whole job
    parallelism: int = PARALLELISM
    read_class_batch: bool = True
    locality: str = "rack"
    topology_table: str | None = None  # a file of `host /rack` lines, read by the planner
    read_timeout_seconds: float = 30.0
    retry_rounds: int = 3
    credentials: CredentialsReference | None = field(default=None)
    client_conf: str | None = None  # a file with TLS and who we are, on every machine


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    metadata_service_uri: str
    ensemble_size: int = 3
    write_quorum: int = 2
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    write_id: str = ""  # of a batch; drawn where none is given
    is_write_id_given: bool = False
    max_ledger_bytes: int = 1 * _G
    orphan_ttl_seconds: float = 86400.0
    metadata_grace_seconds: float = 60.0
    credentials: CredentialsReference | None = None
    client_conf: str | None = None


def _uri(text: str) -> str:
    try:
        return str(parse_metadata_uri(text.strip()))
    except InvalidUriError as error:
        raise ValueError(str(error)) from None


def _selection(text: str) -> Selection:
    try:
        return parse_selection(text)
    except BadRequestError as error:
        raise ValueError(str(error)) from None


def _position(*words: str) -> values.Parser:
    def parse(text: str) -> str | Position:
        if text.strip().lower() in words:
            return text.strip().lower()
        try:
            return parse_position(text)
        except BadRequestError as error:
            raise ValueError(f"{error}, or write {' or '.join(words)}") from None

    return parse


def _write_id(text: str) -> str:
    """The name of a commit, which is that of a node in the metadata store."""
    try:
        return str(Identity(text))
    except CommitError as error:
        raise ValueError(str(error)) from None


def _commit(text: str) -> str:
    """A write id, the id of a query, or one of its batches as `<query id>/<batch id>`."""
    try:
        return str(Identity.parse(text))
    except CommitError as error:
        raise ValueError(str(error)) from None


_bytes: Final = values.bounded(values.size, 1, _BYTES_MAX)
_count: Final = values.bounded(values.number, 1, _COUNT_MAX)
_time: Final = values.bounded(values.seconds, 0.001, _SECONDS_MAX * 366)

_SHARED: Final[Mapping[str, values.Parser]] = {
    "metadataServiceUri": _uri,
    "credentials": parse_reference,
    "clientConf": values.text_of,
    "metadataGrace": _time,
}

_SOURCE: Final[Mapping[str, values.Parser]] = {
    **_SHARED,
    "table": values.one_of(ENTRIES, LEDGERS),
    "ledgers": _selection,
    "commit": _commit,
    "startingPosition": _position(EARLIEST, LATEST),
    "endingPosition": _position(LATEST),
    "openLedgers": values.one_of(SKIP, TO_LAC, FAIL),
    "targetPartitionBytes": _bytes,
    "openCostBytes": values.bounded(values.size, 0, _BYTES_MAX),
    "minPartitions": _count,
    "maxPartitions": _count,
    "batchBytes": values.bounded(values.size, 1, BATCH_BYTES_MAX),
    "batchRows": values.bounded(values.number, 1, 1_000_000),
    "readChunkBytes": values.bounded(values.size, 4 * _K, CHUNK_BYTES_MAX),
    "readWindowBytes": values.bounded(values.size, 4 * _K, 1 * _G),
    "verifyDigest": values.truth,
    "onDigestError": values.one_of(FAIL, "null"),
    "failOnDataLoss": values.truth,
    "includeMetadata": values.truth,
    "maxEntriesPerTrigger": _count,
    "maxBytesPerTrigger": _bytes,
    "readBytesPerSecond": _bytes,
    "parallelism": _count,
    "readClass": values.one_of("batch", "tail"),
    "locality": values.one_of("none", "host", "rack"),
    "topologyTable": values.text_of,
    "readTimeout": _time,
    "retryRounds": values.bounded(values.number, 0, 100),
}

_SINK: Final[Mapping[str, values.Parser]] = {
    **_SHARED,
    "ensemble": _count,
    "writeQuorum": _count,
    "ackQuorum": _count,
    "digestType": values.one_of(*(kind.name for kind in DigestType)),
    "writeId": _write_id,
    "maxLedgerBytes": _bytes,
    "orphanTtl": _time,
}

_WAITING: Final = "belongs to named streams, which do not exist yet: name ledgers"
_NOT_YET: Final[Mapping[str, str]] = {
    **dict.fromkeys(("stream", "streamPattern", "startingTime", "endingTime"), _WAITING),
    "tiers": "belongs to the cold tier, which does not exist yet: leave it out",
}


def parse_source(given: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """What to read. `BadOptionError` names the option and says what to write instead."""
    elsewhere = {
        **_NOT_YET,
        **{name: "is for writing only: leave it out" for name in _SINK if name not in _SOURCE},
    }
    found = values.parsed(given, _SOURCE, elsewhere=elsewhere)
    uri = _required_uri(found)
    selection = _selected(found)
    start = found.get("startingPosition", LATEST if streaming else EARLIEST)
    end = found.get("endingPosition", LATEST)
    _check_use(found, start, end, streaming=streaming)
    options = SourceOptions(
        metadata_service_uri=uri,
        selection=selection,
        starting_position=start if isinstance(start, Position) else None,
        starts_latest=start == LATEST,
        ending_position=end if isinstance(end, Position) else None,
        open_ledgers=found.get("openLedgers", TO_LAC if streaming else SKIP),
        null_on_digest_error=found.get("onDigestError", FAIL) == "null",
        read_class_batch=found.get("readClass", "batch") == "batch",
        **_fields(found, _SOURCE_FIELDS),
    )
    if options.read_window_bytes < options.read_chunk_bytes:
        raise BadOptionError(
            f"readWindowBytes={options.read_window_bytes} is less than readChunkBytes="
            f"{options.read_chunk_bytes}: one request must fit"
        )
    if options.table == LEDGERS and options.ending_position is not None:
        raise BadOptionError("endingPosition names an entry: leave it out with table=ledgers")
    return options


def parse_columns(given: Mapping[str, str]) -> tuple[str, bool]:
    """The table, and whether to include metadata: all that decides about columns.

    Asked before it is known whether a batch or a stream is wanted, and the moment of `load()`: so
    whatever neither of them would take is refused now.
    """
    try:
        options = parse_source(given)
    except BadOptionError as error:
        try:
            options = parse_source(given, streaming=True)
        except BadOptionError:
            raise error from None
    return options.table, options.include_metadata


def parse_sink(given: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """How to write. A batch without a `writeId` gets one of its own."""
    elsewhere = {
        **_NOT_YET,
        **{name: "is for reading only: leave it out" for name in _SOURCE if name not in _SINK},
    }
    found = values.parsed(given, _SINK, elsewhere=elsewhere)
    uri = _required_uri(found)
    if streaming and "writeId" in found:
        raise BadOptionError("writeId is for batches: a streaming query has an id of its own")
    options = SinkOptions(
        metadata_service_uri=uri,
        write_id=found.get("writeId") or str(uuid.uuid4()),
        is_write_id_given="writeId" in found,
        digest_type=DigestType[found.get("digestType", DigestType.CRC32C.name)],
        **_fields(found, _SINK_FIELDS),
    )
    if not options.ensemble_size >= options.write_quorum >= options.ack_quorum:
        raise BadOptionError(
            f"ensemble={options.ensemble_size}, writeQuorum={options.write_quorum}, ackQuorum="
            f"{options.ack_quorum} cannot be: want ensemble >= writeQuorum >= ackQuorum"
        )
    return options


_SHARED_FIELDS: Final = {
    "credentials": "credentials",
    "clientConf": "client_conf",
    "metadataGrace": "metadata_grace_seconds",
}
_SOURCE_FIELDS: Final = {
    **_SHARED_FIELDS,
    "table": "table",
    "targetPartitionBytes": "target_partition_bytes",
    "openCostBytes": "open_cost_bytes",
    "minPartitions": "min_partitions",
    "maxPartitions": "max_partitions",
    "batchBytes": "batch_bytes",
    "batchRows": "batch_rows",
    "readChunkBytes": "read_chunk_bytes",
    "readWindowBytes": "read_window_bytes",
    "verifyDigest": "verify_digest",
    "failOnDataLoss": "fail_on_data_loss",
    "includeMetadata": "include_metadata",
    "maxEntriesPerTrigger": "max_entries_per_trigger",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
    "readBytesPerSecond": "read_bytes_per_second",
    "parallelism": "parallelism",
    "locality": "locality",
    "topologyTable": "topology_table",
    "readTimeout": "read_timeout_seconds",
    "retryRounds": "retry_rounds",
}
_SINK_FIELDS: Final = {
    **_SHARED_FIELDS,
    "ensemble": "ensemble_size",
    "writeQuorum": "write_quorum",
    "ackQuorum": "ack_quorum",
    "maxLedgerBytes": "max_ledger_bytes",
    "orphanTtl": "orphan_ttl_seconds",
}


def _fields(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[name]: value for name, value in found.items() if name in names}


def _required_uri(found: Mapping[str, Any]) -> str:
    uri = found.get("metadataServiceUri")
    if uri is None:
        raise BadOptionError(
            "option metadataServiceUri is missing: say where the metadata is, such as "
            "zk://zk1:2181;zk2:2181/ledgers"
        )
    return str(uri)


def _selected(found: Mapping[str, Any]) -> Selection:
    if ("ledgers" in found) == ("commit" in found):
        raise BadOptionError(
            "exactly one of the options ledgers and commit is wanted: write ledgers as "
            "5,7,10-20, all, or custom:key=value"
        )
    if "commit" in found:
        return Committed(found["commit"])
    selection: Selection = found["ledgers"]
    return selection


def _check_use(found: Mapping[str, Any], start: object, end: object, *, streaming: bool) -> None:
    if streaming:
        if "endingPosition" in found:
            raise BadOptionError("endingPosition is for batches: a stream has no end")
        if found.get("table") == LEDGERS:
            raise BadOptionError("table=ledgers is for batches: a stream has entries only")
    else:
        if start == LATEST:
            raise BadOptionError("startingPosition=latest is for streams: a batch would be empty")
        for name in ("maxEntriesPerTrigger", "maxBytesPerTrigger"):
            if name in found:
                raise BadOptionError(f"{name} is for streams: limit a batch by endingPosition")
