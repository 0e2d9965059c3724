"""The commands of `python -m ledger_client`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Final

import click
import trio

from ledger_client import LedgerClient, LedgerError
from ledger_client.security import read_security
from ledger_client.terminal import Terminal, drop_output, lines_of, progress, total_bytes
from metadata.model import LedgerMetadata
from runtime.service import assertions_are_on
from wire.types import DigestType

#: The name that bookies take this setting from, too.
_URI_VARIABLE: Final = "BK_metadataServiceUri"
EXIT_FAILURE: Final = 1
EXIT_INTERRUPTED: Final = 130

_Work = Callable[..., Coroutine[Any, Any, None]]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--uri", envvar=_URI_VARIABLE,
    help=f"Where the metadata is, zk://host:2181/ledgers; or set {_URI_VARIABLE}.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON value per line.")
@click.pass_context
def ledger_client(context: click.Context, uri: str | None, as_json: bool) -> None:
    """Write, read and look after ledgers."""
    context.obj = (uri, as_json)


def _command(work: _Work) -> Callable[..., None]:
    """A command out of a coroutine function on an open client."""

    @ledger_client.command(name=work.__name__.strip("_"), help=work.__doc__)
    @click.option("--json", "as_json", is_flag=True, help="One JSON value per line.")
    @click.pass_context  # type: ignore[arg-type]  # which does not know `wraps`
    @wraps(work)  # it keeps the options that are declared on `work`
    def run(context: click.Context, as_json: bool, **given: Any) -> None:
        uri, all_json = context.obj
        if not uri:
            raise click.UsageError("say where the metadata is: --uri zk://host:2181/ledgers")
        terminal = Terminal(as_json=as_json or all_json)

        async def main() -> None:
            async with LedgerClient(uri, **read_security()) as client:
                await work(client, terminal, **given)

        try:
            trio.run(main)
        except LedgerError as error:
            terminal.fail(error)
            context.exit(EXIT_FAILURE)
        except BrokenPipeError:  # `| head` has seen enough
            drop_output()
        except KeyboardInterrupt:
            context.exit(EXIT_INTERRUPTED)

    return run


_PASSWORD: Final = click.option(
    "--password", default="", envvar="LEDGER_PASSWORD", help="Of the ledger; or LEDGER_PASSWORD."
)
_LEDGER: Final = click.argument("ledger", type=int)
_FIRST: Final = click.option("--first", type=int, default=0, help="Entry to begin with.")


def _shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a new ledger is to be like."""
    option = partial(click.option, show_default=True)
    for decorate in reversed(
        (
            option("--ensemble", type=int, default=3, help="Bookies that share it."),
            option("--write-quorum", type=int, default=2, help="Copies of an entry."),
            option("--ack-quorum", type=int, default=2, help="Copies to wait for."),
            _PASSWORD,
            option("--digest", default="CRC32C", type=click.Choice([d.name for d in DigestType])),
            option("--id", "ledger_id", type=int, help="Instead of the next free one."),
            option("--meta", multiple=True, metavar="KEY=VALUE", help="Custom metadata."),
        )
    ):
        function = decorate(function)
    return function


# ---------------------------------------------------------------------- writing


@_command
@_shape
async def _create(client: LedgerClient, terminal: Terminal, **given: Any) -> None:
    """Make an empty ledger, closed: nobody can write to it later."""
    await _fill(client, terminal, files=(), **given)


@_command
@_shape
@click.argument("files", nargs=-1)
async def _append(
    client: LedgerClient, terminal: Terminal, files: tuple[str, ...], **given: Any
) -> None:
    """Make a ledger with one entry per line, of FILES or the standard input, and close it."""
    await _fill(client, terminal, files=files or ("-",), **given)


async def _fill(
    client: LedgerClient,
    terminal: Terminal,
    *,
    files: tuple[str, ...],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    password: str,
    digest: str,
    ledger_id: int | None,
    meta: tuple[str, ...],
) -> None:
    pairs = [pair.partition("=") for pair in meta]
    async with await client.create(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        password=password.encode(),
        digest_type=DigestType[digest],
        ledger_id=ledger_id,
        custom_metadata={key: value.encode() for key, _, value in pairs},
    ) as ledger:
        with progress(f"ledger {ledger.id}", total_bytes(files)) as bar:
            async for lines, read_bytes in lines_of(files):
                await ledger.append_many(lines)
                bar.advance(len(lines), read_bytes)
    end = {"ledger": ledger.id, "entries": ledger.last_confirmed + 1}
    terminal.say(end, str(ledger.id))


