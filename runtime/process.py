"""Settings of the whole process that a server under load wants. Called once, at the start.

Each was measured on the storage engine (docs/performance.md): the thread switch interval bounds how
long a flush keeps the event loop waiting, the memory settings keep freed blocks from going back
to the kernel and coming again with every receive buffer, and the cyclic collector's pauses grow
with the number of ledgers in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Final

SWITCH_SECONDS: Final = 0.0005

_TRIM_THRESHOLD: Final = (-1, 1 << 30)
_TOP_PAD: Final = (-2, 16 << 20)
_MMAP_THRESHOLD: Final = (-3, 64 << 20)


def tune_for_serving() -> None:
    """Short thread switches, memory that stays, no cyclic collection by itself."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _keep_memory()
    gc.collect()
    gc.freeze()  # what is here now lives as long as the process
    gc.disable()


def yield_processors(niceness: int) -> None:
    """Let everything else on this machine go first; 0 changes nothing.

    The kernel weighs sessions before it weighs processes, so a service that leads a session of its
    own has to say it for that one, too. Nobody else's session is touched.
    """
    if niceness <= 0:
        return
    niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without such groups
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def boot_id() -> str:
    """Which boot of which machine this is; empty where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _keep_memory() -> None:
    """glibc only; elsewhere the allocator has its own ways."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for option, value in (_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD):
        mallopt(option, value)
