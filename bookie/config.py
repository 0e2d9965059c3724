"""Options of a bookie towards its clients, by the names that BookKeeper's operators know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.bookie import BookieOptions
from runtime.config import option
from runtime.shared_options import PORT_MAX

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """Who the bookie is, where it listens, what it allows clients."""

    port: int = option(
        "bookiePort",
        3181,
        minimum=0,
        maximum=PORT_MAX,
        doc="The port that clients connect to; 0 picks a free one, which only suits a bookie with "
        "a `bookieId`.",
    )
    bookie_id: str | None = option(
        "bookieId",
        None,
        doc="The name under which ledgers know this bookie. Unset: its address and port, as seen "
        "from outside.",
    )
    advertised_address: str | None = option(
        "advertisedAddress",
        None,
        doc="The host name or address that clients are told to connect to.",
    )
    interface: str | None = option(
        "listeningInterface",
        None,
        doc="Listen on this network interface only, for example `eth0`. Unset: on all of them.",
    )
    allow_loopback: bool = option(
        "allowLoopback",
        False,
        doc="Let a bookie be known by a loopback address. Only for a cluster on one machine.",
    )
    use_host_name: bool = option(
        "useHostNameAsBookieID",
        False,
        doc="Be known by the canonical host name instead of the address.",
    )
    use_short_host_name: bool = option(
        "useShortHostName", False, doc="With `useHostNameAsBookieID`: leave the domain out."
    )
    frame_bytes_max: int = option(
        "nettyMaxFrameSizeBytes",
        5 * _MIB,
        minimum=64 * 1024,
        maximum=1 << 30,
        doc="The largest request or answer, its four length bytes included. A client that sends "
        "more is disconnected; both ends need the same limit.",
    )
    batch_read_bytes_max: int = option(
        "maxBatchReadSize", 5 * _MIB, minimum=1, doc="The largest answer to a batch read."
    )
    add_patience_ms: int = option(
        "dbStorage_maxThrottleTimeMs",
        3000,
        minimum=0,
        maximum=600_000,
        doc="How long adds may wait for room in the write cache before they are refused.",
        why="Clients give up after 5 s; an answer before that lets them choose another bookie.",
    )
    send_seconds_max: int = option(
        "quire_sendTimeoutSec",
        30,
        minimum=1,
        maximum=3600,
        doc="Disconnect a client that takes none of its answers for so long.",
    )
    frame_seconds_max: int = option(
        "quire_frameTimeoutSec",
        120,
        minimum=1,
        maximum=3600,
        doc="Disconnect a client that began a request and has not finished it after so long.",
    )
    address_connections_max: int = option(
        "quire_connectionsPerAddressMax",
        2000,
        minimum=1,
        maximum=10_000,
        doc="Connections that clients of one address may have; more are turned away. All together "
        "may have 10,000.",
    )
    keep_idle_seconds: int = option(
        "serverTcpKeepIdle",
        60,
        minimum=1,
        maximum=32767,
        doc="Ask a silent client's machine whether it is still there after so many seconds.",
        why="Apache leaves it to the kernel, which waits two hours.",
    )
    keep_interval_seconds: int = option(
        "serverTcpKeepIntvl",
        15,
        minimum=1,
        maximum=32767,
        doc="Ask again after so many seconds without an answer.",
        why="Apache leaves it to the kernel, which waits 75 seconds.",
    )
    keep_probes: int = option(
        "serverTcpKeepCnt",
        4,
        minimum=1,
        maximum=127,
        doc="End the connection after so many questions without an answer.",
        why="Apache leaves it to the kernel, which asks nine times.",
    )
    read_only: bool = option(
        "forceReadOnlyBookie", False, doc="Serve reads only, and register so, from the start."
    )
    read_only_allowed: bool = option(
        "readOnlyModeEnabled",
        True,
        doc="Serve reads when the disks are full. False: stop the bookie instead.",
    )
    damaged_runs_max: int = option(
        "quire_damagedRunsMax",
        100,
        minimum=0,
        doc="Take no more entries once so many pieces of entry logs were found damaged since the "
        "start; 0 is never.",
    )
    persist_status: bool = option(
        "persistBookieStatusEnabled",
        False,
        doc="Remember over a restart that an operator made the bookie read-only.",
    )

    def options(self) -> BookieOptions:
        return BookieOptions(
            frame_bytes_max=self.frame_bytes_max,
            batch_read_bytes_max=min(self.batch_read_bytes_max, self.frame_bytes_max),
            add_patience_seconds=self.add_patience_ms / 1000,
            send_seconds_max=float(self.send_seconds_max),
            frame_seconds_max=float(self.frame_seconds_max),
            address_connections_max=self.address_connections_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionConfig:
    """What may run in the bookie's process beside it. `quire bookie` adds it."""

    autorecovery: bool = option(
        "autoRecoveryDaemonEnabled", False, doc="Run autorecovery in the bookie's process."
    )
    integrity_check: bool = option(
        "dataIntegrityChecking",
        False,
        doc="After a loss, compare every ledger with its other replicas and fetch what is missing.",
    )
