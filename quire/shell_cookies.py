"""Verbs of the shell on cookies, the records of which directories belong to which bookie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from metadata.cookie import Cookie, decode_cookie, encode_cookie
from metadata.cookies import Cookies
from metadata.model import check_bookie_id
from metadata.store import ANY_VERSION
from quire.access import Target, named, run, target_options, yes_option
from quire.output import confirm, say, show_json
from wire.errors import LedgerError
from wire.types import BookieId

_bookie_argument = click.argument("bookie_id", metavar="BOOKIE-ID")


def _file_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-cf",
        "--cookie-file",
        "file",
        required=True,
        type=click.Path(path_type=Path),
        help="The cookie.",
    )(function)


@click.command(epilog="Example: quire shell cookie_get 127.0.0.1:3181")
@_bookie_argument
@target_options
def cookie_get(target: Target, bookie_id: str) -> None:
    """Show the cookie of a bookie."""
    checked = check_bookie_id(BookieId(bookie_id))

    async def job() -> Cookie:
        async with target.cluster() as (store, cluster):
            return (await Cookies(store, cluster.root).read(checked)).cookie

    cookie = run(job)
    if target.as_json:
        show_json(_shown(cookie))
        return
    say(f"Cookie for bookie '{bookie_id}' is:")
    say("---")
    say(encode_cookie(cookie).decode())
    say("---")


def _shown(cookie: Cookie) -> dict[str, object]:
    return {
        "bookieId": cookie.bookie_id,
        "journalDirs": cookie.journal_dirs.split(","),
        "ledgerDirs": list(cookie.ledger_paths),
        "indexDirs": list(cookie.index_paths),
        "instanceId": cookie.instance_id,
    }


@click.command(epilog="Example: quire shell cookie_create -cf cookie.txt 127.0.0.1:3181")
@_file_option
@_bookie_argument
@target_options
def cookie_create(target: Target, file: Path, bookie_id: str) -> None:
    """Store the cookie of a bookie from a file."""
    cookie = _read(file, bookie_id)

    async def job() -> None:
        async with target.cluster() as (store, cluster):
            await Cookies(store, cluster.root).create(cookie)

    run(job)
    _say_done(target, bookie_id, "created")


@click.command(epilog="Example: quire shell cookie_update -cf cookie.txt 127.0.0.1:3181 --yes")
@_file_option
@_bookie_argument
@yes_option
@target_options
def cookie_update(target: Target, file: Path, bookie_id: str, yes: bool) -> None:
    """Replace the cookie of a bookie by that of a file."""
    cookie = _read(file, bookie_id)
    confirm(f"Replace the cookie of bookie {bookie_id}?", yes=yes)

    async def job() -> None:
        async with target.cluster() as (store, cluster):
            cookies = Cookies(store, cluster.root)
            found = await cookies.read(cookie.bookie_id)
            await cookies.update(cookie, version=found.version)

    run(job)
    _say_done(target, bookie_id, "updated")


@click.command(epilog="Example: quire shell cookie_delete 127.0.0.1:3181 --yes")
@_bookie_argument
@yes_option
@target_options
def cookie_delete(target: Target, bookie_id: str, yes: bool) -> None:
    """Delete the cookie of a bookie, which is then unknown to the cluster."""
    checked = check_bookie_id(BookieId(bookie_id))
    confirm(f"Delete the cookie of bookie {bookie_id}?", yes=yes)

    async def job() -> None:
        async with target.cluster() as (store, cluster):
            await Cookies(store, cluster.root).delete(checked, version=ANY_VERSION)

    run(job)
    _say_done(target, bookie_id, "deleted")


@click.command(
    epilog="Example: quire shell cookie_generate -j /j -l /l -o cookie.txt 127.0.0.1:3181"
)
@click.option("-i", "--instance-id", help="By default that of the cluster.")
@click.option("-j", "--journal-dirs", required=True, help="Separated by commas.")
@click.option("-l", "--ledger-dirs", required=True, help="Separated by commas.")
@click.option("-ix", "--index-dirs", help="Separated by commas.")
@click.option(
    "-o", "--output-file", "file", required=True, type=click.Path(path_type=Path),
    help="Where to write the cookie.",
)  # fmt: skip
@_bookie_argument
@target_options
def cookie_generate(
    target: Target,
    instance_id: str | None,
    journal_dirs: str,
    ledger_dirs: str,
    index_dirs: str | None,
    file: Path,
    bookie_id: str,
) -> None:
    """Write the cookie of a new bookie to a file."""

    async def read_id() -> str | None:
        async with target.cluster() as (_, cluster):
            return cluster.instance_id

    cookie = Cookie.of(
        bookie_id=check_bookie_id(BookieId(bookie_id)),
        journal_dirs=journal_dirs.split(","),
        ledger_dirs=ledger_dirs.split(","),
        index_dirs=None if index_dirs is None else index_dirs.split(","),
        instance_id=instance_id or run(read_id),
    )
    with named(file):
        file.write_bytes(encode_cookie(cookie))
    if target.as_json:
        show_json({**_shown(cookie), "file": str(file)})
    else:
        say(f"Successfully saved the generated cookie to {file}")


def _read(file: Path, bookie_id: str) -> Cookie:
    """A file that names another bookie would make two of one."""
    with named(file):
        cookie = decode_cookie(file.read_bytes(), source=str(file))
    if cookie.bookie_id != bookie_id:
        raise LedgerError(f"{file} is the cookie of bookie {cookie.bookie_id}, not of {bookie_id}")
    return cookie


def _say_done(target: Target, bookie_id: str, what: str) -> None:
    if target.as_json:
        show_json({"bookieId": bookie_id, what: True})
    else:
        say(f"the cookie of bookie {bookie_id} is {what}")
