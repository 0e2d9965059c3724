"""What operators and auditors tell each other through the tree: pause, delay, last checks.

| Node | Says |
|---|---|
| `disable` | its existence pauses auditor and workers, for a rolling restart |
| `lostBookieRecoveryDelay` | seconds to wait before a single lost bookie is acted on |
| `...ctime` | when a periodic check last completed, so that the next auditor keeps the rhythm |
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio

from metadata.model import InvalidMetadataError
from metadata.paths import ClusterPaths
from metadata.records import decode_check_time, decode_delay, encode_check_time, encode_delay
from metadata.store import (
    ANY_VERSION,
    ConnectionLostError,
    MetadataError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    StoreUnavailableError,
    Watch,
)
from metadata.tree import create_below
from metadata.update import PATIENT, Backoff, persistently

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.2
#: A watch that the network swallowed is made up for by a read this often.
_RECHECK_SECONDS: Final = 60.0


class AlreadyDisabledError(MetadataError):
    """Re-replication is disabled already."""


class AlreadyEnabledError(MetadataError):
    """Re-replication is enabled already."""


class PeriodicCheck(Enum):
    ALL_LEDGERS = "all ledgers"
    PLACEMENT_POLICY = "placement policy"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class Delay:
    """The delay, and which write of it this is: writing the same value again means something."""

    seconds: int
    written: tuple[int, int]  # when the node was made, and its version

    def asks_for_audit(self, previous: Delay) -> bool:
        """Whether this write means "audit now": no delay any more, or the same value again."""
        return self.written != previous.written and self.seconds in (0, previous.seconds)


class RereplicationSettings:
    def __init__(
        self,
        store: MetadataStore,
        root: str,
        *,
        chance: random.Random,
        backoff: Backoff = PATIENT,
    ) -> None:
        self._store = store
        self._paths = ClusterPaths(root)
        self._chance = chance
        self._backoff = backoff

    # ------------------------------------------------------------------ pause

    async def disable(self) -> None:
        """Pause auditor and workers. AlreadyDisabledError is a warning rather than a failure."""
        path = self._paths.rereplication_disabled
        await self._once(
            lambda: create_below(self._store, self._paths.root, path),
            NodeExistsError,
            AlreadyDisabledError("re-replication is disabled already"),
        )

    async def enable(self) -> None:
        """Let auditor and workers go on; what was lost meanwhile is found at once."""
        path = self._paths.rereplication_disabled
        await self._once(
            lambda: self._store.delete(path, version=ANY_VERSION),
            NoNodeError,
            AlreadyEnabledError("re-replication is enabled already"),
        )

    async def _once(
        self,
        change: Callable[[], Awaitable[object]],
        done: type[MetadataError],
        already: MetadataError,
    ) -> None:
        """Make a change that shows by itself. Found done is ours if an answer was lost."""
        is_unsure = False

        async def attempt() -> None:
            nonlocal is_unsure
            try:
                await change()
            except ConnectionLostError:
                is_unsure = True
                raise
            except done:
                if not is_unsure:
                    raise already from None

        await persistently(attempt, chance=self._chance, backoff=self._backoff)

    async def is_enabled(self) -> bool:
        return await self._store.exists(self._paths.rereplication_disabled) is None

    async def wait_enabled(self) -> None:
        """Return at once unless paused, else when the pause ends. Outlasts a store that is away."""
        path = self._paths.rereplication_disabled
        while True:
            try:
                # Asked before every repair: a watch that never fires would be left each time.
                if await self.is_enabled():
                    return
                stat, watch = await self._store.exists_and_watch(path)
                while stat is not None and not await self._fires(watch):
                    if await self.is_enabled():
                        return
            except StoreUnavailableError:
                await trio.sleep(_PAUSE_SECONDS)

    async def _fires(self, watch: Watch) -> bool:
        with trio.move_on_after(_RECHECK_SECONDS):
            await watch.wait()
            return True
        return False

    # ------------------------------------------------------------------ delay

    async def delay(self) -> Delay | None:
        """None if nobody has ever set one."""
        path = self._paths.lost_bookie_recovery_delay
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None
        written = (node.stat.created_ms, node.stat.version)
        return Delay(decode_delay(node.data, path=path), written)

    async def ensure_delay(self, seconds: int) -> Delay:
        """The delay of the cluster; `seconds`, from the configuration, if there is none yet."""

        async def attempt() -> Delay:
            found = await self.delay()
            while found is None:
                with suppress(NodeExistsError):
                    await self._create_delay(seconds)
                found = await self.delay()
            return found

        return await persistently(attempt, chance=self._chance, backoff=self._backoff)

    async def set_delay(self, seconds: int) -> None:
        """Write the delay, whatever it was. The same value again asks the auditor to audit now."""
        path = self._paths.lost_bookie_recovery_delay
        await self._put(path, encode_delay(seconds), open_acl=True)

    async def trigger_audit(self) -> None:
        found = await self.delay()
        await self.set_delay(found.seconds if found is not None else 0)

    async def wait_delay_written(self, seen: Delay) -> Delay:
        """The next write after `seen`, by version: also one that did not change the value."""
        path = self._paths.lost_bookie_recovery_delay
        while True:
            try:
                # Not `get`: that would not tell of a node that is made again.
                _, watch = await self._store.exists_and_watch(path)
                while True:
                    found = await self._readable_delay()
                    if found is not None and found.written != seen.written:
                        return found
                    if await self._fires(watch):
                        break
            except StoreUnavailableError:
                await trio.sleep(_PAUSE_SECONDS)

    async def _readable_delay(self) -> Delay | None:
        try:
            return await self.delay()
        except InvalidMetadataError as error:
            _log.warning("going on with the delay as it was: %s", error)
            return None

    async def _create_delay(self, seconds: int) -> None:
        await create_below(
            self._store,
            self._paths.root,
            self._paths.lost_bookie_recovery_delay,
            encode_delay(seconds),
            open_acl=True,
        )

    # ------------------------------------------------------------------ periodic checks

    async def last_check_ms(self, check: PeriodicCheck) -> int | None:
        """When it last completed, by the auditor's clock then; None if never."""
        path = self._check_path(check)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None
        return decode_check_time(node.data, path=path)

    async def set_last_check_ms(self, check: PeriodicCheck, time_ms: int) -> None:
        await self._put(self._check_path(check), encode_check_time(time_ms))

    def _check_path(self, check: PeriodicCheck) -> str:
        match check:
            case PeriodicCheck.ALL_LEDGERS:
                return self._paths.check_all_ledgers_ctime
            case PeriodicCheck.PLACEMENT_POLICY:
                return self._paths.placement_policy_check_ctime
            case PeriodicCheck.REPLICAS:
                return self._paths.replicas_check_ctime

    async def _put(self, path: str, data: bytes, *, open_acl: bool = False) -> None:
        """Write unconditionally, and make the node if there is none."""

        async def attempt() -> None:
            try:
                await self._store.set(path, data, version=ANY_VERSION)
            except NoNodeError:
                try:
                    await create_below(self._store, self._paths.root, path, data, open_acl=open_acl)
                except NodeExistsError:
                    await self._store.set(path, data, version=ANY_VERSION)

        await persistently(attempt, chance=self._chance, backoff=self._backoff)
