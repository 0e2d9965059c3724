"""What the command line reads and writes: lines in, lines or JSON out, progress beside them.

Results go to standard output and news to standard error, so that a pipe carries results only. Pipes
may block for as long as they like: whatever may wait for one runs in a thread, since answers from
bookies do not wait.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Final, Protocol

import trio

from wire.errors import LedgerError

#: Bytes to read at a time. A pipe gives what it has, so entries do not wait for company.
_READ_BYTES: Final = 1024 * 1024


class Terminal:
    """Where one command writes to."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def say(self, value: Mapping[str, object], text: str) -> None:
        """A result: as one JSON value, or in words."""
        sys.stdout.write((json.dumps(value, default=str) if self.as_json else text) + "\n")
        sys.stdout.flush()

    async def write_entries(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Entries, one per line."""
        if self.as_json:
            lines = [json.dumps(entry_value(*entry)).encode() for entry in entries]
        else:
            lines = [payload for _, payload in entries]
        data = b"\n".join(lines) + b"\n"
        await trio.to_thread.run_sync(_write, data, abandon_on_cancel=True)

    def fail(self, error: LedgerError) -> None:
        """An error, with the notes on it."""
        notes = getattr(error, "__notes__", [])
        if self.as_json:
            value = {
                "error": type(error).__name__,
                "message": str(error),
                "notes": notes,
                "ledger": error.ledger_id,
                "entry": error.entry_id,
                "bookie": error.bookie_id,
            }
            sys.stderr.write(json.dumps(value) + "\n")
        else:
            sys.stderr.write("".join(f"ledger_client: {line}\n" for line in (error, *notes)))


def entry_value(entry_id: int, payload: bytes) -> dict[str, object]:
    """An entry as JSON. Bytes that are no text are given as what they are."""
    try:
        return {"id": entry_id, "payload": payload.decode()}
    except UnicodeDecodeError:
        return {"id": entry_id, "payload_base64": base64.b64encode(payload).decode()}


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def drop_output() -> None:
    """Whoever read our output has gone (`| head`): let what is still buffered go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---------------------------------------------------------------------- in


async def lines_of(names: Sequence[str]) -> AsyncGenerator[tuple[list[bytes], int], None]:
    """The lines of some files, `-` for standard input, as they come; with the bytes they took."""
    for name in names:
        file = sys.stdin.buffer if name == "-" else _opened(name)
        rest = b""
        try:
            while data := await trio.to_thread.run_sync(_read, file, abandon_on_cancel=True):
                *lines, rest = (rest + data).split(b"\n")
                yield lines, len(data)
            if rest:
                yield [rest], 0
        finally:
            if name != "-":
                file.close()


def _read(file: BinaryIO) -> bytes:
    assert isinstance(file, io.BufferedReader)
    return file.read1(_READ_BYTES)


def _opened(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except OSError as error:
        raise LedgerError(f"{name} cannot be read: {error.strerror}") from None


def total_bytes(names: Sequence[str]) -> int | None:
    """The size of some files together; None if it cannot be known beforehand."""
    try:
        return sum(os.stat(name).st_size for name in names) if "-" not in names else None
    except OSError:
        return None


# ---------------------------------------------------------------------- progress


class Bar(Protocol):
    def advance(self, entries: int, read_bytes: int) -> None: ...


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Bar]:
    """A bar on standard error while entries go in; nothing if that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.progress import TransferSpeedColumn as Speed

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(title, total=total)
        count = 0

        class _Shown:
            def advance(self, entries: int, read_bytes: int) -> None:
                nonlocal count
                count += entries
                shown.update(task, advance=read_bytes, description=f"{title}, {count} entries")

        yield _Shown()
