"""The one place where a foreign thread's news enters trio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import trio


class Inbox:
    """Functions posted by any thread run in the event loop, in the order of the posts.

    Costs one wake-up of the loop per burst, not per post. An error that leaves a function is a
    bug of ours and ends the program, as trio does with such errors. Once the loop has ended,
    posts are dropped: nobody is left to hear them.
    """

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._posts: deque[Callable[[], None]] = deque()
        self._is_rung = False

    def post(self, function: Callable[[], None]) -> None:
        self._posts.append(function)
        if self._is_rung:
            return  # whoever rang did so for this one, too: the bell is reset before they are run
        self._is_rung = True
        try:
            self._token.run_sync_soon(self._run, idempotent=True)
        except trio.RunFinishedError:
            self._posts.clear()

    def _run(self) -> None:
        self._is_rung = False
        while self._posts:
            self._posts.popleft()()


class Answer:
    """Where the answer to one request arrives, at most once. Nobody has to wait for it.

    `on_value` runs as it arrives, before anything that was posted later.
    """

    def __init__(self, on_value: Callable[[Any], None] | None = None) -> None:
        self.arrived = trio.Event()
        self.value: Any = None
        self.error: Exception | None = None
        self._on_value = on_value

    def arrive(self, value: Any, error: Exception | None) -> None:
        if self.arrived.is_set():
            return
        self.value, self.error = value, error
        if error is None and self._on_value is not None:
            self._on_value(value)
        self.arrived.set()
