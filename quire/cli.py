"""The `quire` command: which commands there are, and what becomes of an error."""

from __future__ import annotations

import os
import signal
from typing import Final

import click

from quire.lazy import LazyGroup
from quire.output import drop_output, news
from wire.errors import LedgerError

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_BUG: Final = 70
#: Set it to see where an internal error comes from.
_TRACEBACK_VARIABLE: Final = "QUIRE_TRACEBACK"

#: Every command and where it lives. Adding one is adding a row.
_COMMANDS: Final = {
    "up": "quire.up:up",
    "down": "quire.up:down",
    "status": "quire.up:status",
    "console": "quire.console.command:console",
    "demo": "quire.demo:demo",
    "bookie": "quire.serve:bookie",
    "autorecovery": "quire.serve:autorecovery",
    "zookeeper": "quire.serve:zookeeper",
    "bookies": "quire.people:bookies",
    "ledgers": "quire.people:ledgers",
    "recovery": "quire.people_recovery:recovery",
    "sql": "quire.sql:sql",
    "doctor": "quire.doctor:doctor",
    "spark": "quire.spark_commands:spark",
    "shell": "quire.shell:shell",
}


@click.group(
    cls=LazyGroup,
    places=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="quire", message="quire %(version)s")
def quire() -> None:
    """A ledger storage service that speaks Apache BookKeeper.

    \b
    quire up            a cluster on this machine, in one command
    quire demo          what it can do, with figures
    """


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code. Every error is one line on standard error."""
    try:
        code = quire.main(arguments, prog_name="quire", standalone_mode=False)
    except BaseException as error:
        return report(error)
    return code if isinstance(code, int) else 0


def report(error: BaseException) -> int:
    """One line that says what was found and what to do; the exit code."""
    leaf = leaf_of(error)
    match leaf:
        case click.exceptions.Exit():
            return leaf.exit_code
        case click.exceptions.NoArgsIsHelpError():
            news(leaf.format_message())  # a group alone: all of its help is the one answer
            return EXIT_USAGE
        case click.UsageError():
            _say_usage(leaf)
            return EXIT_USAGE
        case click.Abort() | KeyboardInterrupt():
            return 128 + signal.SIGINT
        case click.ClickException():
            _say(leaf.format_message())
        case BrokenPipeError():
            drop_output()
            return 0
        case LedgerError():
            _say(str(leaf))
        case OSError():
            where = f"{leaf.filename}: " if leaf.filename else ""
            _say(f"{where}{leaf.strerror or leaf}")
        case SystemExit():
            return leaf.code if isinstance(leaf.code, int) else EXIT_FAILURE
        case _:
            if os.environ.get(_TRACEBACK_VARIABLE):
                raise error
            _say(
                f"internal error: {type(leaf).__name__}: {leaf}; "
                f"{_TRACEBACK_VARIABLE}=1 shows where, please report it"
            )
            return EXIT_BUG
    return EXIT_FAILURE


def leaf_of(error: BaseException) -> BaseException:
    """The error that an operator should hear: the first of ours in a group, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf_of(inner) for inner in error.exceptions]
    ours = [leaf for leaf in leaves if isinstance(leaf, LedgerError)]
    return (ours or leaves)[0]


def _say_usage(error: click.UsageError) -> None:
    command = error.ctx.command_path if error.ctx is not None else "quire"
    _say(f"{error.format_message().rstrip('.')}: see `{command} --help`")


def _say(text: str) -> None:
    news(f"quire: {' '.join(text.split())}")
