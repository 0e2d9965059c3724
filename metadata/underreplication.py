"""Ledgers that lack copies: marks that say so, and locks by which workers share them out.

A mark is a persistent node per ledger with the list of bookies whose copies are missing. Whoever
notices a loss marks; a worker takes a marked ledger by an ephemeral lock, restores the copies and
deletes the mark, but only the version of it that it saw before it looked at the ledger: a loss
that was added meanwhile keeps the mark alive.

A lock is worth what its session is worth. The session that made it is in the `Lock`, and whatever
a worker commits under the lock must be bound to that session (`session=lock.session`): then the
store itself refuses a commit of somebody who has lost the lock without noticing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from metadata.mark_walk import MarkTree
from metadata.marks import Mark, Marks, mark_content
from metadata.paths import ClusterPaths
from metadata.records import (
    check_underreplication_layout,
    decode_lock,
    encode_lock,
    encode_underreplication_layout,
)
from metadata.rereplication_settings import RereplicationSettings
from metadata.store import (
    ANY_VERSION,
    Change,
    ConnectionLostError,
    Create,
    Delete,
    MetadataError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SessionId,
    SetData,
    StoreUnavailableError,
)
from metadata.tree import create_below, ensure_below, prune_parents
from metadata.update import PATIENT, Backoff, persistently
from wire.types import BookieId, LedgerId

_log = logging.getLogger(__name__)

#: After an error while waiting for work.
_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Lock:
    """The right to restore copies of one ledger, for as long as `session` lives."""

    ledger_id: LedgerId
    session: SessionId
    #: What was marked when the lock was taken; None if locked without a mark, by hand.
    mark: Mark | None = None


class UnderReplication:
    """Marks and locks of one cluster. Call `open` first."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        *,
        owner: str,
        chance: random.Random,
        now_ms: Callable[[], int],
        stores_mark_time: bool = True,
        backoff: Backoff = PATIENT,
    ) -> None:
        """`owner` goes into locks, for people who read them. Java puts its host name there."""
        self._store = store
        self._paths = ClusterPaths(root)
        self._owner = encode_lock(owner)
        self._chance = chance
        self._backoff = backoff
        self._marks = Marks(
            store,
            self._paths,
            chance=chance,
            now_ms=now_ms,
            stores_mark_time=stores_mark_time,
            backoff=backoff,
        )
        self.settings = RereplicationSettings(store, root, chance=chance, backoff=backoff)
        self._tree = MarkTree(store, self._paths, chance)
        self._held: dict[LedgerId, Lock] = {}
        self._unsure: set[LedgerId] = set()  # locks that may be ours without our knowing
        self._settling = trio.Lock()

    async def open(self) -> None:
        """Make what is missing of the tree, and refuse a layout that we do not know."""
        await persistently(
            lambda: open_underreplication(self._store, self._paths.root),
            chance=self._chance,
            backoff=self._backoff,
        )

    # ------------------------------------------------------------------ marking

    async def mark(self, ledger_id: LedgerId, missing: Iterable[BookieId]) -> None:
        """Say that the copies of these bookies are missing; added to what is said already."""
        await self._marks.add(ledger_id, missing)

    async def mark_fresh(self, missing: Mapping[LedgerId, Sequence[BookieId]]) -> bool:
        """Mark ledgers none of which is marked yet, in one transaction; False if one is.

        Then nothing was done, or it is not known what: `mark` each of them.
        """
        return await self._marks.add_fresh(missing)

    async def read_mark(self, ledger_id: LedgerId) -> Mark | None:
        return await self._marks.read(ledger_id)

    async def read_marks(self, ledger_ids: Sequence[LedgerId]) -> list[Mark]:
        """Those of them that are there; for hundreds, not for millions."""
        return await self._marks.read_many(ledger_ids)

    async def marked(self) -> list[LedgerId]:
        """Every marked ledger, ascending."""
        return await self._tree.marked()

    # ------------------------------------------------------------------ taking one

    async def acquire(self) -> Lock:
        """Lock some marked ledger, in no particular order.

        Waits until there is one, and while re-replication is disabled.
        """
        while True:
            await self.settings.wait_enabled()
            try:
                lock = await self.try_acquire()
                if lock is not None:
                    return lock
                await self._tree.wait_for_work()
            except StoreUnavailableError as error:
                _log.info("waiting for the store to look for marks: %s", error)
                self._tree.forget()
                await trio.sleep(_PAUSE_SECONDS)

    async def try_acquire(self) -> Lock | None:
        """Lock some marked ledger that nobody has locked, or None if there is none now."""
        await self.settle()
        return await self._tree.first(self.take)

    async def sample(self, count_max: int) -> list[LedgerId]:
        """Some ledgers that are marked and not locked, in random order, to be offered to `take`."""
        await self.settle()
        return await self._tree.sample(count_max)

    async def wait_for_work(self) -> None:
        """Until a mark or a lock has come or gone since the last look."""
        await self._tree.wait_for_work()

    async def take(self, ledger_id: LedgerId) -> Lock | None:
        """Lock this ledger if it is marked and nobody else has it."""
        lock = await self.lock(ledger_id)
        if lock is None:
            return None
        try:
            # Read under the lock and before the ledger is looked at: whatever is added to the
            # mark from now on makes it another version than the one we shall delete.
            mark = await self.read_mark(ledger_id)
        except StoreUnavailableError:
            await self._give_back(lock)
            raise
        if mark is None:
            await self._give_back(lock)
            return None
        lock = Lock(ledger_id, lock.session, mark)
        self._held[ledger_id] = lock
        return lock

    async def take_many(self, ledger_ids: Sequence[LedgerId]) -> list[Lock] | None:
        """Lock all of these that are marked, in one transaction; None if somebody has one of them.

        Then none is locked, and each may be offered to `take`.
        """
        session = await self._store.require_session()
        locks = {ledger_id: Lock(ledger_id, session) for ledger_id in ledger_ids}
        if not locks or not locks.keys().isdisjoint(self._held):
            return None
        self._held.update(locks)
        taken: list[Lock] = []
        try:
            await self._store.transact(
                [Create(self._paths.lock(each), self._owner, ephemeral=True) for each in locks],
                session=session,
            )
            nodes = await self._store.get_many(list(map(self._paths.mark, locks)))
            for ledger_id, node in zip(locks, nodes, strict=True):
                if node is not None:
                    mark = Mark(ledger_id, mark_content(node, self._paths.mark(ledger_id)), node)
                    taken.append(Lock(ledger_id, session, mark))
        except (NodeExistsError, NoNodeError):
            return None
        except BaseException:
            self._unsure |= locks.keys()  # cancelled or not answered: perhaps they are ours
            raise
        finally:
            for ledger_id in locks:
                del self._held[ledger_id]
        self._held.update((lock.ledger_id, lock) for lock in taken)
        self._unsure |= locks.keys() - self._held.keys()
        return taken

    async def lock(self, ledger_id: LedgerId) -> Lock | None:
        """Lock this ledger, marked or not; None if somebody else has it, or we ourselves.

        For repair by hand and for bookies that drop surplus copies, which must not meet.
        """
        session = await self._store.require_session()
        while self._unsure:  # an earlier answer was lost: the lock in our way may be our own
            await self.settle()
        if ledger_id in self._held:
            return None
        lock = self._held[ledger_id] = Lock(ledger_id, session)  # from now on nobody settles it
        try:
            await create_below(
                self._store,
                self._paths.root,
                self._paths.lock(ledger_id),
                self._owner,
                ephemeral=True,
                session=session,
            )
        except NodeExistsError:
            del self._held[ledger_id]
            return None
        except BaseException:  # cancelled or not answered: perhaps it is ours
            del self._held[ledger_id]
            self._unsure.add(ledger_id)
            raise
        return lock

    async def holder(self, ledger_id: LedgerId) -> str | None:
        """Who says to have the lock; None if nobody has it."""
        path = self._paths.lock(ledger_id)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None
        return decode_lock(node.data, path=path) or "unknown"

    async def wait_lost(self, lock: Lock) -> None:
        """Until the lock is worth nothing any more. Run it beside the work and cancel that."""
        await self._store.wait_session_lost(lock.session)

    # ------------------------------------------------------------------ giving it back

    async def finish(self, lock: Lock) -> bool:
        """The ledger is whole, or gone: delete the mark and release the lock, in this order.

        False if the mark stays, because more was lost since it was read.
        """
        assert lock.mark is not None
        is_unsure = False
        if self._tree.has_siblings(lock.ledger_id):
            try:
                await self._finish_at_once(lock.mark, lock)
            except SessionExpiredError:
                await self.release(lock)
                raise
            except ConnectionLostError:
                is_unsure = True
            except MetadataError:  # not as it was expected: one thing after the other
                pass
            else:
                return True
        try:
            is_deleted = await self._marks.delete(lock.mark, lock.session, is_retry=is_unsure)
            if is_deleted:
                with suppress(MetadataError):
                    await prune_parents(self._store, self._paths.mark_parents(lock.ledger_id))
        finally:
            await self.release(lock)
        return is_deleted

    async def _finish_at_once(self, mark: Mark, lock: Lock) -> None:
        """Mark, directory and lock in one transaction, where the directories above stay anyway.

        What others see is the same; small ledgers are mostly such round trips.
        """
        await self._store.transact(self._finishing(mark, lock), session=lock.session)
        self._held.pop(lock.ledger_id, None)

    def _finishing(self, mark: Mark, lock: Lock) -> list[Change]:
        return [
            Delete(self._paths.mark(lock.ledger_id), mark.version),
            Delete(self._paths.mark_parents(lock.ledger_id)[0], ANY_VERSION),
            Delete(self._paths.lock(lock.ledger_id), ANY_VERSION),
        ]

    def can_finish_together(self, lock: Lock) -> bool:
        return self._tree.has_siblings(lock.ledger_id)

    async def finish_together(self, locks: Sequence[Lock], commits: Sequence[SetData]) -> bool:
        """Write the records of these ledgers, which makes them whole, and `finish` all of them.

        One transaction: False if anything was not as expected; then nothing was done, and the
        locks are held as before. Raises if that is not known: then `doubt` them.
        """
        changes: list[Change] = [*commits]
        for lock in locks:
            assert lock.mark is not None
            changes += self._finishing(lock.mark, lock)
        try:
            await self._store.transact(changes, session=locks[0].session)
        except StoreUnavailableError:
            raise
        except MetadataError:
            return False
        for lock in locks:
            self._held.pop(lock.ledger_id, None)
        return True

    def doubt(self, locks: Iterable[Lock]) -> None:
        """These may be ours or gone, even somebody else's: found out before the next pick."""
        for lock in locks:
            self._held.pop(lock.ledger_id, None)
            self._unsure.add(lock.ledger_id)

    async def release(self, lock: Lock) -> None:
        """Let others have the ledger. A lock that went with its session is released already.

        With the store out of reach the lock is remembered, and released before the next pick.
        """
        held = self._held.get(lock.ledger_id)
        if held is not None and held.session == lock.session:
            del self._held[lock.ledger_id]

        try:
            await persistently(
                lambda: self._delete_lock(lock.ledger_id, lock.session),
                chance=self._chance,
                backoff=self._backoff,
            )
        except SessionExpiredError:
            return
        except StoreUnavailableError as error:
            self._unsure.add(lock.ledger_id)
            _log.warning("lock of ledger %d not released yet: %s", lock.ledger_id, error)
        except BaseException:  # a caller in a hurry: perhaps it is still there
            self._unsure.add(lock.ledger_id)
            raise

    async def _give_back(self, lock: Lock) -> None:
        """Release a lock that turned out to be of no use, without waiting for the store."""
        del self._held[lock.ledger_id]
        self._unsure.add(lock.ledger_id)
        with suppress(StoreUnavailableError):
            await self.settle()

    async def settle(self) -> None:
        """Remove locks of our own session that no task of ours holds.

        A lost answer leaves some behind, and they last as long as the session. Whoever takes
        another lock need not care; whoever may not take one for long calls this now and then.
        """
        async with self._settling:  # or somebody else's look is behind the times when he deletes
            for ledger_id in sorted(self._unsure):
                session = await self._store.require_session()
                if ledger_id not in self._held:
                    with suppress(SessionExpiredError):
                        await self._delete_lock(ledger_id, session)
                self._unsure.discard(ledger_id)

    async def _delete_lock(self, ledger_id: LedgerId, session: SessionId) -> None:
        """Delete the lock if this session owns it.

        What is there now may be somebody else's: an earlier attempt to delete ours may have been
        carried out without an answer, and the next worker be at it. A lock that is ours stays ours
        until we delete it or the session ends, so nothing comes between the look and the delete.
        """
        path = self._paths.lock(ledger_id)
        stat = await self._store.exists(path)
        if stat is not None and stat.owner == session:
            with suppress(NoNodeError):
                await self._store.delete(path, version=ANY_VERSION, session=session)


async def open_underreplication(store: MetadataStore, root: str) -> None:
    """Make what is missing of the tree below `underreplication`; others do the same."""
    paths = ClusterPaths(root)
    await ensure_below(store, root, paths.underreplication)
    try:
        node = await store.get(paths.underreplication_layout)
    except NoNodeError:
        with suppress(NodeExistsError):
            await create_below(
                store, root, paths.underreplication_layout, encode_underreplication_layout()
            )
        node = await store.get(paths.underreplication_layout)
    check_underreplication_layout(node.data, path=paths.underreplication_layout)
    await ensure_below(store, root, paths.marks)
    await ensure_below(store, root, paths.locks)
