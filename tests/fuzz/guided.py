"""One target under Atheris, in a process of its own: libFuzzer ends the process that it runs in.

Nothing of ours may be imported before Atheris is told what to watch.
"""

from __future__ import annotations

import sys

import atheris

INPUT_BYTES_MAX = 4096


def main(name: str, folder: str, seconds: str, runs: str) -> None:
    with atheris.instrument_imports(include=["wire", "bookie", "metadata", "runtime", "quire"]):
        from tests.fuzz.all_targets import TARGETS
    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1"]
    options += [f"-runs={runs}"] if int(runs) else []
    options += ["-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *options, f"{folder}/corpus"], TARGETS[name].feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
