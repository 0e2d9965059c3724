"""What is done to a worker of Spark, once, and to no other process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.spark.session import ROOT

_PROGRAM = """
import ctypes, gc
from spark.worker_process import settle
asked = []
class Library:
    def mallopt(self, name, value):
        asked.append(name)
ctypes.CDLL = lambda name: {library}
print(settle(), settle(), gc.get_freeze_count() > 0, asked)
"""


def settled(library: str = "Library()", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(library=library)],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], **environment},
    )  # fmt: skip
    return done.stdout.strip()


def test_worker_that_is_used_again_is_settled_once() -> None:
    assert settled(SPARK_REUSE_WORKER="1") == "True True True [-1, -3]"


def test_other_processes_are_left_alone() -> None:
    assert settled() == "False False False []"


def test_settings_of_the_user_are_kept() -> None:
    found = settled(SPARK_REUSE_WORKER="1", MALLOC_ARENA_MAX="2")
    assert found == "True True True []"


@pytest.mark.parametrize("library", ["object()", "open('/nowhere')"])
def test_other_c_libraries_do_no_harm(library: str) -> None:
    assert settled(library, SPARK_REUSE_WORKER="1") == "True True True []"
