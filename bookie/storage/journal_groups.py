"""What waits for the journal, and how it is gathered to groups. No files, no threads of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bookie.storage.journal_format import JournalPosition


class Append(NamedTuple):
    pieces: Sequence[bytes | memoryview]
    byte_count: int
    record_count: int
    token: object
    deferred: bool  # may be acknowledged before it is synced


class Seal(NamedTuple):
    """Asks where replay must begin to find everything that was appended behind this."""

    on_sealed: Callable[[JournalPosition], None]


class Force(NamedTuple):
    """Done when everything before it is durable, deferred appends included."""

    token: object


class Close(NamedTuple):
    on_closed: Callable[[], None]


Item: TypeAlias = Append | Seal | Force | Close


@dataclass(slots=True, eq=False)
class Group:
    """Items that become durable together: at most one block."""

    pieces: list[bytes | memoryview] = field(default_factory=list)
    tokens: list[object] = field(default_factory=list)  # with Seal and Close at their places
    byte_count: int = 0
    record_count: int = 0
    must_sync: bool = False  # something in it may not be acknowledged before it is durable
    has_seal: bool = False
    closing: bool = False
    #: Filled in by the writer.
    position: JournalPosition | None = None
    write_seconds: float = 0.0

    def add(self, item: Item) -> None:
        if isinstance(item, Append):
            self.pieces += item.pieces
            self.byte_count += item.byte_count
            self.record_count += item.record_count
            self.must_sync |= not item.deferred
            self.tokens.append(item.token)
        elif isinstance(item, Force):
            self.must_sync = True
            self.tokens.append(item.token)
        else:
            self.has_seal |= isinstance(item, Seal)
            self.closing |= isinstance(item, Close)
            self.tokens.append(item)

    def deliver(self, on_durable: Callable[[list[object]], None]) -> None:
        """Tell the loop, in the order in which things were appended."""
        if not (self.has_seal or self.closing):
            on_durable(self.tokens)
            return
        batch: list[object] = []
        for token in self.tokens:
            if not isinstance(token, Seal | Close):
                batch.append(token)
                continue
            if batch:
                on_durable(batch)
                batch = []
            if isinstance(token, Seal):
                assert self.position is not None
                token.on_sealed(self.position)
            else:
                token.on_closed()
        if batch:
            on_durable(batch)


def take_group(pending: deque[Item], byte_count_max: int) -> Group | None:
    """Take items from the left as long as they fit. One that never fits goes alone.

    The other end belongs to the loop, which may append at any moment.
    """
    if not pending:
        return None
    group = Group()
    while pending and not group.closing:
        item = pending[0]
        if (
            isinstance(item, Append)
            and group.byte_count
            and group.byte_count + item.byte_count > byte_count_max
        ):
            break
        group.add(pending.popleft())
    return group
