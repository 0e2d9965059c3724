"""`quire ledgers ...`, `quire bookies ...`: the shell's jobs under names for people."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import click

from ledger_client import LedgerEntry
from ledger_client.terminal import lines_of
from metadata.discovery import Bookies
from metadata.model import check_bookie_id
from quire.access import LEDGER_ID, Target, named, run, target_options, yes_option
from quire.output import byte_count, progress, say, show_fields, show_json, show_table
from quire.shell_cluster import bookies_of, spaces_of
from quire.shell_entries import open_range
from quire.shell_ledgers import delete_ledger, read_record, record_of, records
from wire.types import BookieId

_ledger_argument = click.argument("ledger", type=LEDGER_ID, metavar="LEDGER")


@click.group()
def ledgers() -> None:
    """Write ledgers, look at them, read and delete them."""


@ledgers.command(name="list", epilog="Example: quire ledgers list --json")
@click.option("--bookie", "bookie_id", help="Only ledgers that name this bookie.")
@target_options
def list_ledgers(target: Target, bookie_id: str | None) -> None:
    """Show all ledgers: their state, shape and size."""

    async def job() -> list[dict[str, object]]:
        rows = []
        async with target.ledgers() as found, aclosing(records(found, read=True)) as walk:
            async for _, metadata in walk:
                if metadata is None or (bookie_id and not metadata.mentions(BookieId(bookie_id))):
                    continue
                rows.append(record_of(metadata))
        return rows

    rows = run(job)
    if target.as_json:
        show_json(rows)
        return
    show_table(
        ["ledger", "state", "E/Qw/Qa", "entries", "payload", "fragments"],
        [[r["ledgerId"], r["state"], _shape(r), _entries(r), _size(r), _count(r)] for r in rows],
    )


def _shape(row: dict[str, object]) -> str:
    return f"{row['ensembleSize']}/{row['writeQuorumSize']}/{row['ackQuorumSize']}"


def _entries(row: dict[str, object]) -> int | None:
    last = row["lastEntryId"]
    return last + 1 if isinstance(last, int) else None


def _size(row: dict[str, object]) -> str | None:
    length = row["length"]
    return byte_count(length) if isinstance(length, int) and row["state"] == "CLOSED" else None


def _count(row: dict[str, object]) -> int:
    ensembles = row["allEnsembles"]
    assert isinstance(ensembles, dict)
    return len(ensembles)


@ledgers.command(name="show", epilog="Example: quire ledgers show 17")
@_ledger_argument
@target_options
def show_ledger(target: Target, ledger: int) -> None:
    """Show the record of a ledger, and which bookies hold what."""
    record = record_of(run(read_record, target, ledger))
    if target.as_json:
        show_json(record)
        return
    ensembles = record.pop("allEnsembles")
    assert isinstance(ensembles, dict)
    custom = record.pop("customMetadata")
    assert isinstance(custom, dict)
    show_fields(record | custom)
    show_table(["from entry", "bookies"], ensembles.items())


@ledgers.command(name="append", epilog="Example: seq 1 1000 | quire ledgers append")
@click.argument("files", nargs=-1)
@click.option("--ensemble", type=click.IntRange(1), default=3, show_default=True)
@click.option("--write-quorum", type=click.IntRange(1), default=2, show_default=True)
@click.option("--ack-quorum", type=click.IntRange(1), default=2, show_default=True)
@target_options
def append(
    target: Target, files: tuple[str, ...], ensemble: int, write_quorum: int, ack_quorum: int
) -> None:
    """Make a ledger with one entry per line, of FILES or the standard input, and close it.

    It shall be spread over so many bookies (--ensemble), keep so many copies of each entry
    (--write-quorum), and wait for so many of them (--ack-quorum).
    """

    async def job() -> tuple[int, int]:
        async with (
            target.client() as client,
            await client.create(
                ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
            ) as ledger,
            aclosing(lines_of(files or ("-",))) as lines,
        ):
            with progress("entries") as bar:
                async for some, _ in lines:
                    await ledger.append_many(some)
                    bar.advance(len(some))
        return ledger.id, ledger.last_confirmed + 1

    ledger_id, entries = run(job)
    if target.as_json:
        show_json({"ledgerId": ledger_id, "entries": entries})
    else:
        say(f"ledger {ledger_id}: {entries} entries, closed")


@ledgers.command(name="read", epilog="Example: quire ledgers read 17 --first 0 --last 9")
@_ledger_argument
@click.option("--first", type=click.IntRange(0), default=0, show_default=True)
@click.option("--last", type=click.IntRange(0), help="By default the last one.")
@click.option("--recover", is_flag=True, help="Fence and close the ledger first.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; by default stdout."
)
@target_options
def read_ledger(
    target: Target, ledger: int, first: int, last: int | None, recover: bool, output: Path | None
) -> None:
    """Write payloads, one per line. The writer of an open ledger is left alone."""

    async def job(out: BinaryIO) -> None:
        async with target.client() as client:
            entries = await open_range(client, ledger, first, last, recover=recover)
            while batch := await entries.next_batch():
                if target.as_json:
                    out.writelines(_json_line(entry) for entry in batch)
                else:
                    out.writelines(entry.payload + b"\n" for entry in batch)
                out.flush()

    if output is None:
        run(job, sys.stdout.buffer)
        return
    with named(output), output.open("wb") as file:
        run(job, file)


def _json_line(entry: LedgerEntry) -> bytes:
    text = entry.payload.decode(errors="replace")
    return json.dumps({"entryId": entry.id, "payload": text}).encode() + b"\n"


@ledgers.command(name="delete", epilog="Example: quire ledgers delete 17 --yes")
@_ledger_argument
@yes_option
@target_options
def delete(target: Target, ledger: int, yes: bool) -> None:
    """Delete a ledger; bookies collect its entries later."""
    delete_ledger(target, ledger, yes=yes)


# ---------------------------------------------------------------------- bookies


@click.group()
def bookies() -> None:
    """Look at bookies."""


@bookies.command(name="list", epilog="Example: quire bookies list")
@target_options
def list_bookies(target: Target) -> None:
    """Show all bookies that have a cookie or are registered, and their state."""
    registered, known = run(bookies_of, target)
    rows = [
        {"bookie": bookie_id, "state": _state(registered, bookie_id)}
        for bookie_id in sorted({*known, *registered.all})
    ]
    if target.as_json:
        show_json(rows)
    else:
        show_table(["bookie", "state"], [[row["bookie"], row["state"]] for row in rows])


def _state(registered: Bookies, bookie_id: BookieId) -> str:
    if bookie_id in registered.writable:
        return "writable"
    return "read-only" if bookie_id in registered.read_only else "absent"


@bookies.command(name="info", epilog="Example: quire bookies info")
@target_options
def bookie_info(target: Target) -> None:
    """Show the space of every registered bookie."""
    spaces = run(spaces_of, target)
    if target.as_json:
        show_json(
            [
                {"bookie": s.bookie_id, "freeBytes": s.free_bytes, "totalBytes": s.total_bytes}
                for s in spaces
            ]
        )
        return
    show_table(
        ["bookie", "free", "total"],
        [[s.bookie_id, byte_count(s.free_bytes), byte_count(s.total_bytes)] for s in spaces],
    )
    say(f"free in all: {byte_count(sum(s.free_bytes for s in spaces))}")


@bookies.command(name="safe-to-stop", epilog="Example: quire bookies safe-to-stop 127.0.0.1:3181")
@click.argument("bookie", metavar="BOOKIE-ID")
@target_options
def safe_to_stop(target: Target, bookie: str) -> int:
    """Say whether every entry keeps its ack quorum if a bookie is stopped now.

    The exit code is 1 if it is not safe.
    """
    from autorecovery.operators import safe_to_stop as ask
    from quire.shell_recovery import with_context

    bookie_id = check_bookie_id(bookie)
    with progress("ledgers") as bar:
        answer = with_context(target, lambda c: ask(c, bookie_id, progress=lambda n: bar.set(n, n)))
    if target.as_json:
        show_json(
            {
                "bookie": bookie_id,
                "safe": answer.is_safe,
                "ledgers": answer.ledgers,
                "belowAckQuorum": answer.below_ack_quorum,
                "unreadable": answer.unreadable,
            }
        )
    else:
        say(answer.text)
    return 0 if answer.is_safe else 1


@bookies.command(name="decommission", epilog="Example: quire bookies decommission 127.0.0.1:3181")
@click.argument("bookie", metavar="BOOKIE-ID")
@yes_option
@target_options
def decommission(target: Target, bookie: str, yes: bool) -> None:
    """Have everything that a stopped bookie held restored elsewhere, then forget the bookie."""
    from quire.shell_recover import decommission_bookie

    decommission_bookie(target, bookie, yes=yes)
