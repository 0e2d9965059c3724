"""`python -m ledger_client`: ledgers from the command line.

python -m ledger_client --uri zk://127.0.0.1:2181/ledgers append < lines.txt
python -m ledger_client --uri zk://127.0.0.1:2181/ledgers read 17
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import BinaryIO, Final

import trio

from ledger_client import LedgerClient, LedgerEntry, LedgerError
from metadata.model import LedgerMetadata
from wire.types import DigestType

#: Lines that are appended together; a caller that reads from a pipe sees them this soon.
_LINES: Final = 10_000
#: The name that bookies take this setting from, too.
_URI_VARIABLE: Final = "BK_metadataServiceUri"


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if not given.uri:
        sys.stderr.write("say where the metadata is: --uri zk://host:2181/ledgers\n")
        return 2
    try:
        trio.run(_run, given)
    except LedgerError as error:
        sys.stderr.write(f"ledger_client: {error}\n")
        return 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


async def _run(given: argparse.Namespace) -> None:
    async with LedgerClient(given.uri) as client:
        await given.command(client, given)


# ---------------------------------------------------------------------- commands


async def _create(client: LedgerClient, given: argparse.Namespace) -> None:
    """Make an empty ledger, closed: nobody can write to it later."""
    given.files = []
    await _append(client, given)


async def _append(client: LedgerClient, given: argparse.Namespace) -> None:
    """Make a ledger with one entry per line, and close it."""
    async with await client.create(
        ensemble_size=given.ensemble,
        write_quorum=given.write_quorum,
        ack_quorum=given.ack_quorum,
        password=given.password.encode(),
        digest_type=DigestType[given.digest],
        ledger_id=given.id,
    ) as ledger:
        for lines in _chunks(_lines(given.files)):
            await ledger.append_many(lines)
    _say(given, {"ledger": ledger.id, "entries": ledger.last_confirmed + 1}, str(ledger.id))


async def _read(client: LedgerClient, given: argparse.Namespace) -> None:
    """Write the entries of a ledger, one per line. An open ledger is recovered first."""
    open_ledger = client.open_no_recovery if given.no_recovery else client.open
    reader = await open_ledger(given.ledger, password=given.password.encode())
    last = reader.last_confirmed if given.last is None else given.last
    entries = reader.read(given.first, last)
    while batch := await entries.next_batch():
        _write(given, batch)


async def _tail(client: LedgerClient, given: argparse.Namespace) -> None:
    """Write entries as they are confirmed, until the ledger is closed."""
    async with await client.tail(
        given.ledger, password=given.password.encode(), first=given.first
    ) as tail:
        while batch := await tail.next_batch():
            _write(given, batch)


async def _recover(client: LedgerClient, given: argparse.Namespace) -> None:
    """Fence a ledger, find its end and close it."""
    reader = await client.open(given.ledger, password=given.password.encode())
    end = {"ledger": reader.id, "last_entry": reader.last_confirmed, "length": reader.length}
    _say(given, end, f"closed at entry {reader.last_confirmed}, {reader.length} bytes")


async def _list(client: LedgerClient, given: argparse.Namespace) -> None:
    """Name all ledgers, ascending."""
    async for ledger_id in client.list():
        _say(given, {"ledger": ledger_id}, str(ledger_id))


async def _show(client: LedgerClient, given: argparse.Namespace) -> None:
    """Show the record of a ledger."""
    shown = _shown(await client.metadata(given.ledger))
    _say(given, shown, "\n".join(f"{name}: {value}" for name, value in shown.items()))


async def _delete(client: LedgerClient, given: argparse.Namespace) -> None:
    """Delete a ledger."""
    await client.delete(given.ledger)
    _say(given, {"ledger": given.ledger, "deleted": True}, f"ledger {given.ledger} is deleted")


# ---------------------------------------------------------------------- in and out


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


def _lines(files: list[str]) -> Iterator[bytes]:
    """The lines of some files, `-` for the standard input, without their ends."""
    with ExitStack() as stack:
        for name in files:
            file: BinaryIO = sys.stdin.buffer if name == "-" else stack.enter_context(_opened(name))
            for line in file:
                yield line.removesuffix(b"\n")


def _opened(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise LedgerError(f"{name} cannot be read: {error.strerror}") from None


def _chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == _LINES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _write(given: argparse.Namespace, entries: list[LedgerEntry]) -> None:
    out = sys.stdout.buffer
    if given.json:
        for entry in entries:
            text = {"id": entry.id, "payload": entry.payload.decode(errors="replace")}
            out.write(json.dumps(text).encode() + b"\n")
    else:
        out.writelines(entry.payload + b"\n" for entry in entries)
    out.flush()


def _say(given: argparse.Namespace, value: Mapping[str, object], text: str) -> None:
    sys.stdout.write((json.dumps(value) if given.json else text) + "\n")


# ---------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ledger_client", description="Write, read and look after ledgers."
    )
    parser.add_argument(
        "--uri",
        default=os.environ.get(_URI_VARIABLE),
        help=f"where the metadata is, zk://host:2181/ledgers; or set {_URI_VARIABLE}",
    )
    parser.add_argument("--json", action="store_true", help="one JSON value per line")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[..., object]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        made.set_defaults(command=function)
        return made

    for name, function in (("create", _create), ("append", _append)):
        writing = command(name, function)
        writing.add_argument("--ensemble", type=int, default=3, help="bookies that share it")
        writing.add_argument("--write-quorum", type=int, default=2, help="copies of an entry")
        writing.add_argument("--ack-quorum", type=int, default=2, help="copies to wait for")
        writing.add_argument("--password", default="")
        writing.add_argument("--digest", default="CRC32C", choices=[d.name for d in DigestType])
        writing.add_argument("--id", type=int, help="instead of the next free one")
        if function is _append:
            writing.add_argument("files", nargs="*", default=["-"], help="default: stdin")
    for name, function in (
        ("read", _read), ("tail", _tail), ("recover", _recover), ("show", _show),
        ("delete", _delete),
    ):  # fmt: skip
        reading = command(name, function)
        reading.add_argument("ledger", type=int)
        if function in (_read, _tail, _recover):
            reading.add_argument("--password", default="")
        if function in (_read, _tail):
            reading.add_argument("--first", type=int, default=0, help="entry to begin with")
        if function is _read:
            reading.add_argument("--last", type=int, help="entry to end with")
            reading.add_argument(
                "--no-recovery", action="store_true", help="leave the writer alone"
            )
    command("list", _list)
    return parser


if __name__ == "__main__":
    sys.exit(main())
