"""Verbs of the shell that change which bookie ledgers name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import wraps
from typing import Any

import click
import trio

from metadata.model import check_bookie_id
from metadata.update import RenameBookie
from quire.access import Target, run, target_options, yes_option
from quire.output import confirm, progress, say, show_json
from quire.shell_cluster import bookies_of
from quire.shell_ledgers import records
from wire.errors import LedgerError
from wire.types import BookieId


def _pace_options(function: Callable[..., None]) -> Callable[..., None]:
    """How fast, how many. Of Apache's options the last three need no obeying: records are read one
    after another, and a bar shows progress on a terminal."""

    @click.option(
        "-s", "--updatespersec", "rate", type=click.IntRange(1, 10_000), default=5,
        show_default=True, help="Ledgers to change in a second.",
    )  # fmt: skip
    @click.option("-l", "--limit", type=click.IntRange(1), help="Change no more ledgers than this.")
    @click.option("-r", "--maxOutstandingReads", "reads", type=int, help="Accepted, not needed.")
    @click.option("-v", "--verbose", type=bool, help="Accepted, not needed.")
    @click.option("-p", "--printprogress", type=int, help="Accepted, not needed.")
    @wraps(function)
    def command(*arguments: Any, **more: Any) -> None:
        for accepted in ("reads", "verbose", "printprogress"):
            del more[accepted]
        function(*arguments, **more)

    return command


@click.command(epilog="Example: quire shell -conf bk_server.conf updateledgers -b hostname")
@click.option(
    "-b", "--bookieId", "form", type=click.Choice(["hostname", "ip"]), required=True,
    help="The form of the bookie's id that ledgers are to name.",
)  # fmt: skip
@_pace_options
@yes_option
@target_options
def updateledgers(target: Target, form: str, rate: int, limit: int | None, yes: bool) -> None:
    """Let ledgers name the configured bookie by its host name, or by its address."""
    from bookie.identity import Resolver

    config = target.bookie().bookie
    if config.bookie_id is not None:
        raise LedgerError(
            f"{target.conf} gives the bookie the id {config.bookie_id}, which has one form only: "
            "there is nothing to update"
        )
    resolver = Resolver()
    host = config.advertised_address or resolver.host_name()
    names = {"hostname": host, "ip": resolver.address(host)}
    new = check_bookie_id(BookieId(f"{names.pop(form)}:{config.port}"))
    (other,) = names.values()
    old = check_bookie_id(BookieId(f"{other}:{config.port}"))
    if old != new:
        confirm(f"Let ledgers that name {old} name {new} instead?", yes=yes)
    changed = 0 if old == new else run(_rename, target, old, new, rate, limit)
    _show(target, old, new, changed)


@click.command(
    name="updateBookieInLedger",
    epilog="Example: quire shell updateBookieInLedger -sb 10.0.0.1:3181 -db 10.0.0.9:3181",
)
@click.option("-sb", "--srcBookie", "source", required=True, help="The id to replace.")
@click.option("-db", "--destBookie", "destination", required=True, help="The new id.")
@_pace_options
@yes_option
@target_options
def updatebookieinledger(
    target: Target, source: str, destination: str, rate: int, limit: int | None, yes: bool
) -> None:
    """Let ledgers name one bookie instead of another. No entry is copied."""
    old, new = check_bookie_id(source), check_bookie_id(destination)
    if old == new:
        raise click.UsageError(f"{old} is both the old and the new id")
    registered, _ = run(bookies_of, target)
    if old in registered.all:
        raise LedgerError(f"bookie {old} is running: stop it first")
    confirm(f"Let ledgers that name {old} name {new}, which must have all its entries?", yes=yes)
    _show(target, old, new, run(_rename, target, old, new, rate, limit))


def _show(target: Target, old: BookieId, new: BookieId, changed: int) -> None:
    if target.as_json:
        show_json({"old": old, "new": new, "changed": changed})
    else:
        say(f"{changed} ledgers changed from {old} to {new}")


async def _rename(
    target: Target, old: BookieId, new: BookieId, rate: int, limit: int | None
) -> int:
    changed = 0
    async with target.ledgers() as ledgers, aclosing(records(ledgers, read=True)) as walk:
        with progress("ledgers", None) as bar:
            async for ledger_id, found in walk:
                bar.advance()
                if found is None or not found.mentions(old):
                    continue
                await ledgers.update(ledger_id, RenameBookie(old=old, new=new))
                changed += 1
                if changed == limit:
                    break
                await trio.sleep(1 / rate)
    return changed