# ---------------------------------------------------------------------- reading


@_command
@_LEDGER
@_PASSWORD
@_FIRST
@click.option("--last", type=int, help="Entry to end with.")
@click.option("--no-recovery", is_flag=True, help="Leave the writer alone.")
async def _read(
    client: LedgerClient,
    terminal: Terminal,
    ledger: int,
    password: str,
    first: int,
    last: int | None,
    no_recovery: bool,
) -> None:
    """Write the entries of a ledger, one per line. An open ledger is recovered first."""
    open_ledger = client.open_no_recovery if no_recovery else client.open
    reader = await open_ledger(ledger, password=password.encode())
    entries = reader.read(first, reader.last_confirmed if last is None else last)
    while batch := await entries.next_batch():
        await terminal.write_entries(batch)


@_command
@_LEDGER
@_PASSWORD
@_FIRST
async def _tail(
    client: LedgerClient, terminal: Terminal, ledger: int, password: str, first: int
) -> None:
    """Write entries as they are confirmed, until the ledger is closed."""
    async with await client.tail(ledger, password=password.encode(), first=first) as tail:
        while batch := await tail.next_batch():
            await terminal.write_entries(batch)


@_command
@_LEDGER
@_PASSWORD
async def _recover(client: LedgerClient, terminal: Terminal, ledger: int, password: str) -> None:
    """Fence a ledger, find its end and close it."""
    reader = await client.open(ledger, password=password.encode())
    end = {"ledger": reader.id, "last_entry": reader.last_confirmed, "length": reader.length}
    terminal.say(end, f"closed at entry {reader.last_confirmed}, {reader.length} bytes")


# ---------------------------------------------------------------------- records


@_command
async def _list(client: LedgerClient, terminal: Terminal) -> None:
    """Name all ledgers, ascending."""
    async for ledger_id in client.list():
        terminal.say({"ledger": ledger_id}, str(ledger_id))


@_command
@_LEDGER
async def _show(client: LedgerClient, terminal: Terminal, ledger: int) -> None:
    """Show the record of a ledger."""
    shown = _shown(await client.metadata(ledger))
    terminal.say(shown, "\n".join(f"{name}: {value}" for name, value in shown.items()))


@_command
@_LEDGER
@click.option("--yes", is_flag=True, help="Do not ask.")
async def _delete(client: LedgerClient, terminal: Terminal, ledger: int, yes: bool) -> None:
    """Delete a ledger. Asks before, on a terminal."""
    if not yes and sys.stdin.isatty() and not click.confirm(f"Delete ledger {ledger}?", err=True):
        terminal.say({"ledger": ledger, "deleted": False}, "nothing was changed")
        return
    await client.delete(ledger)
    terminal.say({"ledger": ledger, "deleted": True}, f"ledger {ledger} is deleted")


@_command
async def _bookies(client: LedgerClient, terminal: Terminal) -> None:
    """List the bookies, with their disks."""
    bookies = client.bookies()
    for bookie_id in sorted(bookies.all):
        state = "writable" if bookie_id in bookies.writable else "read-only"
        value: dict[str, object] = {"bookie": bookie_id, "state": state}
        text = f"{bookie_id} {state}"
        try:
            space = await client.bookie_info(bookie_id)
        except LedgerError as error:
            value["error"] = str(error)
            text += f", {error}"
        else:
            value |= {"total_bytes": space.total_bytes, "free_bytes": space.free_bytes}
            text += f", {space.free_bytes} of {space.total_bytes} bytes free"
        terminal.say(value, text)


def _shown(metadata: LedgerMetadata) -> dict[str, object]:
    """Everything but the password."""
    return {
        "ledger": metadata.ledger_id,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": metadata.digest_type.name if metadata.digest_type is not None else None,
        "last_entry": metadata.last_entry_id,
        "length": metadata.length,
        "fragments": {str(f.first_entry_id): list(f.ensemble) for f in metadata.fragments},
        "custom": {key: value.decode(errors="replace") for key, value in metadata.custom},
    }


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code."""
    if not assertions_are_on():
        sys.stderr.write("ledger_client: refusing to run without assertions: no -O, please\n")
        return EXIT_FAILURE
    try:
        result = ledger_client.main(
            arguments, prog_name="python -m ledger_client", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        os.write(sys.stderr.fileno(), b"\n")
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0
