"""Where our status is another than the one captured from Apache's server, and why.

`docs/http.md` tells operators the same in words. Rows are looked at in order; each must be used.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Deviation(NamedTuple):
    theirs: int
    ours: int
    why: str
    path: str = ""  # a part of the path
    query: str | None = None
    body: str | None = None  # a part of the body
    node: str | None = None
    method: str | None = None
    note: str = ""  # a part of the note

    def fits(self, exchange: dict[str, Any]) -> bool:
        return (
            self.theirs == exchange["status"]
            and self.path in exchange["path"]
            and self.query in (None, exchange["query"])
            and (self.body is None or self.body in (exchange["request_body"] or ""))
            and self.node in (None, exchange["node"])
            and self.method in (None, exchange["method"])
            and self.note in (exchange.get("note") or "")
        )


NO_JSON = "a body that is no JSON is the caller's mistake"
NO_BODY = "a body that is missing is the caller's mistake"
NO_PARAMETER = "a parameter that is missing is the caller's mistake"
WRONG_KIND = "a value of the wrong kind is the caller's mistake"
ALL_THERE = "autorecovery knows the cluster, too"
NO_BOOKIE = "autorecovery is no bookie"

DEVIATIONS = (
    # What autorecovery can tell, and what it cannot.
    Deviation(500, 200, ALL_THERE, "/ledger/list", node="autorecovery"),
    Deviation(500, 200, ALL_THERE, "/ledger/metadata", "ledger_id=0", node="autorecovery"),
    Deviation(500, 200, ALL_THERE, "/bookie/cluster_info", node="autorecovery"),
    Deviation(500, 404, NO_BOOKIE, "/bookie/", node="autorecovery"),
    # Ledgers.
    Deviation(404, 400, NO_PARAMETER, "/ledger/delete", "", method="DELETE"),
    Deviation(404, 400, NO_PARAMETER, "/ledger/metadata", "", method="GET"),
    Deviation(404, 400, NO_PARAMETER, "/ledger/metadata", "ledgerId=0"),
    Deviation(404, 400, NO_PARAMETER, "/ledger/read", "", method="GET"),
    Deviation(500, 404, "it does not exist", "/ledger/", "ledger_id=999999"),
    Deviation(500, 404, "it was deleted", "/ledger/metadata", "ledger_id=10"),
    Deviation(200, 404, "it is gone", "/ledger/delete", "ledger_id=10", note="second time"),
    Deviation(200, 404, "it does not exist", "/ledger/delete", "ledger_id=999999"),
    Deviation(200, 400, "no ledger has such an id", "/ledger/delete", "ledger_id=-1"),
    Deviation(500, 400, WRONG_KIND, "/ledger/"),
    # The bookie.
    Deviation(500, 400, NO_BODY, "/state/readonly", "", method="PUT"),
    Deviation(500, 400, WRONG_KIND, "/gc/"),
    Deviation(500, 400, WRONG_KIND, "/entry_location_compact"),
    Deviation(500, 404, "metrics are off", "/metrics"),
    # Configuration.
    Deviation(404, 400, NO_BODY, "/server_config", "", method="PUT"),
    Deviation(200, 400, "it is read at the start", "/server_config", body="quireProbe"),
    Deviation(500, 400, NO_JSON, "/server_config"),
    # Re-replication.
    Deviation(200, 400, "true or false", "/autorecovery/status", "enabled=xyz"),
    Deviation(404, 400, NO_BODY, "/lost_bookie_recovery_delay", "", method="PUT"),
    Deviation(200, 400, "no time", "/lost_bookie_recovery_delay", body="-1"),
    Deviation(500, 400, WRONG_KIND, "/lost_bookie_recovery_delay"),
    Deviation(500, 400, NO_PARAMETER, "/autorecovery/bookie"),
    Deviation(404, 400, NO_BODY, "/autorecovery/bookie", method="PUT"),
    Deviation(200, 400, "no bookie has such an id", "/autorecovery/bookie", body="bad address"),
    Deviation(200, 409, "it is running", "/autorecovery/decommission", body="127.0.0.1:35812"),
    Deviation(404, 409, "it is running", "/autorecovery/decommission", body="35812"),
    Deviation(404, 400, NO_BODY, "/autorecovery/decommission", method="PUT"),
    Deviation(500, 400, NO_JSON, "/autorecovery/decommission"),
    Deviation(404, 200, ALL_THERE, "/list_under_replicated", node="autorecovery"),
)


def expected(
    exchange: dict[str, Any], allowed: frozenset[str] | None
) -> tuple[int, Deviation | None]:
    """The status that we give. A method that a path does not have is 405 everywhere, and HEAD is
    GET without the body."""
    if allowed is None:  # no such path
        return 404, None
    if exchange["method"] == "HEAD" and "GET" in allowed:
        return 200, None
    if exchange["method"] not in allowed:
        return 405, None
    for row in DEVIATIONS:
        if row.fits(exchange):
            return row.ours, row
    return exchange["status"], None
