"""Options of autorecovery, by the names that BookKeeper's operators know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runtime.config import ConfigError, option

_WEEK_SECONDS: Final = 604_800
_DAY_SECONDS: Final = 86_400
_YEAR_SECONDS: Final = 366 * _DAY_SECONDS
_DAY_MS: Final = _DAY_SECONDS * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """Who an autorecovery process is, and which halves of it run."""

    bookie_id: str | None = option(
        "bookieId",
        None,
        doc="The name under which this process stands for auditor. Unset: the host's address and "
        "`bookiePort`, as a bookie there would be called.",
    )
    advertised_address: str | None = option(
        "advertisedAddress", None, doc="The host in that name, if it is not this one's own."
    )
    port: int = option(
        "bookiePort",
        3181,
        minimum=0,
        maximum=65535,
        doc="The port in that name. Nothing is listened to there.",
    )
    use_host_name: bool = option(
        "useHostNameAsBookieID", False, doc="Put the host's name there instead of its address."
    )
    runs_auditor: bool = option(
        "quire_auditorEnabled", True, doc="Stand for auditor. False: only restore copies."
    )
    runs_worker: bool = option(
        "quire_replicationWorkerEnabled",
        True,
        doc="Restore copies. False: only stand for auditor.",
    )
    niceness: int = option(
        "quire_autorecoveryNiceness",
        10,
        minimum=0,
        maximum=19,
        doc="By how much the processors of this machine prefer everything else, as with `nice`, "
        "for an autorecovery process of its own; 0: not at all.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorConfig:
    """What is looked for, how often, and how hard."""

    lost_bookie_delay_seconds: int = option(
        "lostBookieRecoveryDelay",
        0,
        minimum=0,
        maximum=2**31 - 1,
        doc="How long a bookie may be away before its ledgers are marked, in seconds. The value "
        "counts only until the cluster has one of its own in the metadata, which "
        "`lostbookierecoverydelay` changes. If several bookies are away, nobody waits.",
    )
    bookie_check_seconds: int = option(
        "auditorPeriodicBookieCheckInterval",
        _DAY_SECONDS,
        minimum=0,
        maximum=_YEAR_SECONDS,
        doc="Seconds between checks of all ledgers' metadata for bookies that are gone; 0: never.",
    )
    ledger_check_seconds: int = option(
        "auditorPeriodicCheckInterval",
        _WEEK_SECONDS,
        minimum=0,
        maximum=_YEAR_SECONDS,
        doc="Seconds between full checks, which read entries of every replica of every ledger and "
        "verify their digests; 0: never.",
    )
    placement_check_seconds: int = option(
        "auditorPeriodicPlacementPolicyCheckInterval",
        0,
        minimum=0,
        maximum=_YEAR_SECONDS,
        doc="Seconds between checks of where the replicas of closed ledgers are; 0: never.",
    )
    replicas_check_seconds: int = option(
        "auditorReplicasCheckInterval",
        0,
        minimum=0,
        maximum=_YEAR_SECONDS,
        doc="Seconds between checks that ask each bookie which entries it has, and mark ledgers "
        "that lack some; 0: never.",
    )
    verified_percent: int = option(
        "auditorLedgerVerificationPercentage",
        100,
        minimum=0,
        maximum=100,
        doc="The share of the entries between the first and the last of a fragment that a full "
        "check reads.",
        why="A copy that is missing in the middle is as lost as one at the end; it is common "
        "where the ack quorum is smaller than the write quorum.",
    )
    ledgers_at_once: int = option(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        500,
        minimum=1,
        maximum=10_000,
        doc="How many records of ledgers are read at the same time.",
    )
    repairs_placement: bool = option(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        False,
        doc="Mark ledgers that the placement check finds in the wrong places, for workers to move.",
    )
    overdue_seconds: int = option(
        "underreplicatedLedgerRecoveryGracePeriod",
        0,
        minimum=0,
        maximum=_YEAR_SECONDS,
        doc="Marks older than this count as overdue in the metrics, in seconds; 0: not counted.",
    )
    stores_mark_time: bool = option(
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime",
        True,
        doc="Write into each mark when it was made.",
    )
    stale_recovery_seconds: int = option(
        "quire_staleRecoverySec",
        3600,
        minimum=0,
        maximum=_YEAR_SECONDS,
        doc="Finish the recovery of ledgers that were in recovery for so long, because whoever "
        "began it must have died; 0: never.",
    )
    check_bytes_per_second: int = option(
        "quire_checkBytesPerSec",
        50_000_000,
        minimum=0,
        doc="How much a full check reads per second at most, of all bookies together; 0: no limit.",
    )
    ledgers_per_second: int = option(
        "quire_auditLedgersPerSec",
        0,
        minimum=0,
        doc="How many ledgers' records an audit reads per second at most; 0: no limit.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How copies are restored."""

    entries_per_batch: int = option(
        "rereplicationEntryBatchSize",
        10,
        minimum=1,
        doc="Apache's batch of entries. Ours are cut by bytes; this is the least number of entries "
        "that a batch may have.",
    )
    open_grace_ms: int = option(
        "openLedgerRereplicationGracePeriod",
        30_000,
        minimum=0,
        maximum=_DAY_MS,
        doc="How long the writer of an open ledger may take to replace a lost bookie itself before "
        "it is fenced, in ms.",
    )
    failed_lock_ms: int = option(
        "lockReleaseOfFailedLedgerGracePeriod",
        300_000,
        minimum=0,
        maximum=_DAY_MS,
        doc="The longest that a ledger which could not be repaired stays locked, in ms.",
    )
    backoff_ms: int = option(
        "rwRereplicateBackoffMs",
        5000,
        minimum=0,
        maximum=_DAY_MS,
        doc="The pause after a repair that failed, in ms.",
    )
    bytes_per_second: int = option(
        "replicationRateByBytes",
        -1,
        minimum=-1,
        doc="How many bytes per second are copied at most; -1: as fast as the bookies take them.",
    )
    marks_per_second: float = option(
        "zkReplicationTaskRateLimit",
        0.0,
        minimum=0,
        doc="How many marks per second are taken at most; 0: no limit.",
    )
    probes_at_once: int = option(
        "inFlightReadEntryNumInLedgerChecker",
        -1,
        minimum=-1,
        doc="How many reads a check of fragments has on their way at most; -1: as we see fit.",
    )

    def __post_init__(self) -> None:
        if self.bytes_per_second == 0:
            raise ConfigError(
                "replicationRateByBytes is 0: nothing would be copied; -1 is no limit"
            )
