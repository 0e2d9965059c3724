"""A Python worker of Spark, made fit for reading megabytes again and again.

Spark keeps its workers: the same process serves task after task. Two things that no single task
would notice are then paid for each time.

After every task Spark collects garbage, and so walks every object of every library that was ever
imported, 35 ms for those of a read. They stay for good, so they are put where the collector does
not look.

A read makes and drops blocks of a megabyte all the time. The C library gives such blocks back to
the system at once, and every page of the next one is a fault: a fifth of the CPU time of a read.
It is told to keep some for the next. What a worker holds at its peak stays the same.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from functools import lru_cache
from typing import Final

#: The names of `malloc.h`.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: Free memory that the process keeps, and the largest block that it takes from there.
KEPT_BYTES: Final = 32 * 1024 * 1024
BLOCK_BYTES: Final = 16 * 1024 * 1024


@lru_cache(maxsize=1)
def settle() -> bool:
    """Call it when everything is imported; whether anything was done.

    Only in a worker that Spark uses again, never in a process of somebody else's, and only once.
    """
    if not os.environ.get("SPARK_REUSE_WORKER"):
        return False
    gc.collect()
    gc.freeze()
    if not any(name.startswith("MALLOC_") for name in os.environ):  # somebody knows better
        with suppress(OSError, AttributeError):  # not this C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES)
    return True
