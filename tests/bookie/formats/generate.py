"""Makes the kept store of the present format. Run once, when a format is released:

    python -m tests.bookie.formats.generate v1

A store that is kept is never made again: it stands for what older releases have left on disks. It
is packed, so that no tool takes its files for text, and small.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.bookie.disk_machine import DiskMachine
from tests.bookie.machine import KEY

HERE = Path(__file__).parent
PACKED = "store.tar.gz"
MANIFEST = "manifest.json"
#: Made again by whoever opens the store, or of no meaning to it.
_LEFT_OUT = ("LOCK", "LOG")
ODD_KEY = b"a master key of odd length"


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d " % (ledger_id, entry_id) * (entry_id % 5)


def lac_body(ledger_id: int, lac: int) -> bytes:
    return ledger_id.to_bytes(8, "big") + lac.to_bytes(8, "big") + b"digest"


def fill(machine: DiskMachine) -> dict[str, object]:
    """Every kind of record, run and state, some in logs and some in the journal alone."""
    machine.start()
    for first in range(0, 200, 50):
        _add(machine, 1, range(first, first + 50))
        _add(machine, 2, range(first, first + 50, 3))
    entries = [(n, payload_of(3, n)) for n in range(100, 160)]
    machine.add_batch(3, entries, "batch")
    machine.engine.fence(2, KEY, "fence")
    machine.engine.write_lac(3, KEY, lac_body(3, 120), "lac")
    entry = machine.engine.add_entry(4, 0, -1, ODD_KEY, _entry(4, 0), 0)
    assert entry.name == "OK"
    machine.engine.commit("odd")
    machine.engine.set_limbo(5, True, "limbo")
    machine.settle()
    machine.stop()
    machine.start()
    _add(machine, 6, range(10))
    machine.settle()
    machine.engine.drop([6], 1_700_000_000_000)
    machine.settle()
    _add(machine, 1, range(200, 220))
    machine.add_batch(7, [(n, payload_of(7, n)) for n in range(0, 20, 2)], "late batch")
    machine.engine.fence(3, KEY, "late fence")
    machine.settle()
    return {
        "1": {"entries": [[0, 219, 1]]},
        "2": {"entries": [[f, f + 48, 3] for f in range(0, 200, 50)], "fenced": True},
        "3": {"entries": [[100, 159, 1]], "fenced": True, "lac": 120},
        "4": {"entries": [[0, 0, 1]], "odd_key": True},
        "5": {"entries": [], "fenced": True, "limbo": True},
        "6": {"entries": [], "dropped": True},
        "7": {"entries": [[0, 18, 2]]},
    }


def _add(machine: DiskMachine, ledger_id: int, ids: range) -> None:
    machine.add(ledger_id, [(n, payload_of(ledger_id, n)) for n in ids], "add")


def _entry(ledger_id: int, entry_id: int) -> bytes:
    ids = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    return ids + b"\xff" * 8 + bytes(8) + payload_of(ledger_id, entry_id)


def main(name: str) -> None:
    target = HERE / name
    target.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        machine = DiskMachine(Path(temporary))
        manifest = fill(machine)
        machine.die()
        with tarfile.open(target / PACKED, "w:gz") as packed:
            for folder, _, names in sorted(os.walk(temporary)):
                for file in sorted(names):
                    if not file.startswith(_LEFT_OUT):
                        path = Path(folder, file)
                        packed.add(path, str(path.relative_to(temporary)), filter=_anonymous)
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o640
    return info


if __name__ == "__main__":
    main(sys.argv[1])
