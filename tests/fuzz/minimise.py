"""A corpus without what adds nothing: the shortest inputs that still reach all that all of them do.

What was reached is which line followed which in our own code. Atheris knows more (it counts, and
looks into comparisons), which is what a search needs; a corpus that is fed again needs the places.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import Target

_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    f"{_ROOT / package}/" for package in ("wire", "runtime", "metadata", "bookie", "quire")
)
#: What a corpus may have, as bytes; the longest inputs go first.
CORPUS_BYTES_MAX = 12 << 10

#: A line after another, of one piece of code.
Step = tuple[object, int, int]


def minimised(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Those among `inputs` that reach what the seeds and the shorter ones do not."""
    reached: set[Step] = set()
    for data in target.seeds():
        reached |= steps(target, data)
    kept: list[bytes] = []
    room = CORPUS_BYTES_MAX
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        found = steps(target, data)
        if not found <= reached and len(data) <= room:
            reached |= found
            kept.append(data)
            room -= len(data)
    return kept


def steps(target: Target, data: bytes) -> set[Step]:
    found: set[Step] = set()
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            return None
        if event == "return":
            last.pop(frame, None)
        else:
            found.add((code, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        target.feed(data)
    finally:
        sys.settrace(before)
    return found
