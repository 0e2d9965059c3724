"""How much of the cores the rings reach: `python -m tests.simulation.reach [inner] [outer]`, seeds.

Lines and branches of the client's cores and of the bookie's ledger. Which bookies to choose
(placement, topology, spread, quarantine) is no matter of the protocol and is left out, and so is
what the bookie's storage decides about its files: both have tests of their own.
"""

from __future__ import annotations

import sys

import coverage

CORES = ["ledger_client/core/*", "bookie/core/ledger.py"]
APART = ["*placement*", "*quarantine*", "*spread*", "*topology*"]
SEEDS = (2000, 40)


def main() -> int:
    given = [int(argument) for argument in sys.argv[1:]]
    inner, outer = (*given, *SEEDS[len(given) :])[:2]
    measured = coverage.Coverage(
        branch=True, include=CORES, omit=APART, data_file=None, config_file=False
    )
    measured.exclude(r"raise AssertionError|if TYPE_CHECKING:|class .*\(Protocol\)")
    measured.start()
    from tests.simulation.rings import run_seeds  # only now: importing a core counts, too

    failures = run_seeds("inner", range(inner)).failures
    failures += run_seeds("outer", range(outer)).failures
    measured.stop()
    measured.report(show_missing=True, skip_covered=True, file=sys.stdout)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
