"""Verbs of the shell on the storage of one bookie: ledgers, logs, journals, the index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from bookie.lifetimes import BookieSettings
from bookie.storage.consistency import check_directory
from bookie.storage.entry_log_format import log_id_of_name, log_name
from bookie.storage.entry_log_inspect import entry_logs, inspect_entries
from bookie.storage.index import open_index
from bookie.storage.index_interface import Index
from bookie.storage.journal_format import file_id_of, file_name
from bookie.storage.journal_inspect import (
    RecordSummary,
    inspect_blocks,
    inspect_header,
    inspect_records,
    journal_files,
)
from bookie.storage.rebuild import rebuild_index
from bookie.storage.store_files import CURRENT, StoreFiles
from bookie.storage.store_inspect import LedgerReport, inspect_ledger
from quire.access import LEDGER_ID, Target, named, shown_id, target_options, yes_option
from quire.output import confirm, progress, say, show_json
from quire.shell_lines import line, payload_lines
from runtime.files import OSFileSystem
from wire.errors import CorruptionError, LedgerError

_FILES = OSFileSystem()


@contextmanager
def _stopped_store(settings: BookieSettings) -> Iterator[StoreFiles]:
    """The directories of a bookie that does not run, locked against its start meanwhile."""
    storage = settings.storage
    for path in (*storage.journals, *storage.ledger_directories):
        if not os.path.isdir(os.path.join(path, CURRENT)):
            raise LedgerError(f"{path} holds no data of a bookie: the bookie was never started")
    with closing(
        StoreFiles(
            _FILES,
            storage.journals,
            storage.ledger_directories,
            new_store_id=_refuse_new,
            allow_expansion=True,
        )
    ) as store:
        yield store


def _refuse_new() -> NoReturn:
    raise LedgerError("the directories hold no data of a bookie: it was never started")


@contextmanager
def _opened_index(settings: BookieSettings, store: StoreFiles, path: str) -> Iterator[Index]:
    options = settings.storage.index_options()
    place = os.path.join(path, "index")
    with closing(open_index(place, store_id=store.store_id, options=options)) as index:
        yield index


# ---------------------------------------------------------------------- one ledger


@click.command(epilog="Example: quire shell -conf bk_server.conf ledger -m 17")
@click.option("-m", "--meta", is_flag=True, help="Show what the bookie knows of the ledger, too.")
@click.argument("ledger_id", type=LEDGER_ID, metavar="LEDGER-ID")
@target_options
def ledger(target: Target, meta: bool, ledger_id: int) -> None:
    """Show where the configured bookie, stopped, has the entries of a ledger."""
    settings = target.bookie()
    is_known = False
    with _stopped_store(settings) as store:
        for path in store.ledger_paths:
            with _opened_index(settings, store, path) as index:
                report = inspect_ledger(index, ledger_id)
            if report.state is None and not report.runs:
                continue
            is_known = True
            _show_ledger(target, report, meta=meta)
    if not is_known:
        raise LedgerError(f"ledger {shown_id(target, ledger_id)} is not on this bookie")


def _show_ledger(target: Target, report: LedgerReport, *, meta: bool) -> None:
    state = report.state
    about = {
        "fenced": state.fenced if state is not None else None,
        "limbo": state.limbo if state is not None else None,
        "entries": report.entry_count,
        "bytes": report.body_bytes,
    }
    if meta and target.as_json:
        show_json({"ledgerId": report.ledger_id, **about})
    elif meta:
        line("Ledger", ledgerId=shown_id(target, report.ledger_id), **about)
    for run in report.runs:
        for entry_id in run.entry_ids():
            place = run.locate(entry_id)
            assert place is not None
            if target.as_json:
                show_json({"entryId": entry_id, "log": run.log_id, "position": place[0]})
            else:
                say(f"entry {entry_id}\t:\t(log: {run.log_id}, pos: {place[0]})")


# ---------------------------------------------------------------------- logs and journals


@click.command(epilog="Example: quire shell -conf bk_server.conf readlog -l 17 0")
@click.option("-m", "--msg", is_flag=True, help="Show payloads.")
@click.option("-l", "--ledgerid", type=LEDGER_ID, help="Only this ledger.")
@click.option("-e", "--entryid", type=click.IntRange(0), help="Only this entry.")
@click.option("-sp", "--startpos", type=click.IntRange(0), help="From this offset on.")
@click.option("-ep", "--endpos", type=click.IntRange(0), help="Up to this offset.")
@click.argument("log", metavar="LOG-ID|FILE")
@target_options
def readlog(
    target: Target,
    msg: bool,
    ledgerid: int | None,
    entryid: int | None,
    startpos: int | None,
    endpos: int | None,
    log: str,
) -> None:
    """Show the entries of an entry log: its number in decimal, or its file name."""
    path, log_id = _find_log(target.bookie(), log)
    if not target.as_json:
        line("Scan entry log", file=os.path.basename(path), logId=log_id)
    damaged = 0
    for found in inspect_entries(_FILES, path, ledger_id=ledgerid, entry_id=entryid):
        if isinstance(found, CorruptionError):
            damaged += 1
            line("Damaged", error=found)
            continue
        if not (startpos or 0) <= found.offset <= (found.offset if endpos is None else endpos):
            continue
        shown: dict[str, object] = {
            "entryId": found.entry_id,
            "entrySize": found.entry_bytes,
            "ledgerId": shown_id(target, found.ledger_id),
            "position": found.offset,
        }
        if target.as_json:
            show_json({**shown, "ledgerId": found.ledger_id, "lastAddConfirmed": found.lac})
            continue
        line("Entry", **shown)
        about = {"entryId": found.entry_id, "ledgerId": shown["ledgerId"], "type": "DATA"}
        line("Entry", lastAddConfirmed=found.lac, **about)
        if msg:
            _say_payload(target, path, found.offset, found.entry_bytes)
    if damaged:
        raise LedgerError(f"{path}: {damaged} parts are damaged: check the disk, then re-replicate")


def _say_payload(target: Target, path: str, offset: int, size: int) -> None:
    """The entry behind its header; the digest, whose kind a log does not know, is part of it."""
    with open(path, "rb") as file:
        file.seek(offset)
        entry = file.read(size)
    for text in payload_lines(entry[32:], target.entry_format):
        say(text)


def _find_log(settings: BookieSettings, given: str) -> tuple[str, int]:
    log_id = int(given) if given.isdecimal() else log_id_of_name(given.rjust(12, "0"))
    if log_id is None:
        raise click.UsageError(f"{given!r} is neither the number nor the file name of an entry log")
    for directory in settings.storage.ledger_directories:
        place = os.path.join(directory, CURRENT)
        if os.path.isdir(place):
            for found, path in entry_logs(_FILES, place):
                if found == log_id:
                    return path, found
    raise LedgerError(f"there is no entry log {log_name(log_id)}: see `listfilesondisc -log`")


@click.command(epilog="Example: quire shell -conf bk_server.conf readjournal 0000000000000001.jnl")
@click.option("-dir", "directory", help="The journal directory, where there are several.")
@click.option("-m", "--msg", is_flag=True, help="Show what state records say.")
@click.argument("journal", metavar="JOURNAL-ID|FILE|PATH")
@target_options
def readjournal(target: Target, directory: str | None, msg: bool, journal: str) -> None:
    """Show the records of a journal file: its number in decimal, its name, or its path."""
    path = _find_journal(target, directory, journal)
    header = inspect_header(_FILES, path)
    if not target.as_json:
        line("Scan journal", file=os.path.basename(path), journalId=header.file_id)
    for block in inspect_blocks(_FILES, path):
        for record in inspect_records(block, path):
            _show_record(target, record, block.position.offset, msg=msg)


def _show_record(target: Target, record: RecordSummary, position: int, *, msg: bool) -> None:
    shown: dict[str, object] = {
        "type": record.name,
        "ledgerId": record.ledger_id,
        "entrySize": record.record_bytes,
        "position": position,
    }
    if record.first_entry_id is not None:
        shown["entryId"] = record.first_entry_id
        if record.entry_count > 1:
            shown |= {"lastEntryId": record.last_entry_id, "entries": record.entry_count}
    if msg and record.detail:
        shown["detail"] = record.detail
    if target.as_json:
        show_json(shown)
    else:
        line("Entry", **{**shown, "ledgerId": shown_id(target, record.ledger_id)})


def _find_journal(target: Target, directory: str | None, given: str) -> str:
    if os.sep in given:
        with named(given):
            os.stat(given)
        return given
    file_id = int(given) if given.isdecimal() else file_id_of(given)
    if file_id is None:
        raise click.UsageError(f"{given!r} is neither the number nor the name of a journal file")
    directories = target.bookie().storage.journals
    if directory is not None:
        directories = tuple(path for path in directories if Path(path) == Path(directory))
    for path in directories:
        place = os.path.join(path, CURRENT)
        if os.path.isdir(place):
            for found, file in journal_files(_FILES, place):
                if found == file_id:
                    return file
    raise LedgerError(f"there is no journal {file_name(file_id)}: see `listfilesondisc -txn`")


# ---------------------------------------------------------------------- the index


@click.command(epilog="Example: quire shell -conf bk_server.conf localconsistencycheck")
@target_options
def localconsistencycheck(target: Target) -> None:
    """Compare index and entry logs of the configured bookie, which must be stopped."""
    settings = target.bookie()
    problems = []
    if not target.as_json:
        say("=== Performing local consistency check ===")
    with _stopped_store(settings) as store:
        for path in store.ledger_paths:
            with (
                _opened_index(settings, store, path) as index,
                progress(f"checking {path}") as bar,
            ):
                report = check_directory(
                    _FILES,
                    path,
                    index,
                    store_id=store.store_id,
                    on_progress=bar.set,
                )
            problems += report.problems
            found = {"dir": path, "logs": report.logs, "runs": report.runs}
            found |= {"entries": report.entries, "damagedRuns": report.damaged_runs}
            if target.as_json:
                show_json({**found, "problems": report.problems})
            else:
                line("Checked", **found)
                for problem in report.problems:
                    line("Problem", problem=problem)
    if problems:
        raise LedgerError(f"{len(problems)} problems found; the first: {problems[0]}")
    if not target.as_json:
        say("=== Check passed ===")


@click.command(
    name="rebuild-db-ledger-locations-index",
    epilog="Example: quire shell -conf bk_server.conf rebuild-db-ledger-locations-index --yes",
)
@click.option("--dry-run", is_flag=True, help="Read everything and write nothing.")
@yes_option
@target_options
def rebuild_index_command(target: Target, dry_run: bool, yes: bool) -> None:
    """Make a new index out of the entry logs of the configured bookie, which must be stopped."""
    settings = target.bookie()
    storage = settings.storage
    with _stopped_store(settings) as store:
        paths = list(store.ledger_paths)
    question = "Rebuild the index? Every ledger will be in doubt until it was compared with others."
    confirm(question, yes=yes or dry_run)
    if not target.as_json:
        say("=== Rebuilding DBStorage locations index ===")
    for number, path in enumerate(paths):
        with progress(f"rebuilding {path}") as bar:
            report = rebuild_index(
                _FILES,
                storage.journals,
                storage.ledger_directories,
                number,
                open_index=partial(open_index, options=storage.index_options()),
                dry_run=dry_run,
                on_progress=bar.set,
            )
        found: dict[str, object] = {"dir": path, "logs": report.logs, "runs": report.runs}
        found |= {"entries": report.entries, "ledgers": report.ledgers}
        if target.as_json:
            show_json({**found, "setAside": report.set_aside, "problems": report.problems})
            continue
        line("Rebuilt" if not dry_run else "Would rebuild", **found)
        for name in report.set_aside:
            line("Set aside", path=name)
        for problem in report.problems:
            line("Problem", problem=problem)
    if not target.as_json:
        if not dry_run:
            say("Start the bookie with dataIntegrityChecking=true: it refuses to serve without.")
        say("-- Done rebuilding DBStorage locations index --")
