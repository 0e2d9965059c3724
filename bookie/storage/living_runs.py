"""The runs of a log that live, and whether they can still be read. For compaction and scrub.

A run lives if the index has its exact key; nothing else counts, neither its ledger's existence
nor the log's count of living bytes. Walking a log is done in small stretches, so that whoever
walks can stop between them.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from itertools import count
from typing import Final

from crc32c import crc32c

from bookie.storage.entry_log_format import RunHeader, decode_run_header
from bookie.storage.entry_log_reader import Gap
from bookie.storage.index_format import LogState, location_of, run_key
from bookie.storage.indexed_run import RUN_HEADER_BYTES, IndexedRun, mark_damaged
from bookie.storage.ledger_directory import LedgerDirectory
from wire.errors import CorruptionError, TransientError

_log = logging.getLogger(__name__)

#: Run headers looked at before the walk offers to stop.
STRETCH_HEADERS: Final = 256


class UnreadableLogError(TransientError):
    """A log that cannot be read now. Nothing is decided about what is in it."""


def living_runs(directory: LedgerDirectory, log_id: int) -> Iterator[IndexedRun | None]:
    """Every living run of a log, by offset; None where a stretch ends.

    A header that cannot be read hides what follows it. The index then says where the runs are;
    that costs a walk over all its keys, and is for damaged and missing logs only.
    """
    index = directory.index
    keys: dict[int, bytes] = {}

    def offsets() -> list[int]:
        keys.update(index.run_keys(log_id))
        return list(keys)

    try:
        log = directory.logs.get(log_id)
    except (FileNotFoundError, CorruptionError):
        yield from named_runs(directory, log_id)
        return
    except OSError as error:
        raise UnreadableLogError(f"entry log {log_id:08x} in {directory.path}: {error}") from error
    found: RunHeader | Gap | None
    headers = log.hop(offsets)
    for number in count(1):
        try:
            found = next(headers, None)
        except OSError as error:
            raise UnreadableLogError(f"entry log {log.path}: {error}") from error
        if found is None:
            return
        if isinstance(found, Gap):
            key = keys.get(found.offset)
        else:
            location = location_of(log_id=log_id, offset=found.offset)
            key = run_key(found.ledger_id, found.last, location)
        value = index.get(key) if key is not None else None
        if key is not None and value is not None:
            yield IndexedRun(key, value)
        if number % STRETCH_HEADERS == 0:
            yield None


def named_runs(directory: LedgerDirectory, log_id: int) -> Iterator[IndexedRun]:
    """The same by the index alone, for a log whose headers do not lead to all of its runs."""
    for key in directory.index.run_keys(log_id).values():
        value = directory.index.get(key)
        if value is not None:
            yield IndexedRun(key, value)


def is_dead(directory: LedgerDirectory, log_id: int) -> Generator[None, None, bool]:
    """Whether no key names anything in a log; the answer is what the generator returns.

    Exact keys decide. A log that cannot be walked, or is not there, is judged by all keys.
    """
    index = directory.index
    try:
        for number, found in enumerate(directory.logs.get(log_id).hop(), 1):
            if isinstance(found, Gap):
                return not index.run_keys(log_id)
            location = location_of(log_id=log_id, offset=found.offset)
            if index.contains(run_key(found.ledger_id, found.last, location)):
                return False
            if number % STRETCH_HEADERS == 0:
                yield
    except (FileNotFoundError, CorruptionError):  # it is not there, or no log by its header
        return not index.run_keys(log_id)
    except OSError as error:
        _log.error("entry log %08x in %s stays: %s", log_id, directory.path, error)
        return False
    return True


def read_living(directory: LedgerDirectory, run: IndexedRun) -> tuple[RunHeader, memoryview]:
    """A run in one read, its CRCs checked. CorruptionError if its body is not what it was.

    The index knows everything that the header says. So a bad header costs nothing but itself:
    the one returned is made of the index's knowledge, and a copy of the run will carry it.
    """
    try:
        data = directory.logs.get(run.log_id).read(RUN_HEADER_BYTES + run.body_bytes, run.offset)
    except FileNotFoundError as error:
        raise CorruptionError(f"entry log {run.log_id:08x} is missing: {error}") from error
    except OSError as error:
        raise UnreadableLogError(
            f"entry log {run.log_id:08x} in {directory.path}: {error}"
        ) from error
    body = memoryview(data)[RUN_HEADER_BYTES:]
    if crc32c(body) != run.body_crc:
        # Prefer the reason that lies deeper, if there are two.
        decode_run_header(data, log_id=run.log_id, offset=run.offset)
        raise CorruptionError(
            f"entry log {run.log_id:08x} in {directory.path}: run at {run.offset} (entries "
            f"{run.first}..{run.last} of ledger {run.ledger_id}) fails the CRC of its body: "
            "restore them from another bookie"
        )
    return (
        RunHeader(
            run.offset, run.ledger_id, run.first, run.last, run.entry_count, run.body_bytes,
            run.body_crc, run.log_id, run.sequence,
        ),
        body,
    )  # fmt: skip


def blame(directory: LedgerDirectory, run: IndexedRun) -> bool:
    """Flag a run, so that readers pass it over and integrity checks count it as missing.

    Its log is left alone from now on: what can be read of it was copied, or will be served from
    where it is. False if the run is not there any more, or was blamed before.
    """
    value = directory.index.get(run.key)
    if value is None or IndexedRun(run.key, value).is_damaged:
        return False
    table = directory.table
    table.apply([(run.key, mark_damaged(value), {})])
    log = table.get(run.log_id)
    if log is not None and log.state is LogState.SEALED:
        table.settle({run.log_id: (LogState.DAMAGED, log.size)})
    return True
