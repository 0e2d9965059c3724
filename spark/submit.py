"""What `spark-submit` runs: `spark-submit --py-files quire.zip spark/submit.py verify --uri ...`.

A script of its own outside `spark/jobs`: Python puts the folder of a script first on its path, and
a module there is named like one of the standard library.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

JOBS: Final = {
    "count": "spark.jobs.count",
    "verify": "spark.jobs.verify",
    "statistics": "spark.jobs.statistics",
    "export": "spark.jobs.export",
    "import": "spark.jobs.import_",
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in JOBS:
        sys.stderr.write(f"which job? One of {', '.join(JOBS)}, then its options\n")
        return 2
    job = import_module(JOBS[arguments[0]])
    code: int = job.main(arguments[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
