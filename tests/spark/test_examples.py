"""Every example in the documents of the data source runs, on a live cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.session import ROOT

URI = "zk://127.0.0.1:2181/ledgers"
PAGE = Path("docs/spark.md")
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    text = (ROOT / PAGE).read_text()
    found = [
        (f"{PAGE}:{text.count(chr(10), 0, match.start()) + 2}", match[1])
        for match in _BLOCK.finditer(text)
    ]
    assert found, "no examples found: the test looks in the wrong place"
    return found


@pytest.mark.parametrize(("name", "source"), [pytest.param(n, s, id=n) for n, s in blocks()])
def test_example_runs(
    spark: SparkSession,
    cluster: LiveCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    source: str,
) -> None:
    assert URI in source, f"{name}: examples name {URI}, which is replaced here"
    monkeypatch.chdir(tmp_path)  # an example may leave a file behind
    code = compile(source.replace(URI, cluster.uri), name, "exec")
    exec(code, {"__name__": "example"})
