"""What one entry costs in `wire/`: scanning, building and checking, per kind of message.

    python -m bench.codec [--quick]

Answers one question: how many microseconds of one core does each step take per entry? Rates of
`memcpy` and of CRC-32C over large buffers are measured in the same run, because machines differ and
so do moments. Each figure is the best of several turns over one receive buffer of 256 KiB.

How the shapes in `wire/` were chosen (CPython 3.11, ns per entry of 100 bytes, best of 40 to 60
turns on two shared cores). These are the bare steps, tried one after the other in one process:
trust the order and the factors, not the last digit. The table that this program prints is of the
finished functions, which also call, check and wrap, so its figures are higher:

| step | tried | ns |
|---|---|---|
| scan adds | a tuple per frame | 230 |
| | run: `unpack_from` with the prefix as bytes, LAC included | 260 |
| | run: prefix by `startswith` | 360 |
| | run: frames guessed equal in size, `iter_unpack` (chosen, then the loop) | 130 |
| walk ADD_BATCH | `unpack_from` per record (chosen when sizes differ) | 190 |
| | `iter_unpack`, size guessed | 99 |
| | one `unpack` of the whole, format made for it | 77 |
| | columns: strided slices compared (chosen when sizes agree) | 57 |
| scan add answers | `iter_unpack` | 90 |
| | 64 per `unpack_from` (chosen) | 50 |
| build add answers | pack and join | 93 |
| | prefix as separator of a join | 86 |
| | strided slices into copies of one frame (chosen) | 31 |
| CRC32C | header and payload chained (chosen above 512 bytes) | 234 |
| | joined first (chosen below) | 171 |
| HMAC | `hmac` object copied | 1570 |
| | two bare SHA-1 objects copied (chosen) | 870 |
| | `hmac.digest` | 2170 |

Checking the CRC32C entries of a batch without a call of ours per entry, old and new in turn, best
of 300: 0.91 to 0.71 us (100 bytes), 1.12 to 0.90 (1 KiB), 2.69 to 2.49 (16 KiB).

Keeping the incomplete frame at the end of a receive by joining it with the next one costs one copy
of the receive: 14 ns per entry of 100 bytes, 105 per KiB.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
from collections.abc import Callable

import crc32c

from wire import batch, build_v2, build_v3, scan_v2, scan_v3, scan_v3_runs
from wire.digest import digest_for, master_key
from wire.entry import decode_entries, encode_entries, encode_records
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.types import DigestType

RECEIVE_BYTES = 256 * 1024
LEDGER = 1_000_007
KEY = master_key(b"secret")


def best_seconds(step: Callable[[], object], budget_seconds: float) -> float:
    """The shortest of as many turns as the budget allows, five at least."""
    step()
    best, turns, began = float("inf"), 0, time.perf_counter()
    while turns < 5 or time.perf_counter() - began < budget_seconds:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
        turns += 1
    return best


def fed(data: bytes) -> FrameBuffer:
    frames = FrameBuffer()
    frames.feed(data)
    return frames


def steps(payload_bytes: int, *, uneven: bool) -> tuple[int, dict[str, Callable[[], object]]]:
    """How many entries a turn handles, and the steps. Uneven sizes spread around the given one."""
    count = RECEIVE_BYTES // (payload_bytes + 64)
    spread = payload_bytes // 4 if uneven else 0
    payloads = [os.urandom(payload_bytes - spread + i * 7 % (2 * spread + 1)) for i in range(count)]
    digest = digest_for(DigestType.CRC32C)
    ids = range(count)

    def entries() -> list[bytes]:
        return encode_entries(
            payloads, ledger_id=LEDGER, first_entry_id=0, lac=-1, length=0, digest=digest
        )

    def records() -> bytes:
        return encode_records(
            payloads, ledger_id=LEDGER, first_entry_id=0, lac=-1, length=0, digest=digest
        )

    def frame_batch() -> bytes:
        return batch.encode_batch(
            body,
            request_id=1,
            ledger_id=LEDGER,
            first_entry_id=0,
            last_entry_id=count - 1,
            count=count,
            master_key=KEY,
        )

    def frame_batch_answer() -> list[bytes | memoryview]:
        return build_v2.batch_read_answer([body], request_id=1, ledger_id=LEDGER, first_entry_id=0)

    def verify() -> object:
        bounds = batch.split_records(body, 0, len(body))
        return decode_entries(body, bounds, 4, ledger_id=LEDGER, entry_ids=ids, digest=digest)

    built, body = entries(), records()
    adds = build_v2.add_requests(built, master_key=KEY)
    add_answers = build_v2.add_answers(Status.OK, LEDGER, ids)
    read_answers = build_v2.read_answers(LEDGER, ids, built)
    reads = build_v2.read_requests(ids, ledger_id=LEDGER)
    batch_frame, batch_answer = frame_batch(), b"".join(frame_batch_answer())
    table: dict[str, Callable[[], object]] = {
        "client: build entries": entries,
        "client: build records (entries of a batch)": records,
        "client: frame records as ADD_BATCH": frame_batch,
        "client: frame entries as v2 adds": lambda: build_v2.add_requests(built, master_key=KEY),
        "client: scan v2 add answers": lambda: list(scan_v2.scan_responses(fed(add_answers))),
        "client: scan v2 read answers": lambda: list(scan_v2.scan_responses(fed(read_answers))),
        "client: scan batch read answer": lambda: list(scan_v2.scan_responses(fed(batch_answer))),
        "client: verify entries of a batch": verify,
        "bookie: scan v2 adds": lambda: list(scan_v2.scan_requests(fed(adds))),
        "bookie: walk ADD_BATCH": lambda: list(scan_v2.scan_requests(fed(batch_frame))),
        "bookie: scan v2 reads": lambda: list(scan_v2.scan_requests(fed(reads))),
        "bookie: build v2 add answers": lambda: build_v2.add_answers(Status.OK, LEDGER, ids),
        "bookie: build v2 read answers": lambda: build_v2.read_answers(LEDGER, ids, built),
        "bookie: build batch read answer": frame_batch_answer,
    }
    for kind in DigestType:
        table[f"digest: {kind.name}"] = digest_step(kind, payloads)
    table.update(v3_steps(built))
    return count, table


def digest_step(kind: DigestType, payloads: list[bytes]) -> Callable[[], object]:
    of, header = digest_for(kind, b"secret").of, bytes(32)
    return lambda: [of(header, payload) for payload in payloads]


def v3_steps(entries: list[bytes]) -> dict[str, Callable[[], object]]:
    numbered = [(1000 + i, i, entry) for i, entry in enumerate(entries)]
    adds = b"".join(build_v3.add_requests(numbered, ledger_id=LEDGER, master_key=KEY))
    acknowledged = [(1000 + i, LEDGER, i) for i in range(len(entries))]
    answers = build_v3.add_answers(acknowledged)
    return {
        "bookie: scan v3 adds": lambda: scan_v3_runs.scan_add_runs(adds, 0, len(adds)),
        "bookie: build v3 add answers": lambda: build_v3.add_answers(acknowledged),
        "client: frame entries as v3 adds": lambda: build_v3.add_requests(
            numbered, ledger_id=LEDGER, master_key=KEY
        ),
        "client: scan v3 add answers": lambda: scan_v3.scan_add_answers(answers, 0, len(answers)),
    }


def baseline(budget_seconds: float) -> dict[str, float]:
    """Bytes per second of this machine at this moment."""
    data = os.urandom(4 * 1024 * 1024)
    return {
        "memcpy of 4 MiB": len(data) / best_seconds(lambda: bytearray(data), budget_seconds),
        "crc32c of 4 MiB": len(data) / best_seconds(lambda: crc32c.crc32c(data), budget_seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.codec", description="Cost per entry of scanning, building, digests."
    )
    parser.add_argument("--quick", action="store_true", help="five turns of each step, no more")
    budget_seconds = 0.0 if parser.parse_args().quick else 0.08
    write = sys.stdout.write
    write(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    for name, rate in baseline(budget_seconds).items():
        write(f"{name:46} {rate / 1e9:10.1f} GB/s\n")
    for payload_bytes, uneven in ((100, False), (100, True), (1024, False)):
        count, table = steps(payload_bytes, uneven=uneven)
        kind = f"sizes around {payload_bytes} B" if uneven else f"{payload_bytes} B each"
        write(f"\n{count} entries, {kind:30} {'us/entry':>15} {'entries/s':>12}\n")
        for name, step in table.items():
            gc.collect()
            seconds = best_seconds(step, budget_seconds) / count
            write(f"{name:46} {seconds * 1e6:10.3f} {1 / seconds:12,.0f}\n")


if __name__ == "__main__":
    main()
