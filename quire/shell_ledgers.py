"""Verbs of the shell on ledgers."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import click

from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.ledgers import Ledgers
from metadata.model import LedgerMetadata, check_bookie_id
from quire.access import LEDGER_ID, Target, named, run, shown_id, target_options, yes_option
from quire.output import confirm, say, show_json
from quire.shell_lines import line
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_SIMPLETEST_PAYLOAD = b"simpletest".ljust(100, b".")


@click.command(epilog="Example: quire shell listledgers -m")
@click.option("-m", "--meta", is_flag=True, help="With the record of each ledger.")
@click.option("-bookieid", help="Only ledgers that name this bookie.")
@target_options
def listledgers(target: Target, meta: bool, bookieid: str | None) -> None:
    """Name all ledgers."""
    wanted = None if bookieid is None else check_bookie_id(BookieId(bookieid))

    async def job() -> None:
        async with (
            target.ledgers() as ledgers,
            aclosing(records(ledgers, read=meta or wanted is not None)) as walk,
        ):
            async for ledger_id, found in walk:
                if wanted is not None and (found is None or not found.mentions(wanted)):
                    continue
                shown = shown_id(target, ledger_id)
                if target.as_json:
                    more = {"metadata": record_of(found)} if meta and found is not None else {}
                    show_json({"ledgerId": ledger_id, **more})
                elif meta and found is not None:
                    line("log entry", ledgerId=shown, metadata=metadata_text(found))
                else:
                    line("log entry", ledgerId=shown)

    run(job)


async def records(
    ledgers: Ledgers, *, read: bool
) -> AsyncGenerator[tuple[LedgerId, LedgerMetadata | None], None]:
    """Every ledger, ascending, with its record if that is wanted; one deleted meanwhile is not."""
    async for found in ledgers.ranges():
        for ledger_id in found.ids:
            if not read:
                yield ledger_id, None
                continue
            try:
                ledger = await ledgers.read(ledger_id)
            except LedgerError:
                if await ledgers.is_gone(ledger_id):
                    continue
                raise
            yield ledger_id, ledger.metadata


def record_of(metadata: LedgerMetadata) -> dict[str, object]:
    """A ledger's record for scripts; everything but the password."""
    return {
        "ledgerId": metadata.ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": metadata.ctime_ms,
        "digestType": metadata.digest_type.name if metadata.digest_type is not None else None,
        "allEnsembles": {str(f.first_entry_id): list(f.ensemble) for f in metadata.fragments},
        "customMetadata": {key: base64.b64encode(value).decode() for key, value in metadata.custom},
    }


def metadata_text(metadata: LedgerMetadata) -> str:
    """A ledger's record in the words of Apache's shell. The password is no operator's business."""
    parts: dict[str, object] = {
        "formatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
    }
    if metadata.is_closed:
        parts |= {"length": metadata.length, "lastEntryId": metadata.last_entry_id}
    if metadata.digest_type is not None:
        parts |= {"digestType": metadata.digest_type.name, "password": "OMITTED"}
    ensembles = (f"{f.first_entry_id}=[{', '.join(f.ensemble)}]" for f in metadata.fragments)
    custom = (f"{key}=base64:{base64.b64encode(data).decode()}" for key, data in metadata.custom)
    parts["ensembles"] = f"{{{', '.join(ensembles)}}}"
    parts["customMetadata"] = f"{{{', '.join(custom)}}}"
    return f"LedgerMetadata{{{', '.join(f'{name}={value}' for name, value in parts.items())}}}"


