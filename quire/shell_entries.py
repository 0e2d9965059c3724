"""Verbs of the shell on the entries of a ledger."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Final

import click

from ledger_client import EntryReader, LedgerClient, LedgerEntry
from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.environment import Access, Environment
from ledger_client.errors import ClientClosedError
from ledger_client.lac import read_lac
from ledger_client.requests import FoundEntries, Mailbox, Reads
from metadata.model import LedgerMetadata, check_bookie_id
from quire.access import LEDGER_ID, Target, run, shown_id, target_options
from quire.output import say, show_json
from quire.shell_lines import line, payload_lines
from wire.entry import decode_entries
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

#: What one question to one bookie may bring.
_ENTRIES_MAX: Final = 1000
_BYTES_MAX: Final = 1024 * 1024


@click.command(epilog="Example: quire shell readledger -l 17 -fe 0 -le 9 -m")
@click.option("-l", "--ledgerid", type=LEDGER_ID, required=True, help="The ledger.")
@click.option("-fe", "--firstentryid", type=click.IntRange(0), default=0, help="By default 0.")
@click.option("-le", "--lastentryid", type=click.IntRange(0), help="By default the last one.")
@click.option("-m", "--msg", is_flag=True, help="Show payloads.")
@click.option("-r", "--force-recovery", is_flag=True, help="Recover and close the ledger first.")
@click.option("-b", "--bookie", help="Read what this bookie has, and ask no other.")
@target_options
def readledger(
    target: Target,
    ledgerid: int,
    firstentryid: int,
    lastentryid: int | None,
    msg: bool,
    force_recovery: bool,
    bookie: str | None,
) -> None:
    """Read entries. The writer of an open ledger is left alone, unless -r is given.

    With -b only entries that should be on this bookie are read. Each one that is not there is
    named, and the exit code is 1 then.
    """

    async def job() -> None:
        async with target.client() as client:
            entries = await open_range(
                client, ledgerid, firstentryid, lastentryid, recover=force_recovery
            )
            while batch := await entries.next_batch():
                for entry in batch:
                    _show_entry(target, ledgerid, entry, msg=msg)

    if bookie is None:
        run(job)
        return
    if force_recovery:
        raise click.UsageError("-b and -r exclude each other: a recovery asks all bookies")
    holder = check_bookie_id(bookie)
    run(_read_from, target, LedgerId(ledgerid), holder, firstentryid, lastentryid, msg)


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


def _show_entry(target: Target, ledger_id: int, entry: LedgerEntry, *, msg: bool) -> None:
    if target.as_json:
        shown: dict[str, object] = {
            "ledgerId": ledger_id, "entryId": entry.id, "entrySize": len(entry.payload),
        }  # fmt: skip
        if msg:
            shown["payload"] = base64.b64encode(entry.payload).decode()
        show_json(shown)
        return
    shown_ledger = shown_id(target, ledger_id)
    line("Entry", entryId=entry.id, entrySize=len(entry.payload), ledgerId=shown_ledger)
    if msg:
        for text in payload_lines(entry.payload, target.entry_format):
            say(text)


# ---------------------------------------------------------------------- one bookie


async def _read_from(
    target: Target,
    ledger_id: LedgerId,
    bookie_id: BookieId,
    first: int,
    last: int | None,
    msg: bool,
) -> None:
    """Show what one bookie has of the entries that it should have; an error if that is not all."""
    from autorecovery.worker_repair import access_of

    async with target.recovery() as context:
        client = context.client
        metadata = (await client.ledgers.read(ledger_id)).metadata
        access = access_of(metadata)
        if last is None:
            last = await _last_confirmed(client, access, metadata)
        lacking = 0
        is_there = next(_runs_on(metadata, bookie_id, first, last), None) is not None
        if not is_there:
            raise LedgerError(
                f"ledger {ledger_id} has no entry of {first}..{last} on bookie {bookie_id}: "
                f"its bookies are {', '.join(sorted(metadata.bookies()))}"
            )
        for run_ids in _runs_on(metadata, bookie_id, first, last):
            entry_ids = run_ids
            while entry_ids:
                found, outcome = await _ask(client, access, bookie_id, entry_ids)
                for entry_id, payload in zip(entry_ids, found, strict=False):
                    _show_entry(target, ledger_id, LedgerEntry(entry_id, payload), msg=msg)
                entry_ids = entry_ids[len(found) :]
                if entry_ids and outcome is not Outcome.OK:
                    _refuse_silent(bookie_id, outcome)
                    _show_lacking(target, ledger_id, entry_ids[0], outcome)
                    lacking += 1
                    entry_ids = entry_ids[1:]
    if lacking:
        raise LedgerError(
            f"bookie {bookie_id} lacks {lacking} entries of ledger {ledger_id} that it should "
            "have: `quire shell readledger` without -b reads other copies"
        )


def _runs_on(
    metadata: LedgerMetadata, bookie_id: BookieId, first: int, last: int
) -> Iterator[range]:
    """Neighbouring entries that the record puts on a bookie, few enough for one question."""
    distribution = Distribution.of(metadata)
    for found in metadata.ranges():
        fragment = found.fragment
        if bookie_id not in fragment.ensemble:
            continue
        slot = fragment.ensemble.index(bookie_id)
        start = max(first, fragment.first_entry_id)
        end = last if found.last_entry_id is None else min(last, found.last_entry_id)
        while start <= end:
            stop = start
            while (
                stop <= end
                and stop - start < _ENTRIES_MAX
                and distribution.holds(slot=slot, entry_id=stop)
            ):
                stop += 1
            if stop > start:
                yield range(start, stop)
            start = max(stop, start + 1)


async def _ask(
    client: Environment, access: Access, bookie_id: BookieId, entry_ids: range
) -> tuple[Sequence[bytes], Outcome]:
    """The payloads that the answer begins with, and how it ended behind them."""
    mail = Mailbox()
    with client.waking(mail):
        request = Reads(
            request_id=next(client.request_ids),
            sink=mail.take,
            ledger_id=access.ledger_id,
            entry_ids=entry_ids,
            bytes_max=_BYTES_MAX,
        )
        client.pool.ask(bookie_id, request)
        answers = await mail.wait()
    if not answers:
        raise ClientClosedError(f"bookie {bookie_id}: the client was closed meanwhile")
    (answer,) = answers
    if not isinstance(answer.content, FoundEntries):
        return (), answer.outcome
    found = answer.content
    count = min(found.entries, len(entry_ids))
    entries = decode_entries(
        found.data,
        found.bounds[: count + 1],
        found.skip,
        ledger_id=access.ledger_id,
        entry_ids=entry_ids[:count],
        digest=access.digest,
    )
    return entries.payloads, answer.outcome if entries.error is None else Outcome.CORRUPT


async def _last_confirmed(client: Environment, access: Access, metadata: LedgerMetadata) -> int:
    if metadata.last_entry_id is not None:
        return metadata.last_entry_id
    mail = Mailbox()
    with client.waking(mail):
        return await read_lac(client, access, metadata, mail)


def _refuse_silent(bookie_id: BookieId, outcome: Outcome) -> None:
    """A bookie that does not answer lacks nothing, as far as anybody knows."""
    if outcome in (Outcome.NOT_CONNECTED, Outcome.TIMEOUT, Outcome.CLIENT_CLOSED):
        raise LedgerError(
            f"bookie {bookie_id} cannot be read ({outcome.name}): see whether it is running"
        )


def _show_lacking(target: Target, ledger_id: LedgerId, entry_id: int, outcome: Outcome) -> None:
    if target.as_json:
        show_json({"ledgerId": ledger_id, "entryId": entry_id, "error": outcome.name})
    else:
        line("Failed to read entry", entryId=entry_id, error=outcome.name)
