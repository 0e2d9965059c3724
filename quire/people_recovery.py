"""`quire recovery ...`: re-replication under names for people."""

from __future__ import annotations

import time

import click

from autorecovery import operators
from autorecovery.context import RecoveryContext
from autorecovery.core.forecast import Forecast
from quire.access import LEDGER_ID, Target, target_options, yes_option
from quire.forecast import forecast_object
from quire.output import byte_count, confirm, say, show_fields, show_json, show_table
from quire.shell_recovery import marked, shown_mark, switch, with_context
from wire.types import LedgerId


@click.group()
def recovery() -> None:
    """See what copies are missing, and how restoring them goes."""


@recovery.command(name="status", epilog="Example: quire recovery status --watch")
@click.option("--watch", is_flag=True, help="Go on until nothing is left to restore.")
@click.option("--every", type=click.FloatRange(0.1), default=5.0, help="Seconds between two looks.")
@target_options
def status(target: Target, watch: bool, every: float) -> None:
    """Show whether re-replication runs, who audits, what is left, and the forecast."""
    found = with_context(target, operators.status)
    if target.as_json:
        show_json(
            {
                "enabled": found.is_enabled,
                "auditor": found.auditor,
                "lostBookieRecoveryDelay": found.delay_seconds,
                "lastChecks": {
                    check.value: checked for check, checked in found.last_checks_ms.items()
                },
                **forecast_object(found.forecast),
            }
        )
    else:
        show_fields(
            {
                "re-replication": "enabled" if found.is_enabled else "disabled",
                "auditor": found.auditor or "nobody",
                "delay": f"{found.delay_seconds or 0} s",
                **{
                    f"last check of {check.value}": _moment(checked)
                    for check, checked in found.last_checks_ms.items()
                },
                "to restore": _left(found.forecast),
            }
        )
    if watch:
        with_context(target, lambda context: _follow(target, context, every))


async def _follow(target: Target, context: RecoveryContext, every_seconds: float) -> None:
    async for forecast in operators.follow_forecast(context, every_seconds=every_seconds):
        if target.as_json:
            show_json(forecast_object(forecast))
        else:
            say(_left(forecast))


def _left(forecast: Forecast) -> str:
    if not forecast.ledgers:
        return "nothing"
    text = f"{forecast.ledgers} ledgers, {byte_count(forecast.bytes_left)}"
    if forecast.parked:
        text += f", {forecast.parked} of them stuck"
    seconds = forecast.seconds_left
    if seconds:
        text += f", done in {seconds:.0f} s"
    return text


def _moment(time_ms: int | None) -> str:
    if time_ms is None:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1000))


@recovery.command(name="list", epilog="Example: quire recovery list")
@target_options
def list_marks(target: Target) -> None:
    """Show the ledgers that lack copies, and why each is not restored yet."""
    rows = [shown_mark(mark) for mark in marked(target)]
    if target.as_json:
        show_json(rows)
    elif not rows:
        say("no ledger lacks copies")
    else:
        show_table(
            ["ledger", "missing on", "state"],
            [[row["ledgerId"], row["missing"], row["state"]] for row in rows],
        )


@recovery.command(name="enable", epilog="Example: quire recovery enable")
@target_options
def enable(target: Target) -> None:
    """Allow re-replication in the whole cluster."""
    _switch(target, on=True)


@recovery.command(name="disable", epilog="Example: quire recovery disable")
@target_options
def disable(target: Target) -> None:
    """Forbid re-replication in the whole cluster, for maintenance."""
    _switch(target, on=False)


def _switch(target: Target, *, on: bool) -> None:
    changed = switch(target, on=on)
    state = "enabled" if on else "disabled"
    if target.as_json:
        show_json({"enabled": on, "changed": changed})
    else:
        say(f"re-replication is {state}" if changed else f"re-replication was {state} already")


@recovery.command(name="accept-loss", epilog="Example: quire recovery accept-loss 17 --yes")
@click.argument("ledger", type=LEDGER_ID, metavar="LEDGER")
@yes_option
@target_options
def accept_loss(target: Target, ledger: int, yes: bool) -> None:
    """Give up entries of a ledger that are lost, so that the rest is restored."""
    confirm(f"Go on without the lost entries of ledger {ledger}?", yes=yes)
    parked = with_context(target, lambda c: operators.accept_loss(c, LedgerId(ledger)))
    if target.as_json:
        show_json({"ledgerId": ledger, "accepted": True, "verdict": parked.verdict.text})
    else:
        say(f"ledger {ledger}: {parked.verdict.text}; the rest will be restored")
