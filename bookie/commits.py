"""What the engine hands back when it is durable: the adds of one receive buffer, or a deed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.connection import Connection


class Commit:
    """Adds that one receive buffer brought and the engine accepted, with their answers ready.

    The token of one `Engine.commit`. Any other token is a callable, to be called in the loop.
    """

    __slots__ = ("answers", "bytes", "connection", "count", "since")

    def __init__(self, connection: Connection, since: float) -> None:
        self.connection = connection
        self.since = since  # when the first of them was received
        self.answers: list[bytes] = []
        self.count = 0
        self.bytes = 0
