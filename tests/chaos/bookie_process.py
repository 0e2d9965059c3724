"""`python -m tests.chaos.bookie_process ORDERS --conf F --ready-fd N`: a bookie on such files.

The bookie is the real one; only the files that it is given are `faulty_files.py`. With
QUIRE_CHAOS_BROKEN=1 it is the broken build that a run must catch: its journal acknowledges entries
that are not on disk.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import bookie.settings
from quire.cli import main
from tests.chaos.faulty_files import FaultyFiles

BROKEN: Final = "QUIRE_CHAOS_BROKEN"


def _run() -> None:
    files = FaultyFiles(Path(sys.argv[1]), broken=BROKEN in os.environ)
    vars(bookie.settings)["OSFileSystem"] = lambda: files
    sys.argv = ["quire", "bookie", *sys.argv[2:]]
    try:
        main()
    finally:
        files.release_all()  # whoever ends in order leaves everything to the kernel


if __name__ == "__main__":
    _run()
