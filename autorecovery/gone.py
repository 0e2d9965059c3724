"""Bookies that are gone for good, told from those that are merely away.

Nobody can see from outside whether a machine will ever be started again; somebody has to say so.
They say it with the cookie: a bookie without one is refused when it comes back with its data, so
what it holds is out of reach for ever, and what only it holds is lost. Everything else is waited
for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autorecovery.context import RecoveryContext
from autorecovery.core.parking import Reason, Verdict
from metadata.cookie import InvalidCookieError
from wire.types import BookieId


async def judged_by_cookies(context: RecoveryContext, verdict: Verdict) -> Verdict:
    """The verdict on entries without a source, if some of the bookies that had them are gone."""
    if verdict.reason is not Reason.NO_SOURCE or not verdict.lost:
        return verdict
    gone = await gone_for_good(context, verdict.waits_for)
    left = tuple(name for name in verdict.waits_for if name not in gone)
    if left:
        return replace(verdict, waits_for=left)
    return Verdict(reason=Reason.LOST, lost=verdict.lost)


async def gone_for_good(context: RecoveryContext, away: Iterable[BookieId]) -> set[BookieId]:
    """Those that have no cookie and are not there all the same."""
    known = {*await context.cookies.bookies(), *context.client.bookies().all}
    gone: set[BookieId] = set()
    for bookie_id in set(away) - known:
        try:
            if await context.cookies.find(bookie_id) is None:  # the list may have been old
                gone.add(bookie_id)
        except InvalidCookieError:
            continue  # a cookie that nobody understands is one
    return gone
