"""What a commit is: its identity, its record, and which ledgers belong to nobody.

A sink writes ledgers that say in their custom metadata for whom they were written. They count once
a record of that identity lists them, and not before. So a ledger of the sink that no record lists
is a leftover of a killed attempt, a second attempt or a lost driver, and may go when it is old.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spark.core.rollup import RollUp, total
from wire.errors import LedgerError

VERSION: Final = 1
#: A commit is one request to ZooKeeper, which takes 1 MiB: a record and a check for each ledger.
LEDGERS_MAX: Final = 8000
#: Keys of the custom metadata of a ledger that a sink wrote.
IDENTITY_KEY: Final = "quire.spark.identity"
PARTITION_KEY: Final = "quire.spark.partition"
ATTEMPT_KEY: Final = "quire.spark.attempt"
STATE_KEY: Final = "quire.spark.state"
TTL_KEY: Final = "quire.spark.ttlMs"
STAGED: Final = b"staged"
#: How long a leftover is left alone where nobody says.
TTL_MS: Final = 24 * 3600 * 1000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}", re.ASCII)
#: Commits of one query lie in directories of this many, since listing one is bounded too.
_DIRECTORY: Final = 1000


class CommitError(LedgerError):
    """A commit that cannot be made, or a record of one that makes no sense."""


class CommitConflictError(CommitError):
    """The identity was used before, for other rows."""


@dataclass(frozen=True, slots=True)
class Identity:
    """For whom rows are written: a batch job by its `writeId`, a stream by query and batch."""

    name: str
    batch: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise CommitError(
                f"{self.name!r} cannot name a commit: want up to 200 letters, digits and -_.: , "
                "a letter or digit first"
            )
        if self.batch is not None and self.batch < 0:
            raise CommitError(f"a batch id cannot be {self.batch}")

    def __str__(self) -> str:
        return self.name if self.batch is None else f"{self.name}/{self.batch}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        name, slash, batch = text.partition("/")
        if not slash:
            return cls(name)
        if not batch.isascii() or not batch.isdigit():
            raise CommitError(f"{text!r} names no commit: want a write id or <query id>/<batch id>")
        return cls(name, int(batch))


@dataclass(frozen=True, slots=True)
class CommitPaths:
    """Where commits are: beside the tree of the cluster, never inside it."""

    ledgers_root: str

    @property
    def root(self) -> str:
        return f"{self.ledgers_root}-quire/commits"

    def jobs(self) -> str:
        return f"{self.root}/jobs"

    def query(self, name: str) -> str:
        """Its data says up to which batch the query is committed."""
        return f"{self.root}/queries/{name}"

    def directory(self, identity: Identity) -> str:
        if identity.batch is None:
            return self.jobs()
        return f"{self.query(identity.name)}/{identity.batch // _DIRECTORY:010d}"

    def record(self, identity: Identity) -> str:
        leaf = identity.name if identity.batch is None else f"{identity.batch % _DIRECTORY:04d}"
        return f"{self.directory(identity)}/{leaf}"


@dataclass(frozen=True, slots=True)
class WrittenLedger:
    """A closed ledger and what is in it."""

    ledger_id: int
    rows: RollUp


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one task wrote; its ledgers are in the order of its rows."""

    partition: int
    ledgers: tuple[WrittenLedger, ...]


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The ledgers of a commit, in the order of their rows."""

    identity: Identity
    ledgers: tuple[WrittenLedger, ...]

    @classmethod
    def of(cls, identity: Identity, parts: Iterable[WrittenPart]) -> CommitRecord:
        """In the order of partitions. A partition that comes twice would count rows twice."""
        ordered = sorted(parts, key=lambda part: part.partition)
        seen = [part.partition for part in ordered]
        if len(set(seen)) != len(seen):
            raise CommitError(f"commit {identity}: two attempts of one partition report rows")
        ledgers = tuple(ledger for part in ordered for ledger in part.ledgers)
        if len(ledgers) > LEDGERS_MAX:
            raise CommitError(
                f"commit {identity}: {len(ledgers)} ledgers, at most {LEDGERS_MAX} fit into one "
                "commit: write with fewer partitions (coalesce), or raise maxLedgerBytes"
            )
        return cls(identity, ledgers)

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        return tuple(ledger.ledger_id for ledger in self.ledgers)

    @property
    def rows(self) -> RollUp:
        return total(ledger.rows for ledger in self.ledgers)

    def encode(self) -> bytes:
        value = {
            "identity": str(self.identity),
            "ledgers": [[ledger.ledger_id, *ledger.rows.to_list()] for ledger in self.ledgers],
            "v": VERSION,
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> CommitRecord:
        try:
            value = json.loads(data)
            version = value["v"]
            if version != VERSION:
                raise CommitError(f"{where}: version {version!r} of a commit, known is {VERSION}")
            ledgers = tuple(
                WrittenLedger(int(row[0]), RollUp.from_list(row[1:])) for row in value["ledgers"]
            )
            return cls(Identity.parse(value["identity"]), ledgers)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CommitError(f"{where}: not the record of a commit ({error!r})") from None


@dataclass(frozen=True, slots=True)
class QueryHead:
    """Up to which batch a query has committed; -1 before the first."""

    last_batch: int = -1

    def encode(self) -> bytes:
        return json.dumps({"lastBatch": self.last_batch, "v": VERSION}, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> QueryHead:
        try:
            return cls(int(json.loads(data)["lastBatch"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CommitError(f"{where}: not the head of a query ({error!r})") from None


def staged_metadata(
    identity: Identity, *, partition: int, attempt: int, ttl_ms: int = TTL_MS
) -> dict[str, bytes]:
    """What a ledger of the sink says about itself, down to when it may be swept."""
    return {
        IDENTITY_KEY: str(identity).encode(),
        PARTITION_KEY: str(partition).encode(),
        ATTEMPT_KEY: str(attempt).encode(),
        STATE_KEY: STAGED,
        TTL_KEY: str(ttl_ms).encode(),
    }


def identity_of(custom: Mapping[str, bytes]) -> Identity | None:
    """For whom a sink wrote a ledger; None for everybody else's ledgers, whatever they say."""
    text = custom.get(IDENTITY_KEY)
    if text is None or custom.get(STATE_KEY) != STAGED:
        return None
    try:
        return Identity.parse(text.decode())
    except (CommitError, ValueError):
        return None


def ttl_of(custom: Mapping[str, bytes]) -> int:
    """How long a ledger of the sink is left alone, by the options of the job that wrote it."""
    text = custom.get(TTL_KEY, b"")
    return int(text) if text.isdigit() else TTL_MS


def is_orphan(
    ledger_id: int,
    *,
    age_ms: int,
    record: CommitRecord | None,
    record_age_ms: int,
    ttl_ms: int,
) -> bool:
    """Whether a ledger of the sink may go.

    Its job may still be running while it is young. And one that an overwrite has just dropped from
    the record may still be read by whoever planned before.
    """
    if age_ms < ttl_ms:
        return False
    if record is None:
        return True
    return ledger_id not in record.ledger_ids and record_age_ms >= ttl_ms
