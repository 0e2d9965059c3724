"""What is exported: every name of Apache's, or the reason; dashboards and alerts that exist."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.conftest import World
from tests.http.exchanges import ask
from tests.quire.commands import wait_until

ROOT = Path(__file__).parent.parent.parent
VECTORS = json.loads((ROOT / "tests" / "vectors" / "metrics.json").read_text())
#: A path stands in the name.
WITH_PATH = re.compile(r"^(bookie_(?:ledger|index)_dir_)\w+(_usage)$")


def families(text: str) -> dict[str, str]:
    """Names and types of a page, as Apache has them: without a path, and without `_total`."""
    found = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    return {_plain(name): kind for name, kind in found.items()}


def _plain(name: str) -> str:
    if name.startswith("process_"):
        name = name.removesuffix("_total")
    return WITH_PATH.sub(r"\1PATH\2", name)


@pytest.fixture(scope="module")
def exported(world: World) -> dict[str, str]:
    """By a bookie and by autorecovery together."""
    found: dict[str, str] = {}
    with world.recovery(worker=True) as recovery:
        wait_until(lambda: "replication_worker" in ask(recovery, "GET", "/metrics").text)
        for url in (world.url, recovery):
            answer = ask(url, "GET", "/metrics")
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            found |= families(answer.text)
    return found


def apache() -> dict[str, str]:
    rows: list[dict[str, Any]] = [
        row for section, rows in VECTORS.items() if section != "about" for row in rows
    ]
    return {_plain(row["name"]): row["type"] for row in rows}


def absent() -> list[str]:
    """The patterns of the table."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    block = re.search(r"<!-- absent -->\n(.*?)<!-- end -->", page, re.S)
    assert block is not None
    rows = re.findall(r"^\| `(\S+)` \| (.+) \|$", block[1], re.M)
    assert all(reason.strip() for _, reason in rows)
    return [pattern for pattern, _ in rows]


def test_every_metric_of_apaches_is_there_or_its_absence_explained(
    exported: dict[str, str],
) -> None:
    patterns = absent()
    missing = [
        name
        for name in apache()
        if name not in exported and not any(fnmatch.fnmatchcase(name, p) for p in patterns)
    ]
    assert not missing, f"neither exported nor in docs/metrics.md: {missing}"


def test_nothing_is_called_absent_that_is_there(exported: dict[str, str]) -> None:
    for pattern in absent():
        assert not fnmatch.filter(exported, pattern), pattern
        assert fnmatch.filter(apache(), pattern), f"{pattern} is no metric of Apache's"


def test_types_are_apaches(exported: dict[str, str]) -> None:
    theirs = apache()
    for name, kind in exported.items():
        if name.startswith("quire_"):
            continue
        assert theirs.get(name) == kind, f"{name} is a {kind}, Apache's is {theirs.get(name)}"


def test_own_names_are_explained(exported: dict[str, str]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    patterns = re.findall(r"`(quire_[\w*]+)`", page)
    own = [name for name in exported if name.startswith("quire_")]
    unexplained = [n for n in own if not any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    assert not unexplained
    assert all(fnmatch.filter(own, pattern) for pattern in patterns)


def test_alerts_and_dashboard_use_names_that_exist(exported: dict[str, str]) -> None:
    known = set(exported)
    known |= {f"{name}{end}" for name in exported for end in ("_count", "_sum", "_total")}
    for path in ("prometheus/alerts.yml", "grafana/quire.json"):
        text = (ROOT / "deploy" / path).read_text()
        if path.endswith(".json"):
            text = "\n".join(expressions(json.loads(text)))
        else:
            text = "\n".join(re.findall(r"^ +expr: (.+)$", text, re.M))
        used = set(
            re.findall(r"\b((?:bookie|bookkeeper|auditor|replication|quire|process)_\w+)", text)
        )
        assert len(used) > 10
        assert used <= known, f"{path}: {sorted(used - known)}"


def expressions(dashboard: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert found
    return found
