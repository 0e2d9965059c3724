"""The stage of the demo in which a Spark job reads what was written, as a DataFrame."""

from __future__ import annotations

import tempfile

from quire.demo_world import DemoError, Stopwatch, World, check, payloads_of, tell
from spark.core.rollup import RollUp


async def count_with_spark(world: World) -> None:
    """In a process of its own, as any job: straight from the bookies, one of which is dead."""
    ledgers = ",".join(str(written.ledger_id) for written in world.written)
    watch = Stopwatch()
    found: dict[int, RollUp] = {}
    with tempfile.TemporaryFile() as errors:
        try:
            async with world.module_process(
                "spark.jobs.count",
                *("--uri", world.record.uri, "--ledgers", ledgers),
                errors=errors,
            ) as job:
                while lines := await job.next():
                    for line in lines:
                        ledger_id, *rows = line.decode().split()
                        found[int(ledger_id)] = RollUp.from_list(rows)
        except DemoError as error:
            errors.seek(0)
            last_words = errors.read().decode().strip().splitlines()[-1:]
            raise DemoError(f"the Spark job: {error}: {''.join(last_words)}") from None
    seconds = watch.seconds
    for written in world.written:
        wanted = RollUp.of(payloads_of(written.ledger_id, range(written.entries)))
        check(
            found.get(written.ledger_id) == wanted,
            f"Spark counts {found.get(written.ledger_id)} in ledger {written.ledger_id}, "
            f"and {wanted} was written",
        )
    entries = sum(rows.entries for rows in found.values())
    tell('spark.read.format("ledger"), grouped by ledger, in a process of its own:')
    tell(f"{entries:,} rows of {len(found)} ledgers; counts, bytes and checksums as written, in")
    tell(f"{seconds:.1f} s, most of which is the start of Spark")