@click.command(epilog="Example: quire shell ledgermetadata -l 17")
@click.option("-l", "--ledgerid", type=LEDGER_ID, required=True, help="The ledger.")
@click.option("-dumptofile", type=click.Path(path_type=Path), help="Write the record to a file.")
@click.option(
    "-restorefromfile", type=click.Path(path_type=Path), help="Store the record from a file."
)
@click.option("-update", is_flag=True, help="With -restorefromfile: overwrite what is there.")
@yes_option
@target_options
def ledgermetadata(
    target: Target,
    ledgerid: int,
    dumptofile: Path | None,
    restorefromfile: Path | None,
    update: bool,
    yes: bool,
) -> None:
    """Show, save or restore the record of a ledger."""
    if dumptofile is not None and restorefromfile is not None:
        raise click.UsageError("-dumptofile and -restorefromfile exclude each other")
    if restorefromfile is not None:
        if update:
            confirm(f"Overwrite the record of ledger {ledgerid}?", yes=yes)
        with named(restorefromfile):
            data = restorefromfile.read_bytes()
        restored = decode_ledger_metadata(
            data, ledger_id=LedgerId(ledgerid), path=str(restorefromfile)
        )
        run(_restore, target, restored, update)
        if target.as_json:
            show_json({"ledgerId": ledgerid, "restored": True})
        return
    metadata = run(read_record, target, ledgerid)
    if dumptofile is not None:
        with named(dumptofile):
            dumptofile.write_bytes(encode_ledger_metadata(metadata))
    elif target.as_json:
        show_json(record_of(metadata))
    else:
        line("ledgerID", ledgerId=shown_id(target, ledgerid))
        line("log entry", metadata=metadata_text(metadata))


async def read_record(target: Target, ledger_id: int) -> LedgerMetadata:
    async with target.ledgers() as ledgers:
        return (await ledgers.read(LedgerId(ledger_id))).metadata


async def _restore(target: Target, metadata: LedgerMetadata, overwrite: bool) -> None:
    async with target.ledgers() as ledgers:
        if not overwrite:
            await ledgers.create(metadata, ledger_id=metadata.ledger_id)
            return
        found = await ledgers.read(metadata.ledger_id)
        path = ledgers.paths.path_of(metadata.ledger_id)
        data = encode_ledger_metadata(replace(metadata, creator_token=0))
        await ledgers.store.set(path, data, version=found.version)


# ---------------------------------------------------------------------- whole ledgers


@click.command(epilog="Example: quire shell deleteledger -l 17 --yes")
@click.option("-l", "--ledgerid", type=LEDGER_ID, required=True, help="The ledger.")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@yes_option
@target_options
def deleteledger(target: Target, ledgerid: int, force: bool, yes: bool) -> None:
    """Delete a ledger; bookies collect its entries later."""
    delete_ledger(target, ledgerid, yes=force or yes)


def delete_ledger(target: Target, ledger_id: int, *, yes: bool) -> None:
    run(read_record, target, ledger_id)  # one that never was is an error, and no success
    confirm(f"Delete ledger {ledger_id}? Its entries will be gone.", yes=yes)

    async def job() -> None:
        async with target.ledgers() as ledgers:
            await ledgers.delete(LedgerId(ledger_id))

    run(job)
    if target.as_json:
        show_json({"ledgerId": ledger_id, "deleted": True})
    else:
        say(f"ledger {shown_id(target, ledger_id)} is deleted")


@click.command(epilog="Example: quire shell simpletest -e 3 -w 2 -a 2 -n 1000")
@click.option("-e", "--ensemble", type=click.IntRange(1), default=3, show_default=True)
@click.option("-w", "--writeQuorum", "write", type=click.IntRange(1), default=2, show_default=True)
@click.option("-a", "--ackQuorum", "ack", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "-n", "--numEntries", "count", type=click.IntRange(1), default=1000, show_default=True
)
@target_options
def simpletest(target: Target, ensemble: int, write: int, ack: int, count: int) -> None:
    """Create a ledger, write entries, close it."""

    async def job() -> int:
        async with (
            target.client() as client,
            await client.create(
                ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
            ) as ledger,
        ):
            if not target.as_json:
                line("Ledger ID", ledgerId=shown_id(target, ledger.id))
            await ledger.append_many(_SIMPLETEST_PAYLOAD for _ in range(count))
            return ledger.id

    ledger_id = run(job)
    if target.as_json:
        show_json({"ledgerId": ledger_id, "entries": count, "lastEntryId": count - 1})
    else:
        shown = shown_id(target, ledger_id)
        say(f"{count} entries written to ledger {shown} (lastEntryId {count - 1})")
