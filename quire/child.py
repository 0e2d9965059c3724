"""`python -m quire.child PARENT LIFELINE MODULE ...`: run a module that ends with its parent.

A local cluster is many processes that nobody looks after once their parent is gone, least of all
after a SIGKILL. Two ties hold them: the kernel's parent death signal (Linux), and a pipe whose
other end only the parent has, which works everywhere and does not depend on which thread of the
parent started us. Either ends this process at once: to a bookie that is a crash, which is safe.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    parent, lifeline, module = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    end_with(parent, lifeline)
    sys.argv = sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def end_with(parent: int, lifeline: int) -> None:
    """Tie the life of this process to that of `parent`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the tie was there, so no signal will come
            os._exit(1)
    os.set_inheritable(lifeline, False)
    threading.Thread(target=_wait_end, args=(lifeline,), name="lifeline", daemon=True).start()


def _wait_end(lifeline: int) -> None:
    os.read(lifeline, 1)  # nobody writes: this returns when the last writer is gone
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
