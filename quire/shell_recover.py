"""Verbs of the shell on a bookie that is gone: restore what it held, forget it."""

from __future__ import annotations

from functools import partial

import click

from autorecovery.context import RecoveryContext
from autorecovery.operators_bookie import BookieReport, Progress, decommission
from autorecovery.operators_bookie import recover as recover_bookie
from metadata.model import check_bookie_id
from quire.access import LEDGER_ID, Target, shown_id, target_options, yes_option
from quire.output import confirm, progress, say, show_json
from quire.shell_lines import line
from quire.shell_recovery import with_context
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId


@click.command(epilog="Example: quire shell recover -dr 127.0.0.1:3181")
@click.option("-q", "--query", "query", is_flag=True, help="Only name the ledgers concerned.")
@click.option("-dr", "--dryrun", "dry_run", is_flag=True, help="The same.")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@click.option("-l", "--ledger", type=LEDGER_ID, help="Only this ledger.")
@click.option("-sk", "--skipOpenLedgers", "skip_open", is_flag=True, help="Leave writers alone.")
@click.option("-d", "--deleteCookie", "delete_cookie", is_flag=True, help="Forget the bookie then.")
@click.option(
    "-sku", "--skipUnrecoverableLedgers", "skip_unrecoverable", is_flag=True,
    help="Accepted: a ledger that cannot be restored never keeps the others waiting.",
)  # fmt: skip
@click.option(
    "-rate", "--replicationRate", "rate", type=click.IntRange(1), metavar="BYTES",
    help="Copy no more than this in a second.",
)  # fmt: skip
@click.argument("sources", metavar="BOOKIE-ID[,...]")
@click.argument("destination", metavar="[DESTINATION]", required=False)
@yes_option
@target_options
def recover(
    target: Target,
    query: bool,
    dry_run: bool,
    force: bool,
    ledger: int | None,
    skip_open: bool,
    delete_cookie: bool,
    skip_unrecoverable: bool,
    rate: int | None,
    sources: str,
    destination: str | None,
    yes: bool,
) -> None:
    """Restore, in this process, what stopped bookies held: on others, or all on DESTINATION."""
    bookies = [check_bookie_id(name) for name in sources.split(",")]
    only_look = query or dry_run
    confirm(f"Restore elsewhere what {', '.join(bookies)} held?", yes=yes or force or only_look)

    async def job(context: RecoveryContext) -> list[BookieReport]:
        return [
            await recover_bookie(
                context,
                bookie_id,
                dry_run=only_look,
                skip_open=skip_open,
                delete_cookie=delete_cookie,
                ledger_id=None if ledger is None else LedgerId(ledger),
                target=None if destination is None else check_bookie_id(destination),
                bytes_per_second=rate,
                progress=lambda shown: bar.set(shown.done, shown.total),
            )
            for bookie_id in bookies
        ]

    with progress("ledgers") as bar:
        reports = with_context(target, job)
    show = partial(_show_plan if only_look else _show_report, target)
    for report in reports:
        show(report)
    for report in reports:
        _refuse_stuck(report)


def _show_plan(target: Target, report: BookieReport) -> None:
    if target.as_json:
        show_json({"bookieId": report.bookie_id, "ledgers": report.skipped})
        return
    for ledger_id in report.skipped:
        line("Ledger", ledgerId=shown_id(target, ledger_id))


@click.command(epilog="Example: quire shell decommissionbookie -bookieid 127.0.0.1:3181 --yes")
@click.option(
    "-bookieid", "bookie", help="The bookie, which must be stopped; by default that of -conf."
)
@yes_option
@target_options
def decommissionbookie(target: Target, bookie: str | None, yes: bool) -> None:
    """Have everything that a stopped bookie held restored, then forget the bookie."""
    decommission_bookie(target, bookie or own_bookie(target), yes=yes)


def own_bookie(target: Target) -> BookieId:
    """The id of the configured bookie."""
    from bookie.identity import Resolver, identify

    config = target.bookie().bookie
    return identify(config, config.port, Resolver()).bookie_id


def decommission_bookie(target: Target, bookie: str, *, yes: bool) -> None:
    bookie_id = check_bookie_id(bookie)
    confirm(f"Restore what {bookie_id} held, and forget the bookie?", yes=yes)
    with progress("ledgers") as bar:

        def show(shown: Progress) -> None:
            bar.set(shown.done, shown.total)

        report = with_context(target, lambda c: decommission(c, bookie_id, progress=show))
    if report.is_done and not target.as_json:
        line(
            "The ledgers stored in the given decommissioning bookie: are properly replicated",
            bookieAddressToDecommission=bookie_id,
        )
        if report.cookie_deleted:
            line(
                "Cookie of the decommissioned bookie: is deleted successfully",
                bookieAddressToDecommission=bookie_id,
            )
    else:
        _show_report(target, report)
        _refuse_stuck(report)


def _show_report(target: Target, report: BookieReport) -> None:
    if target.as_json:
        show_json(
            {
                "bookieId": report.bookie_id,
                "ledgers": report.ledgers,
                "stuck": {str(key): verdict.text for key, verdict in report.stuck.items()},
                "skipped": report.skipped,
                "cookieDeleted": report.cookie_deleted,
            }
        )
    else:
        done = report.ledgers - len(report.stuck) - len(report.skipped)
        say(f"{done} of {report.ledgers} ledgers restored")
        for ledger_id, verdict in report.stuck.items():
            line("Not restored", ledgerId=shown_id(target, ledger_id), reason=verdict.text)
        for ledger_id in report.skipped:
            line("Skipped", ledgerId=shown_id(target, ledger_id))


def _refuse_stuck(report: BookieReport) -> None:
    """An error if not everything was done, whatever was."""
    if report.stuck:
        raise LedgerError(
            f"{len(report.stuck)} ledgers still need bookie {report.bookie_id}: "
            "see `quire recovery list`"
        )
