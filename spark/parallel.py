"""Many small requests at a time, and never more than a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from wire.errors import LedgerError

T = TypeVar("T")
U = TypeVar("U")

#: Records that are read at a time.
PARALLEL_MAX: Final = 32


async def map_parallel(
    job: Callable[[T], Awaitable[U]], items: Sequence[T], *, parallel: int = PARALLEL_MAX
) -> list[U]:
    """The results in the order of the items. The first error ends all, and is raised as it is."""
    results: dict[int, U] = {}
    failure: LedgerError | None = None
    rest = iter(range(len(items)))

    async def work() -> None:
        nonlocal failure
        for index in rest:
            try:
                results[index] = await job(items[index])
            except LedgerError as error:  # raised below: a nursery would wrap it in a group
                failure = failure or error
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(min(parallel, len(items))):
            nursery.start_soon(work)
    if failure is not None:
        raise failure
    return [results[index] for index in range(len(items))]
