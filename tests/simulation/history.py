"""What happened, told to whoever watches: one checker per invariant, and the teller of stories.

An event is a name and its arguments. A checker watches an event by having a method `on_<name>`.
The names, and what they carry:

    submitted(entry_id, payload)         the writer's caller handed it in
    acked(first, last)                   the writer's caller was told that these are written
    forced(through)                      a force succeeded
    writer_failed()                      the handle is dead: no add may be confirmed any more
    change_started(lac), change_ended(lac)
    recorded(by, before, after)          the ledger's record changed
    admitted(bookie, entry_id, recovery) a bookie took an add
    acknowledged(bookie, entry_ids)      it said so
    fence_answered(bookie)               an answer, good or bad, to a fencing request went out
    denied(bookie, entry_id)             it said that it never had the entry; None: the ledger
    lost(bookie)                         a disk lost what it had acknowledged
    healed(bookie)                       it has got back what it lost, and denies things again
    mark_deleted(by, replicas, written)  of the ledger, as it was last written
    dropped(bookie)                      it deleted the ledger, which had left it
    lac_stored(bookie, lac)
    lac_shown(handle, lac)               a reader was told so
    read(handle, entry_id, payload)
    opened(handle, metadata)             a recovery or a close ended well
    ended()                              all is quiet, the cluster whole
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class ViolationError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class History:
    def __init__(self) -> None:
        self._watchers: dict[str, list[Callable[..., None]]] = {}
        #: Lines of the story, when somebody wants to read it.
        self.story: list[str] | None = None

    def watch(self, checkers: Iterable[object]) -> None:
        for checker in checkers:
            for name in dir(checker):
                if name.startswith("on_"):
                    self._watchers.setdefault(name[3:], []).append(getattr(checker, name))

    def emit(self, event: str, *what: Any) -> None:
        for watcher in self._watchers.get(event, ()):
            watcher(*what)
