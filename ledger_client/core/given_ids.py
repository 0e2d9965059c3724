"""Entry ids that the caller chose: what is refused, and where batches are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wire.types import ID_MAX


@dataclass(frozen=True, slots=True)
class Run:
    """Ids that follow each other, in the order they were given, with their bytes together."""

    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True)
class Refused:
    entry_id: int
    is_duplicate: bool  # else it is outside the range of ids


def cut(
    entry_ids: Sequence[int], sizes: Sequence[int], is_taken: Callable[[int], bool]
) -> Iterator[Run | Refused]:
    """Cut at every id that does not follow the one before, and leave out what is taken.

    {0, 1, 3} as one batch would hold 0 back until 2 arrives. And a header's length counts bytes in
    the order of submission, so entries given backwards cannot share a batch either. `is_taken` is
    asked anew after each run was handed out, when its ids are taken as well.
    """
    first = last = size = 0
    is_running = False
    for entry_id, entry_size in zip(entry_ids, sizes, strict=True):
        if is_running and entry_id != last + 1:
            yield Run(first, last, size)
            is_running = False
        if not 0 <= entry_id <= ID_MAX or is_taken(entry_id):
            if is_running:
                yield Run(first, last, size)
                is_running = False
            yield Refused(entry_id, is_duplicate=0 <= entry_id <= ID_MAX)
        elif is_running:
            last = entry_id
            size += entry_size
        else:
            first, last, size, is_running = entry_id, entry_id, entry_size, True
    if is_running:
        yield Run(first, last, size)
