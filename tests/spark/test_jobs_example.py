"""The notebook of the documentation, block by block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.ledger_client.live.cluster import LiveCluster

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark_example.md"


def test_every_block_of_the_example_runs(
    spark: SparkSession, cluster: LiveCluster, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {"spark": spark, "uri": cluster.uri, "folder": str(tmp_path)}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name} block {number}", "exec"), names)
