"""The stages of the demo: each does one thing a ledger is for, checks it, and says what it saw."""

from __future__ import annotations

import statistics

from ledger_client import FencedError, LedgerWriter
from quire.demo_world import (
    PAYLOAD_BYTES,
    Stopwatch,
    World,
    Written,
    check,
    payload_of,
    payloads_of,
    tell,
)
from wire.types import BookieId

_SINGLES = 200
_CHUNK = 500
_LOAD_SECONDS = 1.0


async def append_entries(world: World) -> None:
    ledger = await _create(world)
    watch = Stopwatch()
    await ledger.append_many(payloads_of(ledger.id, range(world.entries)))
    seconds = watch.seconds
    await ledger.close()
    world.written.append(Written(ledger.id, world.entries))
    tell(f"ledger {ledger.id}: {world.entries:,} entries of {PAYLOAD_BYTES} bytes, three copies,")
    tell(f"confirmed in {seconds:.2f} s: {world.entries / seconds:,.0f} entries per second,")
    tell("each synced to the journals of two bookies before it was confirmed")


async def tail_from_a_second_process(world: World) -> None:
    ledger = await _create(world)
    bulk = world.entries // 5
    total = bulk + _SINGLES
    delays_ms = []
    async with world.client_process("tail", str(ledger.id)) as reader:
        seen = 0

        async def see(count: int) -> None:
            nonlocal seen
            while seen < count:
                lines = await reader.next()
                check(bool(lines), f"the tail ended at entry {seen} of {count}")
                for line in lines:
                    check(line == payload_of(ledger.id, seen), f"entry {seen} of the tail is wrong")
                    seen += 1

        await ledger.append_many(payloads_of(ledger.id, range(bulk)))
        await see(bulk)
        for entry_id in range(bulk, total):
            watch = Stopwatch()
            await ledger.append(payload_of(ledger.id, entry_id))
            await see(entry_id + 1)
            delays_ms.append(watch.seconds * 1000)
        await ledger.close()
        check(not await reader.next(), "the tail went on after the end of the ledger")
    world.written.append(Written(ledger.id, total))
    tell(f"ledger {ledger.id}: process {reader.pid} followed while this one wrote,")
    tell(f"and read all {total:,} entries in order; the writer was never fenced;")
    median = statistics.median(delays_ms)
    tell(f"from append here to a line there: {median:.1f} ms (median of {_SINGLES})")


async def kill_a_bookie_under_load(world: World) -> None:
    ledger = await _create(world)
    victim = BookieId(ledger.metadata.fragments[0].ensemble[1])
    count, longest, killed_at = 0, 0.0, -1
    watch = Stopwatch()
    until = 3 * _LOAD_SECONDS
    while watch.seconds < until or len(ledger.metadata.fragments) == 1:
        if killed_at < 0 and watch.seconds > _LOAD_SECONDS:
            pid = world.kill(victim)
            killed_at = count
            tell(
                f"ledger {ledger.id}: entry {count:,} confirmed, kill -9 of bookie {victim} ({pid})"
            )
        step = Stopwatch()
        await ledger.append_many(payloads_of(ledger.id, range(count, count + _CHUNK)))
        count += _CHUNK
        longest = max(longest, step.seconds)
        check(watch.seconds < 60, "the writer did not replace the bookie within a minute")
    await ledger.close()
    world.written.append(Written(ledger.id, count))
    last = ledger.metadata.fragments[-1]
    (new,) = set(last.ensemble) - set(ledger.metadata.fragments[0].ensemble)
    tell(f"the writer put bookie {new} in its place from entry {last.first_entry_id:,} on")
    tell(f"and went on to entry {count:,}: no append failed;")
    tell(f"the slowest {_CHUNK} of them took {longest * 1000:.0f} ms, the change included")


async def fence_and_recover(world: World) -> None:
    ledger = await _create(world)
    count = world.entries // 10
    # In steps, as applications do: what is known to be confirmed need not be recovered.
    for first in range(0, count, _CHUNK):
        chunk = range(first, min(first + _CHUNK, count))
        await ledger.append_many(payloads_of(ledger.id, chunk))
    tell(f"ledger {ledger.id}: {count:,} entries confirmed, its writer keeps it open")
    watch = Stopwatch()
    async with world.client_process("recover", str(ledger.id)) as recovery:
        said = b"".join(await recovery.next()).decode()
        check(not await recovery.next(), "the recovery said more than its result")
    seconds = watch.seconds
    tell(f"another process ({recovery.pid}) fenced and recovered it: {said};")
    tell(f"that took {seconds:.2f} s, most of it the start of Python")
    try:
        await ledger.append(b"too late")
    except FencedError:
        tell("the first writer's next append was refused: fenced")
    else:
        check(False, "the first writer could still append after the recovery")
    metadata = await world.client.metadata(ledger.id)
    check(metadata.last_entry_id == count - 1, f"closed at entry {metadata.last_entry_id}")
    world.written.append(Written(ledger.id, count))


async def verify_everything(world: World) -> None:
    watch = Stopwatch()
    entries = 0
    for written in world.written:
        reader = await world.client.open(written.ledger_id)
        last = reader.last_confirmed
        check(last == written.entries - 1, f"ledger {reader.id} ends at entry {last}")
        found = reader.read(0, last)
        while batch := await found.next_batch():
            for entry in batch:
                check(
                    entry.payload == written.payload(entry.id),
                    f"ledger {reader.id}, entry {entry.id} is not what was written",
                )
            entries += len(batch)
    wanted = sum(written.entries for written in world.written)
    check(entries == wanted, f"read {entries} entries of {wanted}")
    dead = f", {len(world.killed)} bookie dead" if world.killed else ""
    tell(f"{entries:,} entries of {len(world.written)} ledgers read back{dead},")
    tell(f"and compared byte by byte in {watch.seconds:.2f} s:")
    tell("all as written, none missing, none too many")


async def _create(world: World) -> LedgerWriter:
    return await world.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
