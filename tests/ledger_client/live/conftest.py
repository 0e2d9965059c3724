"""One cluster for all live tests of a process: starting bookies takes longer than using them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ledger_client.live.cluster import LiveCluster, live_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("live")) as live:
        yield live
