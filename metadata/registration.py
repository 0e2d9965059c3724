"""A bookie announces itself: an ephemeral node in the list of its mode, for as long as it lives.

There are two lists, writable and read-only. A change of mode enters the new list before it leaves
the old one, so that nobody ever sees the bookie in neither and takes it for lost.

While the connection is down nothing happens: the node stays as long as the session does, and the
bookie goes on serving. When the session has expired the node is gone; `keep` then registers again,
in the mode the bookie has by that time, without a restart.
"""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from enum import Enum
from typing import Final

import trio

from metadata.model import check_bookie_id
from metadata.paths import ClusterPaths
from metadata.service_info import BookieServiceInfo, encode_service_info
from metadata.store import (
    ANY_VERSION,
    ConnectionLostError,
    MetadataError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SessionId,
    StoreUnavailableError,
)
from metadata.tree import create_below
from metadata.update import PATIENT, Backoff, persistently
from wire.types import BookieId

_log = logging.getLogger(__name__)

#: How long to wait for the node of an earlier session, by default the usual session timeout.
OWNER_SECONDS: Final = 10.0


class BookieIdInUseError(MetadataError):
    """Another live process has registered this bookie id."""


class BookieMode(Enum):
    WRITABLE = "writable"
    READ_ONLY = "read-only"


class Registration:
    """One bookie's place in the lists.

    `register` at start, `switch` on a change of mode, `keep` in the bookie's nursery from then
    on. Closing the store ends the session and takes the node away.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: BookieId,
        info: BookieServiceInfo,
        *,
        chance: random.Random,
        owner_seconds: float = OWNER_SECONDS,
        backoff: Backoff = PATIENT,
    ) -> None:
        self._store = store
        self._paths = ClusterPaths(root)
        self._bookie_id = check_bookie_id(bookie_id)
        self._payload = encode_service_info(info)
        self._chance = chance
        self._owner_seconds = owner_seconds
        self._backoff = backoff
        self._lock = trio.Lock()  # one change of the lists at a time
        self._mode = BookieMode.WRITABLE
        self._entered: BookieMode | None = None  # the list that the node is in
        self._session: SessionId | None = None  # under which the node was made
        self._left = False  # for good

    @property
    def mode(self) -> BookieMode:
        """The mode that was asked for last."""
        return self._mode

    @property
    def is_registered(self) -> bool:
        """As far as we know: the session may have ended without our having heard of it yet."""
        return (
            self._entered is self._mode
            and self._session is not None
            and self._session == self._store.session
        )

    async def register(self, mode: BookieMode) -> None:
        """Enter the list of `mode`, and make sure not to be in the other one."""
        async with self._lock:
            self._left = False
            self._mode = mode
            await self._enter_and_leave()

    async def switch(self, mode: BookieMode) -> None:
        """Change lists: into the new one first. Nothing to do if the mode is that already."""
        async with self._lock:
            self._mode = mode
            if not self.is_registered:
                await self._enter_and_leave()

    async def unregister(self) -> None:
        """Leave both lists, for a stop that others should notice before the session ends."""
        async with self._lock:
            session, self._session = self._session, None
            self._left = True
            if session is not None:
                with suppress(SessionExpiredError):
                    for mode in BookieMode:
                        await self._leave(mode, session)

    async def keep(self) -> None:
        """Register again whenever the session has expired. Runs until `unregister`.

        While the store is away this waits and tries again for ever: a bookie that cannot be
        reached through the lists can still be reached. Another owner of our id ends it with
        BookieIdInUseError, and should end the bookie too.
        """
        failures = 0
        while True:
            if self._session is not None:
                await self._store.wait_session_lost(self._session)
            if self._left:
                return
            _log.warning("bookie %s has no session, registering again", self._bookie_id)
            try:
                async with self._lock:
                    if not self.is_registered and not self._left:
                        self._session = None
                        await self._enter_and_leave()
            except StoreUnavailableError as error:
                failures += 1
                _log.warning("bookie %s is not registered: %s", self._bookie_id, error)
                await trio.sleep(self._backoff.seconds(failures, self._chance))
            else:
                failures = 0

    # ------------------------------------------------------------------ the two lists

    def _path(self, mode: BookieMode) -> str:
        return self._paths.registration(self._bookie_id, readonly=mode is BookieMode.READ_ONLY)

    async def _enter_and_leave(self) -> None:
        other = next(mode for mode in BookieMode if mode is not self._mode)
        self._session = await self._enter(self._path(self._mode))
        self._entered = self._mode
        try:
            await self._leave(other, self._session)
        except SessionExpiredError:
            return  # whatever we had in either list is gone; `keep` takes it from here
        except StoreUnavailableError as error:
            if self._mode is BookieMode.READ_ONLY:
                raise  # writers would go on choosing us
            _log.warning("bookie %s stays in the read-only list too: %s", self._bookie_id, error)

    async def _enter(self, path: str) -> SessionId:
        """Make the node, or find that it is ours already. The session that owns it.

        A node of ours is left as it is, with the payload it has. One of another session is
        probably our own from before a restart, and will expire: wait for that, with a bound.
        """
        deadline = trio.current_time() + self._owner_seconds
        failures = 0
        while True:
            try:
                session = await self._store.require_session()
                stat, watch = await self._store.exists_and_watch(path)
                if stat is not None and stat.owner == session:
                    return session
                if stat is None:
                    await create_below(
                        self._store,
                        self._paths.root,
                        path,
                        self._payload,
                        ephemeral=True,
                        session=session,
                    )
                    return session
                with trio.move_on_at(deadline):
                    await watch.wait()
                    continue
                # The watch may have been lost: only what is there now counts.
                await self._store.sync(path)
                stat = await self._store.exists(path)
                if stat is not None and stat.owner != session:
                    raise self._in_use(path, stat.owner)
            except NodeExistsError:
                continue  # somebody was faster: look who
            except (ConnectionLostError, SessionExpiredError) as error:
                failures += 1
                if failures >= self._backoff.attempts_max:
                    raise
                _log.info("looking again whether %s was made: %s", path, error)
                await trio.sleep(self._backoff.seconds(failures, self._chance))

    def _in_use(self, path: str, owner: SessionId | None) -> BookieIdInUseError:
        who = "a node that is not ephemeral" if owner is None else f"session 0x{owner:x}"
        return BookieIdInUseError(
            f"{path} belongs to {who} and did not go away within {self._owner_seconds:g} s: stop "
            f"the other bookie with the id {self._bookie_id}, or give this one another id"
        )

    async def _leave(self, mode: BookieMode, session: SessionId) -> None:
        path = self._path(mode)

        async def attempt() -> None:
            with suppress(NoNodeError):
                await self._store.delete(path, version=ANY_VERSION, session=session)

        await persistently(attempt, chance=self._chance, backoff=self._backoff)
