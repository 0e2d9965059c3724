"""Admin paths on garbage collection and compaction of the bookie of this process."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import Response

from bookie.core.compaction import Kind
from bookie.server import RunningBookie
from bookie.storage.start import INDEX_NAME
from quire.admin_host import AdminHost
from quire.admin_http import AnswerError, Page, body_object, flag_of, json_answer, text_answer


def garbage_pages(host: AdminHost) -> dict[str, Page]:
    pages = GarbagePages(host)
    prefix = "/api/v1/bookie/"
    return {
        f"{prefix}gc": Page(
            {"GET": pages.state, "PUT": pages.force},
            "Not allowed method. Should be PUT to trigger GC, Or GET to get Force GC state.",
        ),
        f"{prefix}gc_details": Page(
            {"GET": pages.details},
            "Only support GET method to retrieve GC details. If you want to trigger gc, send a PUT "
            "to gc endpoint.",
        ),
        f"{prefix}gc/suspend_compaction": Page(
            {"GET": pages.suspended, "PUT": pages.suspend},
            "Not found method. Should be PUT to suspend major or minor compaction, Or GET to get "
            "compaction state.",
        ),
        f"{prefix}gc/resume_compaction": Page(
            {"PUT": pages.resume},
            "Not found method. Should be PUT to resume major or minor compaction.",
        ),
        f"{prefix}entry_location_compact": Page(
            {"GET": pages.indexes, "PUT": pages.compact_indexes},
            "Not found method. Should be PUT to trigger entry location compact, Or GET to get its "
            "state.",
        ),
    }


class GarbagePages:
    def __init__(self, host: AdminHost) -> None:
        self._host = host
        self._forced_after: int | None = None  # rounds of the collector when a round was forced

    async def state(self, request: Request) -> Response:
        return json_answer({"is_in_force_gc": _text(self._is_forced(self._host.running()))})

    async def force(self, request: Request) -> Response:
        """Collect now, and compact; a kind that is not wanted is said to be false."""
        running = self._host.running()
        body = await body_object(request, missing=None)
        kinds = [
            kind
            for kind, name in ((Kind.MAJOR, "forceMajor"), (Kind.MINOR, "forceMinor"))
            if _wanted(body, name)
        ]
        self._forced_after = running.collector.rounds
        running.collector.force()
        for kind in kinds:
            running.store.engine.upkeep.compact(kind)
        return json_answer(f"Triggered GC on BookieServer: {running.identity.bookie_id}")

    async def details(self, request: Request) -> Response:
        running = self._host.running()
        is_forced = self._is_forced(running)
        return json_answer(
            [
                {
                    "forceCompacting": is_forced,
                    "majorCompacting": found.compacting is Kind.MAJOR,
                    "minorCompacting": found.compacting is Kind.MINOR,
                    "lastMajorCompactionTime": found.last_round_ms[Kind.MAJOR],
                    "lastMinorCompactionTime": found.last_round_ms[Kind.MINOR],
                    "lastEntryLocationCompactionTime": found.index_compacted_ms,
                    "majorCompactionCounter": found.rounds[Kind.MAJOR],
                    "minorCompactionCounter": found.rounds[Kind.MINOR],
                    "entryLocationCompactionCounter": found.index_compactions,
                }
                for found in running.store.engine.upkeep.statistics()
            ]
        )

    def _is_forced(self, running: RunningBookie) -> bool:
        """Until the collector has been round once more and its threads are done."""
        if self._forced_after is None:
            return False
        collector = running.collector
        if collector.rounds > self._forced_after and running.store.engine.upkeep.is_idle:
            self._forced_after = None
        return self._forced_after is not None

    # ------------------------------------------------------------------ suspending

    async def suspended(self, request: Request) -> Response:
        suspended = self._host.running().store.engine.upkeep.schedule.suspended
        return json_answer(
            {
                "isMajorGcSuspended": _text(Kind.MAJOR in suspended),
                "isMinorGcSuspended": _text(Kind.MINOR in suspended),
            }
        )

    async def suspend(self, request: Request) -> Response:
        return await self._switch(request, "suspend")

    async def resume(self, request: Request) -> Response:
        return await self._switch(request, "resume")

    async def _switch(self, request: Request, verb: str) -> Response:
        running = self._host.running()
        body = await body_object(request, missing="Empty request body")
        major, minor = f"{verb}Major", f"{verb}Minor"
        if major not in body and minor not in body:
            raise AnswerError(400, f"No {major} or {minor} params found")
        upkeep = running.store.engine.upkeep
        identity = running.identity
        name = f"Bookie Server listening on {identity.host}:{running.port}"
        done = []
        wanted = [
            (kind, text)
            for kind, text, member in ((Kind.MAJOR, "major", major), (Kind.MINOR, "minor", minor))
            if flag_of(body, member)
        ]
        for kind, text in wanted:
            (upkeep.suspend if verb == "suspend" else upkeep.allow)(kind)
            done.append(
                f"{verb.capitalize()} {text}GC on BookieServer: {name} with id {identity.bookie_id}"
            )
        return json_answer(", ".join(done))

    # ------------------------------------------------------------------ the index

    async def indexes(self, request: Request) -> Response:
        running = self._host.running()
        statistics = running.store.engine.upkeep.statistics()
        paths = _index_paths(running)
        return json_answer(
            {path: statistics[number].is_index_compacting for path, number in paths.items()}
        )

    async def compact_indexes(self, request: Request) -> Response:
        """Those of all directories, or the ones that are named."""
        running = self._host.running()
        body = await body_object(request, missing="Empty request body")
        if not flag_of(body, "entryLocationRocksDBCompact"):
            return text_answer("Not trigger Entry Location RocksDB compact.")
        paths = _index_paths(running)
        named = body.get("entryLocations")
        if named is None:
            running.store.engine.upkeep.compact_indexes(list(paths.values()))
            return json_answer(
                f"Triggered entry Location RocksDB compact on bookie:{running.identity.bookie_id}"
            )
        if not isinstance(named, str):
            raise AnswerError(400, "entryLocations must be a text: paths separated by commas")
        wanted = [path.strip() for path in named.split(",")]
        if not set(wanted) <= set(paths):
            raise AnswerError(
                400,
                f"Specified trigger compact entryLocations: {named[:500]} is invalid. Bookie entry "
                f"location RocksDB path: [{', '.join(paths)}].",
            )
        running.store.engine.upkeep.compact_indexes([paths[path] for path in wanted])
        return json_answer(
            f"Triggered entry Location RocksDB: {named} compact on "
            f"bookie:{running.identity.bookie_id}."
        )


def _index_paths(running: RunningBookie) -> dict[str, int]:
    return {
        os.path.join(directory.path, INDEX_NAME): directory.number
        for directory in running.store.engine.directories
    }


def _wanted(body: dict[str, object], name: str) -> bool:
    """Unless it is said to be false; Apache takes a text for it as well."""
    found = body.get(name, True)
    if found in ("true", "false"):
        return found == "true"
    return flag_of(body, name) is not False


def _text(value: bool) -> str:
    return "true" if value else "false"
