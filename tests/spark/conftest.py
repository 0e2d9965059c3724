"""One cluster and one Spark for all tests of a process: to start them takes longer than to use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ledger_client.sync import LedgerClient
from tests.ledger_client.live.cluster import LiveCluster, live_cluster
from tests.spark.session import spark_session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("live")) as live:
        yield live


@pytest.fixture(scope="session")
def client(cluster: LiveCluster) -> Iterator[LedgerClient]:
    with LedgerClient(cluster.uri) as found:
        yield found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
