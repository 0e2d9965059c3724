"""A bookie as `python -m bookie` runs it, which can be told to watch itself.

    python -m bench.profile_bookie CONF

At a SIGUSR1 it begins; at the next it writes what it saw beside its configuration, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from bench.profile_sampler import Sampler
from bookie.__main__ import main


def profile_path(conf: Path) -> Path:
    return conf.with_name("profile.json")


def _watch(conf: Path) -> None:
    sampler: Sampler | None = None

    def toggle(number: int, frame: FrameType | None) -> None:
        nonlocal sampler
        if sampler is None:
            sampler = Sampler()
            sampler.start()
            return
        found = [profile.as_json() for profile in sampler.stop()]
        sampler = None
        whole = profile_path(conf).with_suffix(".new")
        whole.write_text(json.dumps(found))
        whole.rename(profile_path(conf))

    signal.signal(signal.SIGUSR1, toggle)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    _watch(path)
    sys.exit(main(["--conf", str(path)]))
