"""The order of write, sync and rename, as text: what a power loss at any line would find.

Each file in `golden/` is one operation of the engine, line by line, with every worker's steps in a
fixed order. Changing one is a decision about durability; read the difference, then

    QUIRE_GOLDEN=write pytest tests/bookie/test_order.py

rewrites them. `durable` marks a write that is on the disk when it returns; index lines name what a
piece changes: R runs, L ledger states, G entry logs, M the log mark, S flags; `-` is a deletion.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bookie.core.compaction import Kind
from runtime.memory_files import MemoryFileSystem
from tests.bookie.garbage_world import options
from tests.bookie.machine import KEY, Machine

GOLDEN = Path(__file__).parent / "golden"
PAYLOAD = b"x" * 1000


def recorded(*, log_bytes: int = 1 << 20, journal_file_bytes: int = 32 * 1024) -> Machine:
    """A running machine that writes down what it does to its disks."""
    machine = Machine()
    machine.files = MemoryFileSystem(logging=True)
    machine.choose = lambda count: 0
    # Compaction without a limit of speed, and no generation that is sealed by itself.
    small = options()
    machine.options = replace(
        small,
        engine=replace(small.engine, log_bytes=log_bytes, generation_bytes=1 << 20),
        journal=replace(small.journal, file_bytes=journal_file_bytes, spare_files_max=1),
    )
    return machine


def started(machine: Machine) -> Machine:
    machine.start()
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.clear()
    return machine


def check(name: str, machine: Machine) -> None:
    assert machine.files.log is not None
    found = "".join(
        line.replace("/disk/", "").replace("/current", "") + "\n" for line in machine.files.log
    )
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("QUIRE_GOLDEN") == "write":
        path.write_text(found)
    assert found == path.read_text()


def test_first_start_stamps_its_directories_last() -> None:
    machine = recorded()
    machine.start()
    machine.settle()
    check("first-start", machine)


def test_add_is_one_durable_write() -> None:
    machine = started(recorded())
    machine.add(1, [(0, PAYLOAD), (1, PAYLOAD)], "first")
    machine.add_batch(2, [(0, PAYLOAD), (1, PAYLOAD)], "second")
    machine.settle()
    assert machine.durable == ["first", "second"]
    check("add", machine)


def test_deferred_add_is_synced_by_a_force() -> None:
    machine = started(recorded())
    machine.add_entry(1, 0, PAYLOAD, "written", flags=0x100)
    machine.settle()
    assert machine.durable == ["written"]
    machine.engine.force(1, "forced")
    machine.settle()
    check("force", machine)


def test_fence_is_one_durable_write() -> None:
    machine = started(recorded())
    machine.engine.fence(1, KEY, "fence")
    machine.settle()
    check("fence", machine)


def test_checkpoint_syncs_runs_before_the_index_names_them() -> None:
    machine = started(recorded())
    machine.add(1, [(0, PAYLOAD)], None)
    machine.add(2, [(0, PAYLOAD)], None)
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.clear()
    machine.engine.checkpoint()
    machine.settle()
    machine.files.log.append("")  # the second one goes on in the same log
    machine.add(2, [(1, PAYLOAD)], None)
    machine.engine.checkpoint()
    machine.settle()
    check("checkpoint", machine)


def test_log_rolls_with_a_footer_and_is_sealed_behind_its_last_key() -> None:
    machine = started(recorded(log_bytes=4096 + 2500))
    for ledger_id in range(4):
        machine.add(ledger_id, [(0, PAYLOAD)], None)
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.clear()
    machine.engine.checkpoint()
    machine.settle()
    check("log-roll", machine)


def test_journal_rolls_into_a_file_prepared_before_and_uses_old_ones_again() -> None:
    machine = started(recorded(journal_file_bytes=3 * 4096))
    for entry_id in range(4):
        machine.add(1, [(entry_id, PAYLOAD)], entry_id)
        machine.settle()
    machine.engine.checkpoint()
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.append("")  # from here on there are files to be used again
    for entry_id in range(4, 8):
        machine.add(1, [(entry_id, PAYLOAD)], entry_id)
        machine.settle()
    check("journal-roll", machine)


def test_deletion_removes_a_log_after_its_last_key_is_gone_for_good() -> None:
    machine = started(recorded(log_bytes=4096 + 2500))
    for ledger_id in range(1, 5):
        machine.add(ledger_id, [(0, PAYLOAD)], None)
    machine.engine.checkpoint()
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.clear()
    machine.engine.drop([1, 2], 0)
    machine.settle()
    check("deletion", machine)


def test_compaction_removes_a_source_after_its_copies_have_their_keys() -> None:
    machine = started(recorded(log_bytes=4096 + 4500))
    for ledger_id in range(1, 8):
        machine.add(ledger_id, [(0, PAYLOAD)], None)
    machine.engine.checkpoint()
    machine.settle()
    machine.engine.drop([1, 2, 3], 0)
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.clear()
    machine.engine.upkeep.compact(Kind.MAJOR)
    machine.settle()
    check("compaction", machine)


def test_clean_stop_says_so_last() -> None:
    machine = started(recorded())
    machine.add(1, [(0, PAYLOAD)], None)
    machine.settle()
    assert machine.files.log is not None
    machine.files.log.clear()
    machine.stop()
    check("clean-stop", machine)


def test_start_after_a_crash_ends_the_open_log_and_replays() -> None:
    machine = started(recorded())
    machine.add(1, [(0, PAYLOAD)], None)
    machine.engine.checkpoint()
    machine.settle()
    machine.add(1, [(1, PAYLOAD)], None)
    machine.settle()
    machine.crash(power=False)
    assert machine.files.log is not None
    machine.files.log.clear()
    machine.start()
    machine.settle()
    check("restart", machine)
