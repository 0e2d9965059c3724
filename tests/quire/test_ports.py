"""Ports of a local cluster: each belongs to one program, whether or not it runs already."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire import cluster
from quire.cluster import Wish, make_plan
from quire.cluster_folder import ClusterFolder


def test_no_two_programs_are_given_the_same_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that nobody listens on yet is free, and would be given out again."""
    drawn = iter([5, 5, 6, 6, 5, 7, 7, 8, 6, 9, 9, 8, 10, 10, 11, 12, 13, 14])
    monkeypatch.setattr(cluster, "free_port", lambda: next(drawn))
    for bookies in (2, 3):  # the second start makes the cluster larger
        plan = make_plan(ClusterFolder(tmp_path), Wish(bookies=bookies))
    texts = [path.read_text() for path in tmp_path.glob("*/*.conf")]
    http = [int(port) for text in texts for port in re.findall(r"httpServerPort=(\d+)", text)]
    ports = [5, *plan.bookie_ports, *http]
    assert len(ports) == 7
    assert len(set(ports)) == 7
