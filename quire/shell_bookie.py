"""Verbs of the shell on one bookie, running or not: its cookie, its files, its health."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from functools import partial

import click

from bookie.identity import Identity, Resolver, check_cookie, identify
from bookie.lifetimes import BookieSettings
from bookie.storage.journal_format import file_name
from bookie.storage.store_files import CURRENT, LOCK_NAME
from bookie.storage.store_inspect import FileKind, files_on_disk, read_slot
from metadata.cookie import Cookie
from metadata.cookies import Cookies
from metadata.store import ANY_VERSION
from quire.access import Target, run, target_options, yes_option
from quire.output import confirm, say, show_json
from quire.sanity import try_bookie
from quire.shell_lines import line
from runtime.files import OSFileSystem
from wire.errors import LedgerError


def _identity(settings: BookieSettings) -> Identity:
    return identify(settings.bookie, settings.bookie.port, Resolver())


def _directories(settings: BookieSettings) -> tuple[str, ...]:
    return (*settings.storage.journals, *settings.storage.ledger_directories)


# ---------------------------------------------------------------------- a new bookie


@click.command(epilog="Example: quire shell -conf bk_server.conf initbookie")
@target_options
def initbookie(target: Target) -> None:
    """Make a new bookie known to the cluster, with empty directories."""
    settings = target.bookie()
    identity = _identity(settings)
    fresh: list[bool] = []

    async def job() -> None:
        async with target.cluster() as (store, cluster):
            own = Cookie.of(
                bookie_id=identity.bookie_id,
                journal_dirs=settings.storage.journals,
                ledger_dirs=settings.storage.ledger_directories,
                instance_id=cluster.instance_id,
            )
            await check_cookie(
                own,
                identity.former_ids,
                Cookies(store, cluster.root),
                OSFileSystem(),
                _directories(settings),
                allow_expansion=False,
                on_new=lambda: fresh.append(True),
            )

    run(job)
    if target.as_json:
        show_json({"bookieId": identity.bookie_id, "new": bool(fresh)})
    else:
        how = "is initialised" if fresh else "was initialised before"
        say(f"bookie {identity.bookie_id} {how}")


@click.command(epilog="Example: quire shell -conf bk_server.conf bookieformat -n -f")
@click.option("-n", "--nonInteractive", "no_question", is_flag=True, help="Do not ask.")
@click.option("-f", "--force", is_flag=True, help="With -n: erase what is there.")
@click.option("-d", "--deleteCookie", "delete_cookie", is_flag=True, help="Delete the cookie, too.")
@yes_option
@target_options
def bookieformat(
    target: Target, no_question: bool, force: bool, delete_cookie: bool, yes: bool
) -> None:
    """Erase the data of the configured bookie, which must be stopped."""
    settings = target.bookie()
    identity = _identity(settings)
    places = [os.path.join(path, CURRENT) for path in _directories(settings)]
    full = [place for place in places if os.path.isdir(place) and os.listdir(place)]
    if full and not (no_question and force):
        if no_question:
            raise LedgerError(f"{full[0]} holds data, nothing was erased: give -f to erase it")
        confirm(f"Erase everything in {', '.join(full)}? This cannot be undone.", yes=yes)
    _erase(full)
    if delete_cookie:

        async def job() -> None:
            async with target.cluster() as (store, cluster):
                await Cookies(store, cluster.root).delete(identity.bookie_id, version=ANY_VERSION)

        run(job)
    if target.as_json:
        show_json({"bookieId": identity.bookie_id, "erased": full, "cookieDeleted": delete_cookie})
    else:
        say("Bookie format completed successfully")


def _erase(places: list[str]) -> None:
    """All or nothing, as far as a running bookie goes: every lock is taken first."""
    files = OSFileSystem()
    with ExitStack() as locks:
        for place in places:
            try:
                lock = files.lock(os.path.join(place, LOCK_NAME))
            except BlockingIOError:
                raise LedgerError(
                    f"{place} is in use by a running bookie, nothing was erased: stop it first"
                ) from None
            locks.callback(lock.close)
        for place in places:
            shutil.rmtree(place)


# ---------------------------------------------------------------------- a running bookie


@click.command(epilog="Example: quire shell -conf bk_server.conf bookiesanity -e 10 -t 5")
@click.option("-e", "--entries", type=click.IntRange(1, 100_000), default=10, show_default=True)
@click.option(
    "-t", "--timeout", "seconds", type=click.FloatRange(0.001), default=10.0, show_default=True,
    help="In seconds, for everything.",
)  # fmt: skip
@target_options
def bookiesanity(target: Target, entries: int, seconds: float) -> None:
    """Write a ledger to the configured bookie alone, read it back, delete it."""
    bookie_id = _identity(target.bookie()).bookie_id
    uri = str(target.metadata_uri())
    ledger_id = run(
        partial(
            try_bookie,
            uri,
            bookie_id,
            count=entries,
            seconds=seconds,
            security=target.security(),
        )
    )
    if target.as_json:
        show_json({"bookieId": bookie_id, "ledgerId": ledger_id, "passed": True})
    else:
        line("Read entries from ledger", entries=entries, ledgerId=ledger_id)
        say("Bookie sanity test succeeded")


# ---------------------------------------------------------------------- its files


@click.command(epilog="Example: quire shell -conf bk_server.conf lastmark")
@target_options
def lastmark(target: Target) -> None:
    """Show how far the journal is written to entry logs."""
    for path in target.bookie().storage.ledger_directories:
        slot = read_slot(OSFileSystem(), os.path.join(path, CURRENT))
        if slot is None:
            raise LedgerError(f"{path} has no mark yet: the bookie was never started")
        if target.as_json:
            show_json(
                {
                    "dir": path,
                    "journalId": slot.journal_file_id,
                    "position": slot.block_offset,
                    "checkpoint": slot.checkpoint,
                    "cleanShutdown": slot.clean_shutdown,
                }
            )
        else:
            name = file_name(slot.journal_file_id)
            journal = f"Journal Id - {slot.journal_file_id}({name})"
            say(f"LastLogMark : {journal}, Pos - {slot.block_offset}")


_GROUPS = (
    ("journal", "Journal Files", (FileKind.JOURNAL, FileKind.SPARE)),
    ("entrylog", "EntryLog/Ledger Files", (FileKind.LOG,)),
    ("index", "Index Files", (FileKind.INDEX, FileKind.OLD_INDEX)),
)


@click.command(epilog="Example: quire shell -conf bk_server.conf listfilesondisc -txn")
@click.option("-txn", "--journal", is_flag=True, help="Journal files.")
@click.option("-log", "--entrylog", is_flag=True, help="Entry logs.")
@click.option("-idx", "--index", is_flag=True, help="Indexes.")
@target_options
def listfilesondisc(target: Target, journal: bool, entrylog: bool, index: bool) -> None:
    """Name the files of the configured bookie; without an option all three kinds."""
    settings = target.bookie()
    places = [os.path.join(path, CURRENT) for path in _directories(settings)]
    missing = [place for place in places if not os.path.isdir(place)]
    if missing:
        raise LedgerError(f"{missing[0]} is missing: the bookie was never started")
    found = list(files_on_disk(OSFileSystem(), places))
    asked = {"journal": journal, "entrylog": entrylog, "index": index}
    shown = [group for group in _GROUPS if asked[group[0]] or not any(asked.values())]
    if target.as_json:
        show_json(
            {
                name: [{"path": f.path, "bytes": f.byte_count} for f in found if f.kind in kinds]
                for name, _, kinds in shown
            }
        )
        return
    for _, title, kinds in shown:
        say(f"--------- Printing the list of {title} ---------")
        for file in found:
            if file.kind in kinds:
                line("log entry", canonicalPath=file.path)
        say()
