"""The cluster of a chaos run: three ZooKeepers, bookies, two autorecoveries, clients.

Each process is a host of its own in the network. Bookies differ on purpose: one and two ledger
directories, real disks and small ones in memory that can be filled, with and without permission
to return after losing everything.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from tests.chaos.bookie_process import BROKEN
from tests.chaos.network import INSIDE, Network
from tests.chaos.processes import Process
from tests.chaos.zookeeper import ZookeeperServer, wait_quorum

BOOKIE_PORT: Final = 3181
SMALL_DISK_MIB: Final = 160
SESSION_SECONDS: Final = 8.0


class Bookie(Process):
    def __init__(self, name: str, folder: Path, network: Network, number: int, uri: str) -> None:
        super().__init__(name, folder, network)
        place = network.serve(name, BOOKIE_PORT)
        self.bookie_id = place.public
        self.orders = folder / "orders.json"
        self.is_broken = False
        self.disk = folder / "disk"
        self.disk.mkdir(exist_ok=True)
        self.has_small_disk = number % 2 == 0 and _mount_small(self.disk)
        directories = [self.disk / "ledgers"]
        if number in (2, 3):
            directories.append(self.disk / "ledgers-2")
        self.settings: dict[str, object] = {
            "metadataServiceUri": uri,
            "journalDirectories": self.disk / "journal",
            "ledgerDirectories": ",".join(map(str, directories)),
            "bookiePort": place.port,
            "advertisedAddress": network.address(name),
            "allowLoopback": "true",
            # Small files and short intervals: everything that happens to a bookie in a month
            # shall happen within minutes.
            "journalMaxSizeMB": 4,
            "journalMaxBackups": 1,
            "quire_reserveMb": 8,
            "logSizeLimit": 2 << 20,
            "flushInterval": 1500,
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 4,
            "gcWaitTime": 10_000,
            "gcOverreplicatedLedgerWaitTime": 20_000,
            "minorCompactionInterval": 20,
            "majorCompactionInterval": 60,
            "localScrubInterval": 30,
            "diskCheckInterval": 1000,
            "minUsableSizeForHighPriorityWrites": 4 << 20,
            "dataIntegrityChecking": "true",
            "zkTimeout": int(SESSION_SECONDS * 1000),
        }
        if place.host != network.address(name):
            self.settings["listeningInterface"] = "lo"
        if not self.has_small_disk:
            for key in ("diskUsageThreshold", "diskUsageWarnThreshold", "diskUsageLwmThreshold"):
                self.settings[key] = 0.999

    @property
    def directories(self) -> list[Path]:
        """Ledger directories, as configured now."""
        return [Path(name) for name in str(self.settings["ledgerDirectories"]).split(",")]

    @property
    def journal(self) -> Path:
        return Path(str(self.settings["journalDirectories"]))

    def begin(self, **changes: object) -> bool:
        """Start it; `changes` count for this start only. False: it refused, and said why."""
        settings = {**self.settings, **changes}
        conf = self.folder / "bk_server.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        arguments = (str(self.orders), "--conf", str(conf), "--ready-fd", "{ready}")
        environment = self.clock_environment()
        if self.is_broken:
            environment[BROKEN] = "1"
        return self.start(
            self.python("tests.chaos.bookie_process", *arguments), environment=environment
        )

    def order(self, text: str) -> None:
        new = self.orders.with_suffix(".new")
        new.write_text(text)
        new.rename(self.orders)

    def no_orders(self) -> None:
        self.orders.unlink(missing_ok=True)


def _mount_small(folder: Path) -> bool:
    """Only in a mount namespace of ours: elsewhere it would outlive us."""
    if INSIDE not in os.environ:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


class Autorecovery(Process):
    def __init__(self, name: str, folder: Path, network: Network, uri: str) -> None:
        super().__init__(name, folder, network)
        settings = {
            "metadataServiceUri": uri,
            "bookieId": name,
            "zkTimeout": int(SESSION_SECONDS * 1000),
            "openLedgerRereplicationGracePeriod": 4000,
            "rwRereplicateBackoffMs": 500,
            "lockReleaseOfFailedLedgerGracePeriod": 5000,
            "auditorPeriodicBookieCheckInterval": 30,
            "auditorPeriodicCheckInterval": 30,
            "quire_staleRecoverySec": 15,
        }
        self._conf = folder / "autorecovery.conf"
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def begin(self) -> bool:
        arguments = ("autorecovery", "--conf", str(self._conf), "--ready-fd", "{ready}")
        return self.start(self.python("quire", *arguments), environment=self.clock_environment())


class Client(Process):
    """A process of the workload; `plan` says what it does (`workload.py`)."""

    def __init__(self, name: str, folder: Path, network: Network, uri: str, plan: str) -> None:
        super().__init__(name, folder, network)
        self._uri = uri
        self._plan = plan

    def begin(self) -> None:
        # A number per life: every life has a history of its own.
        arguments = (self._uri, self.name, str(self.starts + 1), str(self.folder.parent))
        command = self.python("tests.chaos.workload", *arguments, self._plan)
        self.launch(command, environment=self.clock_environment())


class ChaosCluster:
    def __init__(
        self, folder: Path, network: Network, *, seed: int, bookies: int, plans: dict[str, str]
    ) -> None:
        self.folder = folder
        self.network = network
        self.chance = random.Random(f"cluster {seed}")
        for name in ("zk1", "zk2", "zk3"):
            network.add_host(name)
        self.zookeepers = [
            ZookeeperServer(f"zk{n}", folder / f"zk{n}", network, n) for n in (1, 2, 3)
        ]
        servers = ";".join(one.place.public for one in self.zookeepers)
        self.uri = f"zk://{servers}/ledgers"
        self.bookies: list[Bookie] = []
        for number in range(1, bookies + 1):
            self._add_bookie(number)
        self.autorecoveries = []
        for name in ("ar1", "ar2"):
            network.add_host(name)
            self.autorecoveries.append(Autorecovery(name, _made(folder / name), network, self.uri))
        self.clients = []
        for name, plan in plans.items():
            network.add_host(name)
            self.clients.append(Client(name, folder / name, network, self.uri, plan))

    def _add_bookie(self, number: int) -> Bookie:
        name = f"b{number}"
        self.network.add_host(name)
        bookie = Bookie(name, _made(self.folder / name), self.network, number, self.uri)
        self.bookies.append(bookie)
        return bookie

    @property
    def processes(self) -> list[Process]:
        return [*self.zookeepers, *self.bookies, *self.autorecoveries, *self.clients]

    def start(self) -> None:
        for server in self.zookeepers:
            server.configure(self.zookeepers)
        for server in self.zookeepers:
            server.begin()
        wait_quorum(self.zookeepers)
        trio.run(self._make)
        with ThreadPoolExecutor(len(self.bookies)) as threads:
            ready = list(threads.map(lambda bookie: bookie.begin(), self.bookies))
        assert all(ready), "a bookie did not start: see its log"
        for one in self.autorecoveries:
            assert one.begin(), f"{one.name} did not start: see its log"

    async def _make(self) -> None:
        uri = parse_metadata_uri(self.uri)
        async with open_store(uri) as store:
            await init_new_cluster(store, uri, chance=self.chance)

    def leader(self) -> ZookeeperServer:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            for server in self.zookeepers:
                if server.mode() == "leader":
                    return server
            time.sleep(0.2)
        raise RuntimeError("ZooKeeper has no leader for a minute")

    def stop(self) -> None:
        """End everything, and leave no mounts; folders stay."""
        for process in [*self.clients, *self.autorecoveries, *self.bookies, *self.zookeepers]:
            process.kill()

    def remove_data(self) -> None:
        """After a good run: histories, logs and figures stay, disks do not."""
        for bookie in self.bookies:
            if bookie.has_small_disk:
                subprocess.run(["umount", "-l", str(bookie.disk)], check=False)
            with suppress(OSError):
                shutil.rmtree(bookie.disk)
        for server in self.zookeepers:
            shutil.rmtree(server.folder / "data", ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
