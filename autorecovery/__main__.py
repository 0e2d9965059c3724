"""`python -m autorecovery --conf bk_server.conf`: auditor and worker in a process of their own.

Admin paths and metrics over HTTP are added by `quire autorecovery`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import trio

from autorecovery.daemon import run_autorecovery
from autorecovery.settings import check_settings, finish, process_settings, refuse_company
from runtime import logs
from runtime.config import Settings
from runtime.process import yield_processors
from runtime.service import Readiness, run_service
from runtime.shared_options import LogConfig

_log = logs.get("autorecovery")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m autorecovery",
        description="Find ledgers that lack copies, and restore them.",
        epilog="Every key can also be given as a variable BK_<key>. "
        "docs/configuration.md names all of them.",
    )
    parser.add_argument("--conf", metavar="FILE", help="configuration, as BookKeeper has it")
    parser.add_argument(
        "--check", action="store_true", help="look at the configuration, and do not start"
    )
    parser.add_argument(
        "--ready-fd", type=int, metavar="N", help="write READY to this descriptor once running"
    )
    given = parser.parse_args(arguments)
    return run_service(partial(_run, given), name="autorecovery")


async def _run(given: argparse.Namespace, stop: trio.Event) -> None:
    read = Settings.read(given.conf)
    log = read.build(LogConfig)
    logs.configure(log.level, "json" if log.format == "json" else "text")
    settings = process_settings(read)
    refuse_company(read)
    for line in finish(read):
        _log.warning("unused setting", line=line)
    lines = list(check_settings(settings))
    if given.check:
        for line in (*lines, "the configuration is fine"):
            sys.stdout.write(f"{line}\n")
        return
    yield_processors(settings.process.niceness)
    await run_autorecovery(settings, stop, readiness=Readiness(descriptor=given.ready_fd))


if __name__ == "__main__":
    sys.exit(main())
