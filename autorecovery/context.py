"""What the auditor, the worker and the operators' functions of one process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.parking import Parking
from ledger_client.environment import Environment
from ledger_client.security import Security
from metadata.cluster import Cluster
from metadata.cookies import Cookies
from metadata.discovery import BookieWatcher
from metadata.store import MetadataStore
from metadata.underreplication import UnderReplication
from runtime.metrics import Registry
from wire.types import BookieId


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    auditor: AuditorConfig
    worker: WorkerConfig
    #: Whom to trust and who we are, towards bookies.
    security: Security = field(default_factory=Security)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """One connection to the metadata and one to the bookies, for everything that heals.

    Intervals are measured by `trio.current_time()`; `now_ms` is only for times that others read.
    """

    store: MetadataStore
    cluster: Cluster
    #: Under which we stand for auditor.
    bookie_id: BookieId
    #: Ledgers' records, connections, placement, chance, and a nursery that lives as long as this.
    client: Environment
    #: Who is alive; `client.bookies()` is its present snapshot.
    watcher: BookieWatcher
    cookies: Cookies
    marks: UnderReplication
    #: Why a marked ledger cannot be repaired, for all processes to see.
    parking: Parking
    settings: RecoverySettings
    #: Auditor and worker register what they count.
    registry: Registry
    now_ms: Callable[[], int]
