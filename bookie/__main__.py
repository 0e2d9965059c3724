"""`python -m bookie --conf bk_server.conf`: one bare bookie.

What runs beside a bookie (admin paths, metrics over HTTP, autorecovery) is added by `quire bookie`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import trio

try:
    from bookie.identity import Resolver
    from bookie.lifetimes import BookieSettings
    from bookie.server import run_bookie
    from bookie.settings import bookie_settings, check_settings, finish, real_shell, refuse_company
except ModuleNotFoundError as error:  # installed as a client, without what a bookie needs
    sys.exit(f"bookie: {error.name} is not installed: run pip install 'quire[bookie]'")
from runtime import logs
from runtime.config import Settings
from runtime.process import tune_for_serving
from runtime.service import Readiness, run_service
from runtime.shared_options import LogConfig, MetadataConfig

_log = logs.get("bookie")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bookie",
        description="Run one bookie: it stores entries of ledgers and serves them.",
        epilog="Every key can also be given as a variable BK_<key>. "
        "docs/configuration.md names all of them.",
    )
    parser.add_argument("--conf", metavar="FILE", help="configuration, as BookKeeper has it")
    parser.add_argument(
        "--check",
        action="store_true",
        help="look at the configuration and the directories, and do not start",
    )
    parser.add_argument(
        "--ready-fd", type=int, metavar="N", help="write READY to this descriptor once serving"
    )
    given = parser.parse_args(arguments)
    return run_service(partial(_run, given), name="bookie")


async def _run(given: argparse.Namespace, stop: trio.Event) -> None:
    read = Settings.read(given.conf)
    log = read.build(LogConfig)
    logs.configure(log.level, "json" if log.format == "json" else "text")
    settings, metadata = bookie_settings(read)
    refuse_company(read)
    for line in finish(read):
        _log.warning("unused setting", line=line)
    if given.check:
        for line in check_settings(settings, Resolver()):
            sys.stdout.write(f"{line}\n")
        sys.stdout.write("the configuration is fine\n")
    else:
        await _serve(settings, metadata, given.ready_fd, stop)


async def _serve(
    settings: BookieSettings, metadata: MetadataConfig, ready_fd: int | None, stop: trio.Event
) -> None:
    shell = real_shell(settings, metadata)
    # What is here by the time the bookie is ready stays; the collector need not look at it.
    readiness = Readiness(descriptor=ready_fd, callback=tune_for_serving)
    await run_bookie(settings, shell, stop, readiness=readiness)


if __name__ == "__main__":
    sys.exit(main())
