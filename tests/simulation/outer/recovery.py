"""A process of autorecovery in the outer ring: the real auditor and the real worker.

Like bookies they die and are started again. What the auditor waits for in weeks it waits for in
seconds here, so that everything that can be restored has been when a run asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from autorecovery.config import AuditorConfig, RecoveryConfig, WorkerConfig
from autorecovery.context import RecoverySettings
from autorecovery.daemon import running_autorecovery
from autorecovery.settings import ProcessSettings
from ledger_client.core.placement import DefaultPolicy
from metadata.uri import parse_metadata_uri
from runtime.shared_options import MetadataConfig
from wire.errors import LedgerError
from wire.types import BookieId

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld

PAUSE_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 15


def recovery_settings(world: OuterWorld, name: str) -> ProcessSettings:
    """`name` is the connection to the metadata store."""
    plan = world.plan
    return ProcessSettings(
        process=RecoveryConfig(bookie_id=name),
        recovery=RecoverySettings(
            auditor=AuditorConfig(
                lost_bookie_delay_seconds=plan.loss_delay,
                ledger_check_seconds=CHECK_SECONDS,
                replicas_check_seconds=CHECK_SECONDS if plan.lists else 0,
                stale_recovery_seconds=5,
            ),
            worker=WorkerConfig(open_grace_ms=round(plan.grace * 1000), failed_lock_ms=8000),
        ),
        metadata=MetadataConfig(),
        metadata_uri=parse_metadata_uri(f"zk://{name}/ledgers"),
        latency_window_seconds=60.0,
    )


class RecoveryProcess:
    def __init__(self, world: OuterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 1
        self.is_dead = False
        self._scope = trio.CancelScope()
        self._revived = trio.Event()

    async def live(self) -> None:
        """One life after the other, for as long as the world stands."""
        while True:
            with self._scope:
                await self._work()
            await self._revived.wait()

    async def _work(self) -> None:
        world = self.world
        while True:
            try:
                async with running_autorecovery(
                    recovery_settings(world, self.name),
                    bookie_id=BookieId(self.name),
                    network=world.network.host(self.name),
                    policy=DefaultPolicy(),
                ):
                    await trio.sleep_forever()
            except LedgerError as error:  # the store was away
                world.tell(f"{self.name}: {error}")
                await trio.sleep(PAUSE_SECONDS)

    def die(self) -> None:
        if self.is_dead:
            return
        self.world.tell(f"{self.name} dies")
        self.is_dead = True
        self._revived = trio.Event()
        self.world.network.crash(self.name, silent=self.world.plan.silent)
        self._scope.cancel()

    def revive(self) -> None:
        if self.is_dead:
            self.world.tell(f"{self.name} starts again")
            self.is_dead = False
            self.life += 1
            self._scope = trio.CancelScope()
            self._revived.set()
