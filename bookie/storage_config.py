"""Options of a bookie's storage: directories, journal, caches, disk space, garbage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.collector import CollectorOptions
from bookie.core.compaction import Rules
from bookie.core.disk_space import Thresholds
from bookie.storage.disk_watch import DiskOptions
from bookie.storage.engine_values import EngineOptions
from bookie.storage.garbage_values import GarbageOptions
from bookie.storage.index import IndexOptions
from bookie.storage.journal_options import JournalOptions
from bookie.storage.start import StoreOptions
from runtime.config import ConfigError, option

_MIB: Final = 1 << 20
_FIXED_CACHES = (
    "Small caches suffice, because entries are written in runs: see docs/performance.md."
)
_TEMPORARY = "A directory that the next boot empties is no place for a ledger; it must be named."


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Directories, journal, caches."""

    journal_directories: tuple[str, ...] = option(
        "journalDirectories",
        (),
        doc="Where entries become durable, one path or several. Best a disk of their own.",
        why=_TEMPORARY,
    )
    journal_directory: str | None = option(
        "journalDirectory",
        None,
        doc="The same for one path, as older files have it.",
        why=_TEMPORARY,
    )
    ledger_directories: tuple[str, ...] = option(
        "ledgerDirectories",
        (),
        doc="Where entries stay, one path or several; the index lies beside them.",
        why=_TEMPORARY,
    )
    allow_expansion: bool = option(
        "allowStorageExpansion",
        False,
        doc="Let empty directories join those that the bookie has.",
    )
    journal_file_mib: int = option(
        "journalMaxSizeMB",
        256,
        minimum=1,
        maximum=2048,
        doc="Size of a journal file. Files are written once and then used again.",
        why="Journals are trimmed at every checkpoint, so large files only take room.",
    )
    journal_spare_files: int = option(
        "journalMaxBackups",
        3,
        minimum=1,
        maximum=100,
        doc="Journal files kept for using them again.",
        why="They are kept for speed, not as a backup: nothing in them is needed any more.",
    )
    journal_sync: bool = option(
        "journalSyncData",
        True,
        doc="Wait for the disk before an entry is acknowledged. False: a power loss takes "
        "acknowledged entries. A bookie that was not stopped cleanly and finds the machine "
        "restarted then has every ledger in limbo, and starts with dataIntegrityChecking=true "
        "only.",
    )
    journal_write: bool = option(
        "journalWriteData",
        True,
        choices=(True,),
        doc="Not offered: a bookie without a journal loses acknowledged entries with the process.",
    )
    group_wait_ms: int = option(
        "journalMaxGroupWaitMSec",
        0,
        minimum=0,
        maximum=1000,
        doc="Wait this long for company before each write of the journal. Only rotating disks "
        "gain by it.",
        why="What arrives during one write is the next one's company; waiting tripled latencies.",
    )
    journal_pending_mib: int = option(
        "journalMaxMemorySizeMb",
        64,
        minimum=1,
        doc="What may wait for the journal before connections that add are not read.",
        why="Apache's is a share of the Java heap.",
    )
    write_cache_mib: int = option(
        "dbStorage_writeCacheMaxSizeMb",
        96,
        minimum=8,
        doc="Entries that are in the journal and not in a log yet.",
        why=_FIXED_CACHES,
    )
    read_cache_mib: int = option(
        "dbStorage_readAheadCacheMaxSizeMb",
        48,
        minimum=4,
        doc="Blocks of entry logs for sequential readers.",
        why=_FIXED_CACHES,
    )
    ledgers_in_memory: int = option(
        "quire_ledgersInMemory",
        100_000,
        minimum=1000,
        doc="Ledgers whose state stays in memory, half a KiB each; those of others is looked up "
        "when they are used.",
    )
    index_cache_bytes: int = option(
        "dbStorage_rocksDB_blockCacheSize",
        16 * _MIB,
        minimum=_MIB,
        doc="Blocks of the index, in each ledger directory.",
        why=_FIXED_CACHES,
    )
    flush_interval_ms: int = option(
        "flushInterval",
        10000,
        minimum=100,
        doc="At the latest after this time entries go from the write cache to an entry log.",
    )
    log_bytes: int = option(
        "logSizeLimit",
        1 << 30,
        minimum=_MIB,
        maximum=(1 << 32) - 1,
        doc="An entry log of this size is closed and the next one begun.",
    )
    log_cached_mib: int = option(
        "quire_entryLogPageCacheMb",
        512,
        minimum=1,
        doc="How much of the newest entry logs of each ledger directory stays in the operating "
        "system's page cache; from logSizeLimit on, as much as the system sees fit.",
    )
    readers: int = option(
        "quire_readerThreads",
        2,
        minimum=1,
        maximum=64,
        doc="Threads that wait for the disk on behalf of readers.",
    )
    accept_loss: bool = option(
        "skipReplayJournalInvalidRecord",
        False,
        doc="Start although blocks of the journal are damaged. Every ledger then counts as perhaps "
        "incomplete until its entries have been checked.",
    )

    def __post_init__(self) -> None:
        if self.journal_directory is not None and self.journal_directories:
            raise ConfigError("journalDirectory and journalDirectories are both set; keep one")
        if not self.journals:
            raise ConfigError("journalDirectories is not set; name at least one directory")
        if not self.ledger_directories:
            raise ConfigError("ledgerDirectories is not set; name at least one directory")

    @property
    def journals(self) -> tuple[str, ...]:
        if self.journal_directory is not None:
            return (self.journal_directory,)
        return self.journal_directories

    def index_options(self) -> IndexOptions:
        return IndexOptions(block_cache_bytes=self.index_cache_bytes)

    def engine_options(self) -> EngineOptions:
        write_cache_bytes = self.write_cache_mib * _MIB
        return EngineOptions(
            generation_bytes=write_cache_bytes // 8,
            write_cache_bytes=write_cache_bytes,
            flush_interval_seconds=self.flush_interval_ms / 1000,
            read_cache_bytes=self.read_cache_mib * _MIB,
            log_bytes=self.log_bytes,
            log_cached_bytes=self.log_cached_mib * _MIB,
            ledgers_in_memory=self.ledgers_in_memory,
            journal_pending_bytes=self.journal_pending_mib * _MIB,
            reader_count=self.readers,
        )

    def journal_options(self) -> JournalOptions:
        return JournalOptions(
            file_bytes=self.journal_file_mib * _MIB,
            spare_files_max=self.journal_spare_files,
            sync_data=self.journal_sync,
            group_wait_seconds=self.group_wait_ms / 1000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepConfig:
    """Disk space, garbage collection, compaction."""

    disk_full: float = option(
        "diskUsageThreshold",
        0.95,
        minimum=0.01,
        maximum=1,
        doc="Above this share of a disk the bookie takes no entries.",
    )
    disk_warn: float = option(
        "diskUsageWarnThreshold",
        0.90,
        minimum=0.01,
        maximum=1,
        doc="Above this share garbage is collected at once and logs are compacted eagerly.",
    )
    disk_low: float = option(
        "diskUsageLwmThreshold",
        0.85,
        minimum=0.01,
        maximum=1,
        doc="A bookie that stopped taking entries begins again below this share.",
        why="With one mark for both a full bookie would change its mind at every check.",
    )
    disk_check_ms: int = option(
        "diskCheckInterval", 10000, minimum=100, doc="How often the disks are looked at."
    )
    priority_bytes: int = option(
        "minUsableSizeForHighPriorityWrites",
        1 << 30,
        minimum=0,
        doc="Recovery may still add entries while this much is free on every disk.",
    )
    reserve_mib: int = option(
        "quire_reserveMb",
        1280,
        minimum=0,
        doc="Room kept in each ledger directory, to be given up when a full disk keeps the bookie "
        "from freeing space.",
    )
    gc_interval_ms: int = option(
        "gcWaitTime", 600_000, minimum=1000, doc="Between two looks for deleted ledgers."
    )
    over_replicated_ms: int = option(
        "gcOverreplicatedLedgerWaitTime",
        86_400_000,
        minimum=0,
        doc="Between two looks for ledgers that belong to other bookies now; 0 is never. The first "
        "is a tenth to the whole of it after a start.",
    )
    gc_rate: int = option(
        "gcMetadataOpRateLimit",
        1000,
        minimum=1,
        doc="Requests to the metadata service per second while looking.",
    )
    minor_threshold: float = option(
        "minorCompactionThreshold",
        0.2,
        doc="Hourly, logs are rewritten of which a smaller share lives; 0 is never.",
    )
    minor_seconds: int = option(
        "minorCompactionInterval", 3600, doc="Seconds between such rounds; 0 is never."
    )
    major_threshold: float = option(
        "majorCompactionThreshold",
        0.5,
        doc="Daily, logs are rewritten of which a smaller share lives; 0 is never.",
        why="At 0.8 four bytes are copied to gain one; a disk that fills up compacts eagerly.",
    )
    major_seconds: int = option(
        "majorCompactionInterval", 86400, doc="Seconds between such rounds; 0 is never."
    )
    compaction_rate: int = option(
        "compactionRateByBytes",
        32 * _MIB,
        minimum=0,
        doc="Bytes per second that compaction may read and write; 0 is without limit.",
        why="Counts what is read, too, and leaves most of any disk to clients.",
    )
    journal_p99_ms: int = option(
        "quire_compactionJournalP99Ms",
        50,
        minimum=0,
        doc="Compaction waits while more than one journal write in a hundred takes longer than "
        "this; 0 is never. A disk that is getting full is compacted all the same.",
    )
    scrub_seconds: int = option(
        "localScrubInterval",
        86400,
        minimum=0,
        doc="Between checks of one entry log's checksums; 0 is never.",
        why="A damaged replica that nobody reads is found while there are others.",
    )

    def garbage_options(self) -> GarbageOptions:
        return GarbageOptions(
            rules=Rules(
                minor_threshold=self.minor_threshold,
                minor_seconds=self.minor_seconds,
                major_threshold=self.major_threshold,
                major_seconds=self.major_seconds,
            ),
            compaction_bytes_per_second=self.compaction_rate,
            scrub_seconds=self.scrub_seconds,
            journal_seconds_max=self.journal_p99_ms / 1000,
        )

    def disk_options(self, *, read_only_when_full: bool = True) -> DiskOptions:
        return DiskOptions(
            thresholds=Thresholds(
                low_water=self.disk_low,
                warn=self.disk_warn,
                full=self.disk_full,
                priority_bytes=self.priority_bytes,
            ),
            check_seconds=self.disk_check_ms / 1000,
            reserve_bytes=self.reserve_mib * _MIB,
            read_only_when_full=read_only_when_full,
        )

    def collector_options(self) -> CollectorOptions:
        return CollectorOptions(
            interval_seconds=self.gc_interval_ms / 1000,
            over_replicated_seconds=self.over_replicated_ms / 1000,
            operations_per_second=self.gc_rate,
        )


def store_options(storage: StorageConfig, upkeep: UpkeepConfig) -> StoreOptions:
    return StoreOptions(
        engine=storage.engine_options(),
        journal=storage.journal_options(),
        garbage=upkeep.garbage_options(),
        disks=upkeep.disk_options(),
        allow_expansion=storage.allow_expansion,
        accept_loss=storage.accept_loss,
    )
