"""A program that does nothing, for tests of whoever starts and ends programs."""

from __future__ import annotations

import os
import sys
import time

if __name__ == "__main__":
    sys.stdout.write(os.environ.get("BK_diskUsageThreshold", "none") + "\n")  # noqa: SIM112
    sys.stdout.flush()
    if os.environ.get("SLEEPER_FAILS"):
        sys.exit("quire: it cannot be")
    descriptor = int(sys.argv[sys.argv.index("--ready-fd") + 1])
    os.write(descriptor, b"READY\n")
    os.close(descriptor)
    time.sleep(600)
