"""Who audits: everybody who could casts a vote, and the oldest vote that is left has won.

Votes are ephemeral and numbered. A candidate watches the vote just before its own, so that the end
of one auditor wakes one successor and not all of them. Java's electors take part in the same way.

Losing the session loses the vote, and with it the office: the audit is cancelled and the candidate
stands again. For a moment there may be two auditors, one of which does not know yet; that is why
all they do is add marks.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from metadata.model import InvalidMetadataError
from metadata.paths import VOTE_PREFIX, ClusterPaths, sequence_of
from metadata.records import decode_vote, encode_vote
from metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataStore,
    NoNodeError,
    SessionId,
    StoreUnavailableError,
    Watch,
)
from metadata.tree import create_below, ensure_below
from metadata.update import PATIENT, Backoff
from wire.types import BookieId

_log = logging.getLogger(__name__)

#: A watch that the network swallowed is made up for by a look this often.
_RECHECK_SECONDS: Final = 60.0
#: What a clean stop spends on taking its vote back; the end of the session does it otherwise.
_WITHDRAW_SECONDS: Final = 5.0


class Election:
    """One candidate. `run` stands for office, and audits while it is held."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: BookieId,
        *,
        chance: random.Random,
        backoff: Backoff = PATIENT,
    ) -> None:
        self._store = store
        self._paths = ClusterPaths(root)
        self._payload = encode_vote(bookie_id)
        self._bookie_id = bookie_id
        self._chance = chance
        self._backoff = backoff
        self._vote: str | None = None
        self._session: SessionId | None = None  # whose vote that is
        self._is_elected = False

    @property
    def is_elected(self) -> bool:
        return self._is_elected

    async def run(self, audit: Callable[[], Awaitable[None]]) -> None:
        """Stand until cancelled; run `audit` during each term of office, and cancel it after.

        An `audit` that returns or raises ends the candidacy. The vote is withdrawn on the way
        out, so that the next one need not wait for our session to expire.
        """
        failures = 0
        try:
            while True:
                try:
                    await self._wait_elected()
                    failures = 0
                    if await self._hold_office(audit):
                        return
                except StoreUnavailableError as error:
                    failures += 1
                    _log.info("standing for auditor again later: %s", error)
                    await trio.sleep(self._backoff.seconds(failures, self._chance))
        finally:
            with trio.move_on_after(_WITHDRAW_SECONDS, shield=True):
                await self._withdraw()

    # ------------------------------------------------------------------ standing

    async def _wait_elected(self) -> None:
        while True:
            own = await self._ensure_vote()
            votes = await self._votes()
            if own not in votes:
                self._vote = None  # somebody removed it
                continue
            position = votes.index(own)
            if position == 0:
                return
            await self._wait_gone(votes[position - 1])

    async def _ensure_vote(self) -> str:
        session = await self._store.require_session()
        if self._vote is not None and self._session == session:
            return self._vote
        await ensure_below(self._store, self._paths.root, self._paths.election)
        # A vote whose answer was lost stands before the next one we would cast, and we would
        # wait for ourselves to go away.
        vote = await self._find_own(session)
        if vote is None:
            vote = await create_below(
                self._store,
                self._paths.root,
                self._paths.vote_prefix,
                self._payload,
                ephemeral=True,
                sequential=True,
                session=session,
            )
        self._vote, self._session = vote, session
        return vote

    async def _find_own(self, session: SessionId) -> str | None:
        """Our oldest vote of this session. Younger ones of ours are removed."""
        own: list[str] = []
        for vote in await self._votes():
            with suppress(NoNodeError):
                node = await self._store.get(vote)
                # Another candidate may share our store, and so our session.
                if node.stat.owner == session and node.data == self._payload:
                    own.append(vote)
        for younger in own[1:]:
            with suppress(NoNodeError):
                await self._store.delete(younger, version=ANY_VERSION, session=session)
        return own[0] if own else None

    async def _votes(self) -> list[str]:
        return await _votes(self._store, self._paths)

    async def _wait_gone(self, vote: str) -> None:
        stat, watch = await self._store.exists_and_watch(vote)
        while stat is not None and not await _fires(watch):
            stat = await self._store.exists(vote)

    # ------------------------------------------------------------------ in office

    async def _hold_office(self, audit: Callable[[], Awaitable[None]]) -> bool:
        """True if the audit came to its own end, False if the office was lost."""
        assert self._vote is not None
        assert self._session is not None
        await self._store.set(
            self._paths.election, self._payload, version=ANY_VERSION, session=self._session
        )
        _log.info("bookie %s is auditor", self._bookie_id)
        failure: BaseException | None = None
        is_done = False
        self._is_elected = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_own_vote, nursery.cancel_scope)
                try:
                    await audit()
                    is_done = True
                except trio.Cancelled:
                    raise
                except Exception as error:  # raised below: a nursery would wrap it in a group
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            self._is_elected = False
        if failure is not None:
            raise failure
        if not is_done:
            self._vote = None
            _log.warning("bookie %s is auditor no more: its vote is gone", self._bookie_id)
        return is_done

    async def _watch_own_vote(self, office: trio.CancelScope) -> None:
        """Cancel the office when the vote is gone, with its session or by hand."""
        assert self._vote is not None
        assert self._session is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_with_session, self._session, office)
            while True:
                try:
                    await self._wait_gone(self._vote)
                    if await self._store.exists(self._vote) is None:
                        break
                except StoreUnavailableError:
                    await trio.sleep(self._backoff.seconds(5, self._chance))
            office.cancel()

    async def _cancel_with_session(self, session: SessionId, office: trio.CancelScope) -> None:
        await self._store.wait_session_lost(session)
        office.cancel()

    async def _withdraw(self) -> None:
        vote, session = self._vote, self._session
        self._vote = None
        if vote is not None and session is not None:
            with suppress(MetadataError):  # it goes with the session
                await self._store.delete(vote, version=ANY_VERSION, session=session)


async def current_auditor(store: MetadataStore, root: str) -> BookieId | None:
    """Whose vote is the oldest (`whoisauditor`). None if nobody stands.

    Not what the election node itself says: that names the last one ever elected.
    """
    paths = ClusterPaths(root)
    for vote in await _votes(store, paths):
        with suppress(NoNodeError):
            return decode_vote((await store.get(vote)).data, path=vote)
    return None


async def _votes(store: MetadataStore, paths: ClusterPaths) -> list[str]:
    """All votes, oldest first. Other names stop Java's electors; we pass over them."""
    try:
        names, _ = await store.children(paths.election)
    except NoNodeError:
        return []
    numbered: list[tuple[int, str]] = []
    for name in names:
        try:
            numbered.append((sequence_of(name, VOTE_PREFIX), name))
        except InvalidMetadataError as error:
            _log.warning("ignoring what is no vote: %s", error)
    return [f"{paths.election}/{name}" for _, name in sorted(numbered)]


async def _fires(watch: Watch) -> bool:
    with trio.move_on_after(_RECHECK_SECONDS):
        await watch.wait()
        return True
    return False
