"""Admin paths on the process itself: is it there, what does it count, what was it told."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from quire.admin_host import AdminHost
from quire.admin_http import AnswerError, Page, body_object, json_answer, text_answer
from runtime import logs
from runtime.logs import LEVELS
from runtime.metrics import CONTENT_TYPE, page
from runtime.shared_options import LogConfig, MetadataConfig, StatsConfig

HEARTBEAT: Final = "/heartbeat"
METRICS: Final = "/metrics"


def process_pages(host: AdminHost) -> dict[str, Page]:
    pages = ProcessPages(host)
    return {
        HEARTBEAT: Page(dict.fromkeys(("GET", "PUT", "POST", "DELETE"), pages.heartbeat)),
        **metrics_page(host),
        "/api/v1/config/server_config": Page({"GET": pages.config, "PUT": pages.set_config}),
    }


def metrics_page(host: AdminHost) -> dict[str, Page]:
    """Also alone, on the port that is for metrics only."""
    return {METRICS: Page({"GET": ProcessPages(host).metrics}, "Should be GET method")}


class ProcessPages:
    def __init__(self, host: AdminHost) -> None:
        self._host = host
        self._stats = host.settings.build(StatsConfig)
        self._log = host.settings.build(LogConfig)
        self._changed: dict[str, str] = {}

    async def heartbeat(self, request: Request) -> Response:
        return text_answer("OK\n")

    async def metrics(self, request: Request) -> Response:
        if not self._stats.enabled:
            raise AnswerError(
                404,
                "metrics are off: set statsProviderClass="
                "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
            )
        return Response(page(self._host.registry), headers={"Content-Type": CONTENT_TYPE})

    async def config(self, request: Request) -> Response:
        """What was set, by file and environment. Passwords are not shown."""
        return json_answer(self._host.settings.given(MetadataConfig) | self._changed)

    async def set_config(self, request: Request) -> Response:
        """Until the restart, and only what can change in a running process: the log's level."""
        missing = "Request body not found. should contains k-v pairs"
        body = await body_object(request, missing=missing)
        if not body:
            raise AnswerError(400, missing)
        for key in body:
            if key != "quire_logLevel":
                raise AnswerError(
                    400, f"{key[:100]} is read at the start: change the file, then restart"
                )
        level = body["quire_logLevel"]
        if level not in LEVELS:
            raise AnswerError(400, f"quire_logLevel must be one of {', '.join(LEVELS)}")
        logs.configure(level, "json" if self._log.format == "json" else "text")
        self._changed["quire_logLevel"] = level
        return text_answer("Success set server config.")
