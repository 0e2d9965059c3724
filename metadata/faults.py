"""How a store of memory is told to misbehave: each request asks a hook what happens to it.

A hook is any function from `Request` to `Fault` (or None: all goes well). `Script` is the one for
tests that name their moment; a simulator passes a function that draws from its own seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

Verb = Literal[
    "get", "exists", "children", "create", "set", "delete", "transact", "sync", "open", "end"
]


@dataclass(frozen=True, slots=True)
class Request:
    """What a hook is asked about. `path` is that of the first change for a transaction."""

    verb: Verb
    path: str
    watched: bool = False

    @property
    def writes(self) -> bool:
        return self.verb in ("create", "set", "delete", "transact")


class Outcome(Enum):
    ANSWERED = "answered"
    REQUEST_LOST = "request lost"  # not applied; a writer cannot tell from ANSWER_LOST
    ANSWER_LOST = "answer lost"  # applied, nobody told
    UNAVAILABLE = "unavailable"  # no connection: known not to have been applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request. The fields combine."""

    outcome: Outcome = Outcome.ANSWERED
    #: Run just before the request is applied: what somebody else did in between.
    meanwhile: Callable[[], None] | None = None
    #: The session ends before the request reaches the store ("before") or after it was applied
    #: but before the answer ("after", which loses the answer too).
    expires: Literal["before", "after"] | None = None
    #: On the way there and on the way back. A cancel in the second leaves an applied request.
    request_seconds: float = 0.0
    answer_seconds: float = 0.0
    #: How late a watch set by this request fires; `NEVER` means not until the session is lost.
    watch_seconds: float = 0.0


NEVER: Final = math.inf

FaultHook = Callable[[Request], Fault | None]


class Script:
    """Faults laid out in advance: each meets the next request that fits it, then is used up."""

    def __init__(self) -> None:
        self._scenes: list[_Scene] = []

    def add(
        self,
        fault: Fault,
        *,
        verb: Verb | None = None,
        path: str | None = None,
        skip: int = 0,
        times: int = 1,
    ) -> None:
        """Let `times` requests pass through `fault`, after `skip` others that would have fitted."""
        self._scenes.append(_Scene(fault, verb, path, skip, times))

    def __call__(self, request: Request) -> Fault | None:
        for scene in self._scenes:
            if not scene.fits(request):
                continue
            if scene.skip > 0:
                scene.skip -= 1
                continue
            scene.times -= 1
            if scene.times == 0:
                self._scenes.remove(scene)
            return scene.fault
        return None

    @property
    def is_played_out(self) -> bool:
        """Whether every fault was met. Ask at the end of a test, or it may have tested nothing."""
        return not self._scenes


@dataclass(slots=True)
class _Scene:
    fault: Fault
    verb: Verb | None
    path: str | None
    skip: int
    times: int

    def fits(self, request: Request) -> bool:
        return (self.verb is None or self.verb == request.verb) and (
            self.path is None or self.path == request.path
        )
