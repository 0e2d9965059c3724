"""`python -m tests.chaos.bookie_process ORDERS --conf F --ready-fd N`: a bookie on such files.

The bookie is the real one; only the files that it is given are `faulty_files.py`. With
QUIRE_CHAOS_BROKEN=1 it is the broken build that a run must catch: its journal acknowledges entries
before they are synced, and syncs them two seconds later.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import bookie.settings
from quire.cli import main
from tests.chaos.faulty_files import FaultyFiles

BROKEN: Final = "QUIRE_CHAOS_BROKEN"
_LATE_SECONDS: Final = 2.0


def _run() -> None:
    is_broken = BROKEN in os.environ
    files = FaultyFiles(Path(sys.argv[1]), broken=is_broken)
    vars(bookie.settings)["OSFileSystem"] = lambda: files
    if is_broken:
        threading.Thread(target=_sync_late, args=(files,), daemon=True).start()
    sys.argv = ["quire", "bookie", *sys.argv[2:]]
    try:
        main()
    finally:
        files.release_all()  # whoever ends in order leaves everything to the kernel


def _sync_late(files: FaultyFiles) -> None:
    while True:
        time.sleep(_LATE_SECONDS)
        files.release_all()


if __name__ == "__main__":
    _run()
