"""The sampler of `make profile`: whose CPU time it was, by thread and function."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from bench.profile_sampler import Sampler, threads_of


def burn(seconds: float) -> None:
    """Of this thread's own CPU time, however busy the machine is."""
    while time.thread_time() < seconds:
        sum(range(1000))


def test_time_is_put_on_the_thread_and_the_function_that_used_it() -> None:
    sampler = Sampler()
    sampler.start()
    busy = [threading.Thread(target=burn, args=(0.2,), name=f"burner-{n}") for n in range(2)]
    for thread in busy:
        thread.start()
    for thread in busy:
        thread.join()
    profiles = sampler.stop()
    assert profiles[0].name == "burner"
    found = profiles[0]
    # What a thread used after the last look at it is not known.
    assert 0.2 < found.seconds < 0.45
    assert max(found.own, key=lambda name: found.own[name]) == "test_profile.py:burn"
    assert found.whole["test_profile.py:burn"] == found.own["test_profile.py:burn"]
    assert found.whole["threading.py:Thread.run"] > found.own.get("threading.py:Thread.run", 0.0)
    waiting = {profile.name: profile.seconds for profile in profiles}.get("MainThread", 0.0)
    assert waiting < found.seconds / 2


def test_kernel_counts_the_threads_of_a_process_by_their_names() -> None:
    code = (
        "import time\n"
        "def burn():\n"
        "    while time.thread_time() < 0.2: pass\n"
        "    print(flush=True)\n"
        "    input()\n"
        "burn()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        [(name, seconds)] = threads_of(process.pid).items()
        process.communicate(b"\n")
    assert name.startswith("python")
    assert seconds >= 0.15
