"""Verbs of the shell on re-replication: who audits, what is missing, orders by hand."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import click

from autorecovery import operators
from autorecovery.context import RecoveryContext
from autorecovery.operators import UnderReplicated
from metadata.model import check_bookie_id
from metadata.rereplication_settings import (
    AlreadyDisabledError,
    AlreadyEnabledError,
    PeriodicCheck,
)
from quire.access import T, Target, run, shown_id, target_options
from quire.output import say, show_json
from quire.shell_lines import line
from wire.errors import LedgerError
from wire.types import BookieId

#: As far back as Apache's shell resets a check: further than any interval.
_RESET_MS: Final = 21 * 24 * 3600 * 1000
_DELAY_MAX: Final = 2**31 - 1


def with_context(target: Target, job: Callable[[RecoveryContext], Awaitable[T]]) -> T:
    async def main() -> T:
        async with target.recovery() as context:
            return await job(context)

    return run(main)


# ---------------------------------------------------------------------- looking


@click.command(epilog="Example: quire shell listunderreplicated -pmr")
@click.option("-mr", "--missingreplica", help="Only ledgers that miss this bookie.")
@click.option("-emr", "--excludingmissingreplica", help="Not those that miss this bookie.")
@click.option("-pmr", "--printmissingreplica", "names", is_flag=True, help="Name what is missing.")
@click.option("-prw", "--printreplicationworkerid", "workers", is_flag=True, help="Name workers.")
@click.option("-c", "--onlydisplayledgercount", "count_only", is_flag=True, help="Only the count.")
@target_options
def listunderreplicated(
    target: Target,
    missingreplica: str | None,
    excludingmissingreplica: str | None,
    names: bool,
    workers: bool,
    count_only: bool,
) -> None:
    """Show the ledgers that are marked because copies are missing."""
    found = marked(target, missing=missingreplica, excluding=excludingmissingreplica)
    if target.as_json:
        show_json([shown_mark(mark) for mark in found])
        return
    for mark in [] if count_only else found:
        line("Under-replicated ledger", ledgerId=shown_id(target, mark.ledger_id))
        if mark.marked_ms is not None:
            line("Ctime", ctime=mark.marked_ms)
        for bookie_id in mark.missing if names else ():
            line("Missing replica", missingReplica=bookie_id)
        if workers and mark.holder is not None:
            line("Replication worker", replicationWorkerId=mark.holder)
    line("Under replicated ledger count", count=len(found))


def marked(
    target: Target, *, missing: str | None = None, excluding: str | None = None
) -> list[UnderReplicated]:
    def checked(name: str | None) -> BookieId | None:
        return None if name is None else check_bookie_id(name)

    async def job(context: RecoveryContext) -> list[UnderReplicated]:
        marks = operators.under_replicated(
            context, missing=checked(missing), excluding=checked(excluding)
        )
        return [mark async for mark in marks]

    return with_context(target, job)


def shown_mark(mark: UnderReplicated) -> dict[str, object]:
    return {
        "ledgerId": mark.ledger_id,
        "missing": list(mark.missing),
        "ctime": mark.marked_ms,
        "worker": mark.holder,
        "state": mark.reason,
    }


@click.command(epilog="Example: quire shell whoisauditor")
@target_options
def whoisauditor(target: Target) -> None:
    """Show who audits."""
    auditor = with_context(target, operators.who_is_auditor)
    if target.as_json:
        show_json({"auditor": auditor})
    elif auditor is None:
        raise LedgerError("No auditor elected: start autorecovery somewhere")
    else:
        line("Current auditor", auditor=auditor)


@click.command(epilog="Example: quire shell queryautorecoverystatus")
@target_options
def queryautorecoverystatus(target: Target) -> None:
    """Show which ledgers are being restored, and by whom."""
    found = [mark for mark in marked(target) if mark.holder is not None]
    if target.as_json:
        show_json([{"ledgerId": mark.ledger_id, "bookieId": mark.holder} for mark in found])
        return
    say("CurrentRecoverLedgerInfo:")
    for mark in found:
        line("Recovering ledger", bookieId=mark.holder, ledgerId=shown_id(target, mark.ledger_id))


# ---------------------------------------------------------------------- settings


@click.command(epilog="Example: quire shell autorecovery -d")
@click.option("-e", "--enable", "wanted", flag_value="enabled", help="Allow re-replication.")
@click.option("-d", "--disable", "wanted", flag_value="disabled", help="Forbid it.")
@target_options
def autorecovery(target: Target, wanted: str | None) -> None:
    """Allow or forbid re-replication in the whole cluster; without an option show which it is."""
    if wanted is None:
        is_enabled = with_context(target, lambda c: c.marks.settings.is_enabled())
        state = "enabled" if is_enabled else "disabled"
        if target.as_json:
            show_json({"enabled": is_enabled})
        else:
            line("Autorecovery status", status=state)
        return
    changed = switch(target, on=wanted == "enabled")
    if target.as_json:
        show_json({"enabled": wanted == "enabled", "changed": changed})
    elif changed:
        say("Enabling autorecovery" if wanted == "enabled" else "Disabling autorecovery")
    else:
        say(f"Autorecovery already {wanted}. Doing nothing")


def switch(target: Target, *, on: bool) -> bool:
    """Whether that changed anything."""
    try:
        with_context(target, operators.enable if on else operators.disable)
    except (AlreadyEnabledError, AlreadyDisabledError):
        return False
    return True


@click.command(epilog="Example: quire shell lostbookierecoverydelay -s 300")
@click.option("-g", "--get", "get", is_flag=True, help="Show it.")
@click.option("-s", "--set", "seconds", type=click.IntRange(0, _DELAY_MAX), help="Set it.")
@target_options
def lostbookierecoverydelay(target: Target, get: bool, seconds: int | None) -> None:
    """Show or set how long a bookie may be away before its ledgers are restored."""
    if get == (seconds is not None):
        raise click.UsageError("one of -g and -s is needed")
    if seconds is not None:
        wanted = seconds
        with_context(target, lambda context: context.marks.settings.set_delay(wanted))
        if target.as_json:
            show_json({"delay": seconds})
        else:
            line("Successfully set LostBookieRecoveryDelay value in ZK", delay=seconds)
        return
    delay = with_context(target, lambda context: context.marks.settings.delay())
    found = delay.seconds if delay is not None else None
    if target.as_json:
        show_json({"delay": found})
    elif found is None:
        raise LedgerError("no delay is set: nobody has audited this cluster yet")
    else:
        line("LostBookieRecoveryDelay value in ZK", delay=found)


@click.command(epilog="Example: quire shell triggeraudit")
@target_options
def triggeraudit(target: Target) -> None:
    """Let the auditor look for lost bookies now."""
    auditor = with_context(target, operators.trigger_audit)
    if target.as_json:
        show_json({"auditor": auditor})
    else:
        say(f"auditor {auditor} was told to look for lost bookies")


@click.command(epilog="Example: quire shell forceauditchecks -calc")
@click.option("-calc", "--checkallledgerscheck", "ledgers", is_flag=True, help="Of all ledgers.")
@click.option("-ppc", "--placementpolicycheck", "placement", is_flag=True, help="Of placement.")
@click.option("-rc", "--replicascheck", "replicas", is_flag=True, help="Of replicas.")
@target_options
def forceauditchecks(target: Target, ledgers: bool, placement: bool, replicas: bool) -> None:
    """Let periodic checks be due at the auditor's next start."""
    wanted = [
        (check, name)
        for asked, check, name in (
            (ledgers, PeriodicCheck.ALL_LEDGERS, "CheckAllLedgersCTime"),
            (placement, PeriodicCheck.PLACEMENT_POLICY, "PlacementPolicyCheckCTime"),
            (replicas, PeriodicCheck.REPLICAS, "ReplicasCheckCTime"),
        )
        if asked
    ]
    if not wanted:
        raise click.UsageError("at least one of -calc, -ppc and -rc is needed")
    past_ms = time.time_ns() // 1_000_000 - _RESET_MS

    async def job(context: RecoveryContext) -> None:
        for check, _ in wanted:
            await context.marks.settings.set_last_check_ms(check, past_ms)

    with_context(target, job)
    if target.as_json:
        show_json({name: past_ms for _, name in wanted})
        return
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(past_ms / 1000))
    for _, name in wanted:
        line(f"Resetting {name}", time=f"{text}.{past_ms % 1000:03d}")
