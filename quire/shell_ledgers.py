"""Verbs of the shell on ledgers."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import click
import trio

from ledger_client import EntryReader, LedgerClient
from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.ledgers import Ledgers
from metadata.model import LedgerMetadata, check_bookie_id
from metadata.update import RenameBookie
from quire.access import LEDGER_ID, Target, named, run, shown_id, target_options, yes_option
from quire.output import confirm, progress, say, show_json
from quire.shell_lines import line, payload_lines
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
        async with target.ledgers() as ledgers:
            async for ledger_id, found in records(ledgers, read=meta or wanted is not None):
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
) -> AsyncIterator[tuple[LedgerId, LedgerMetadata | None]]:
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


# ---------------------------------------------------------------------- entries


@click.command(epilog="Example: quire shell readledger -l 17 -fe 0 -le 9 -m")
@click.option("-l", "--ledgerid", type=LEDGER_ID, required=True, help="The ledger.")
@click.option("-fe", "--firstentryid", type=click.IntRange(0), default=0, help="By default 0.")
@click.option("-le", "--lastentryid", type=click.IntRange(0), help="By default the last one.")
@click.option("-m", "--msg", is_flag=True, help="Show payloads.")
@click.option("-r", "--force-recovery", is_flag=True, help="Recover and close the ledger first.")
@target_options
def readledger(
    target: Target,
    ledgerid: int,
    firstentryid: int,
    lastentryid: int | None,
    msg: bool,
    force_recovery: bool,
) -> None:
    """Read entries. The writer of an open ledger is left alone, unless -r is given."""

    async def job() -> None:
        async with target.client() as client:
            entries = await open_range(
                client, ledgerid, firstentryid, lastentryid, recover=force_recovery
            )
            while batch := await entries.next_batch():
                for entry in batch:
                    _show_entry(target, ledgerid, entry.id, entry.payload, msg=msg)

    run(job)


async def open_range(
    client: LedgerClient, ledger_id: int, first: int, last: int | None, *, recover: bool
) -> EntryReader:
    """Entries of a ledger. An operator who can read the record knows the password anyway."""
    password = (await client.metadata(ledger_id)).password or b""
    if recover:
        reader = await client.open(ledger_id, password=password)
    else:
        reader = await client.open_no_recovery(ledger_id, password=password)
    return reader.read(first, reader.last_confirmed if last is None else last)


def _show_entry(
    target: Target, ledger_id: int, entry_id: int, payload: bytes, *, msg: bool
) -> None:
    if target.as_json:
        shown: dict[str, object] = {
            "ledgerId": ledger_id, "entryId": entry_id, "entrySize": len(payload),
        }  # fmt: skip
        if msg:
            shown["payload"] = base64.b64encode(payload).decode()
        show_json(shown)
        return
    shown_ledger = shown_id(target, ledger_id)
    line("Entry", entryId=entry_id, entrySize=len(payload), ledgerId=shown_ledger)
    if msg:
        for text in payload_lines(payload, target.entry_format):
            say(text)


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


# ---------------------------------------------------------------------- bookie ids


@click.command(epilog="Example: quire shell -conf bk_server.conf updateledgers -b hostname")
@click.option(
    "-b", "--bookieId", "form", type=click.Choice(["hostname", "ip"]), required=True,
    help="The form of the bookie's id that ledgers are to name.",
)  # fmt: skip
@click.option(
    "-s", "--updatespersec", "rate", type=click.IntRange(1, 10_000), default=5, show_default=True,
    help="Ledgers to change in a second.",
)  # fmt: skip
@click.option("-l", "--limit", type=click.IntRange(1), help="Change no more ledgers than this.")
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
    if target.as_json:
        show_json({"old": old, "new": new, "changed": changed})
    else:
        say(f"{changed} ledgers changed from {old} to {new}")


async def _rename(
    target: Target, old: BookieId, new: BookieId, rate: int, limit: int | None
) -> int:
    changed = 0
    async with target.ledgers() as ledgers:
        with progress("ledgers", None) as bar:
            async for ledger_id, found in records(ledgers, read=True):
                bar.advance()
                if found is None or not found.mentions(old):
                    continue
                await ledgers.update(ledger_id, RenameBookie(old=old, new=new))
                changed += 1
                if changed == limit:
                    break
                await trio.sleep(1 / rate)
    return changed
