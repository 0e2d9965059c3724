"""One cluster of each kind and one JVM per version for the whole run, started when first needed.

A test is a row of the matrix: `@row("what happens", v2="why not over v2")`. It runs once per
column, that is per client, protocol and kind of bookies; its first fixture says whose client it
tries. Every test also minds the bookies' logs. With QUIRE_INTEROP_TABLE=FILE the run's results are
written there as tables. QUIRE_INTEROP_SET=core runs a selection.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from bench.peers.cluster import MakeBookie, PeerCluster, bookies_on
from bench.peers.jars import NEWEST, JavaPeerError, resolve_jars
from bench.peers.java_bookie import JavaBookie
from bench.peers.process import OurBookie
from ledger_client.sync import LedgerClient
from runtime.local_zookeeper import LocalZookeeper
from tests.interop.java_client import JavaClient
from tests.interop.java_peer import JavaPeer, java_peer
from tests.interop.table import (
    APACHE,
    JAVA_COLUMNS,
    MIXED,
    OUR_COLUMNS,
    OURS,
    Cell,
    Column,
    Results,
)

IS_CORE = os.environ.get("QUIRE_INTEROP_SET") == "core"
#: Three of four make every ensemble of a mixed cluster mixed, and leave one to spare.
BOOKIES = 4
results = Results()
_folders: list[Path] = []  # of this run, with the logs of everybody

MakeClient = Callable[..., JavaClient]
Clusters = Callable[[str, str], PeerCluster]
OwnCluster = Callable[[str, str], PeerCluster]
Peers = Callable[[str], JavaPeer]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "row(title, older=False, full=False, **reasons): a row of the matrix. v2, v3, ours, apache "
        "or mixed: why it does not apply there. older: with Apache's older version, too. full: "
        "not in the core set",
    )
    config.addinivalue_line(
        "markers",
        "cell(table, row, column, full=False): the test fills this cell of a table of its own",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    row = metafunc.definition.get_closest_marker("row")
    if row is None:
        return
    columns = OUR_COLUMNS if "ours" in metafunc.fixturenames else JAVA_COLUMNS
    [title], name = row.args, metafunc.function.__name__
    cells = results.add_row(title, row.kwargs, name, columns)
    metafunc.parametrize("column", cells, ids=str, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The core set: what is not marked as full, and of the Java client's columns the newest."""
    for item in items:
        if mark := item.get_closest_marker("cell"):
            results.add_cell(item.nodeid, Cell(*mark.args))
    if IS_CORE:
        items[:] = [item for item in items if not _is_full(item)]


def _is_full(item: pytest.Item) -> bool:
    cell = item.get_closest_marker("cell")
    if cell is not None:
        return bool(cell.kwargs.get("full"))
    row = item.get_closest_marker("row")
    if row is None or not isinstance(item, pytest.Function):
        return False
    column = item.callspec.params["column"]
    assert isinstance(column, Column)
    return bool(row.kwargs.get("full")) or (column.is_older and column.client == "java")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        results.note(report.nodeid, passed=report.passed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if path := os.environ.get("QUIRE_INTEROP_TABLE"):
        results.write(Path(path))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for folder in _folders:
        if folder.exists():
            terminalreporter.write_line(f"logs: {folder}")


@pytest.fixture(scope="session")
def folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Where everybody keeps data and logs. It stays if something failed."""
    folder = tmp_path_factory.mktemp("interop")
    _folders.append(folder)
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder)


def _require_jars(version: str) -> None:
    """One line and the end of the run, where a failure per test would say the same."""
    try:
        resolve_jars(version)
    except JavaPeerError as error:
        pytest.exit(f"interop: {error}", returncode=1)


def makers(kind: str, version: str) -> list[MakeBookie]:
    ours = partial(OurBookie, journalMaxSizeMB=32, dbStorage_writeCacheMaxSizeMb=32)
    theirs = partial(JavaBookie, version=version, journalPreAllocSizeMB=4)
    half = BOOKIES // 2
    kinds: dict[str, list[MakeBookie]] = {
        OURS: [ours] * BOOKIES,
        APACHE: [theirs] * BOOKIES,
        MIXED: [theirs] * half + [ours] * half,
    }
    return kinds[kind]


@pytest.fixture(scope="session")
def zookeeper(folder: Path) -> Iterator[LocalZookeeper]:
    """One has them all."""
    (folder / "zookeeper").mkdir()
    with LocalZookeeper(folder / "zookeeper", durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def clusters(folder: Path, zookeeper: LocalZookeeper) -> Iterator[Clusters]:
    """Clusters by kind and version, shared by all clients that try something."""
    with ExitStack() as stack:
        started: dict[tuple[str, str], PeerCluster] = {}

        def cluster(kind: str, version: str) -> PeerCluster:
            version = NEWEST if kind == OURS else version
            if (kind, version) not in started:
                _require_jars(version)
                name = f"{kind}-{version}"
                uri = f"zk+hierarchical://{zookeeper.address}/{name}"
                started[kind, version] = stack.enter_context(
                    bookies_on(folder / name, uri, makers(kind, version))
                )
            return started[kind, version]

        yield cluster


@pytest.fixture(scope="module")
def own_cluster(folder: Path, zookeeper: LocalZookeeper) -> Iterator[OwnCluster]:
    """Clusters for one module alone: every ledger there is its own, and so is every loss.

    There is one at a time, since bookies that do nothing still cost a busy machine something.
    """
    _require_jars(NEWEST)
    with ExitStack() as stack:
        started: dict[str, PeerCluster] = {}

        def cluster(name: str, kind: str) -> PeerCluster:
            if name not in started:
                stack.close()
                started.clear()
                place = folder / name
                uri = f"zk+hierarchical://{zookeeper.address}/{name}"
                started[name] = stack.enter_context(bookies_on(place, uri, makers(kind, NEWEST)))
            return started[name]

        yield cluster


@pytest.fixture(scope="session")
def peers(folder: Path) -> Iterator[Peers]:
    """A JVM per version of the Java client."""
    with ExitStack() as stack:
        started: dict[str, JavaPeer] = {}

        def peer(version: str) -> JavaPeer:
            if version not in started:
                _require_jars(version)
                place = folder / f"java-{version}"
                place.mkdir()
                started[version] = stack.enter_context(java_peer(version, place))
            return started[version]

        yield peer


@pytest.fixture(scope="session")
def column(request: pytest.FixtureRequest) -> Column:
    assert isinstance(request.param, Column)
    return request.param


@pytest.fixture(scope="session")
def cluster(column: Column, clusters: Clusters) -> PeerCluster:
    return clusters(column.bookies, column.version)


@pytest.fixture(scope="session")
def make_client(column: Column, cluster: PeerCluster, peers: Peers) -> Iterator[MakeClient]:
    """Java clients of the test's column: `make_client("reader", explicitLacInterval=50)`.

    They are kept for the column's other tests, so the same name is the same client.
    """
    made: dict[tuple[object, ...], JavaClient] = {}

    def make(name: str, *, wire: str | None = None, **settings: object) -> JavaClient:
        key = (name, wire, *sorted(settings.items()))
        if key not in made:
            made[key] = JavaClient(
                peers(column.version),
                cluster.uri,
                v2=(wire or column.wire) == "v2",
                settings=settings,
            )
        return made[key]

    yield make
    for client in made.values():
        client.close()


@pytest.fixture
def client(make_client: MakeClient) -> JavaClient:
    """The one that writes."""
    return make_client("writer")


@pytest.fixture
def other(make_client: MakeClient) -> JavaClient:
    """Another one, with connections of its own: it reads, follows, takes over."""
    return make_client("reader")


@pytest.fixture
def patient(make_client: MakeClient) -> JavaClient:
    """One that waits longer for an answer than tests wait for anything."""
    return make_client("patient", readEntryTimeoutSec=60)


@pytest.fixture(scope="session")
def ours(column: Column, cluster: PeerCluster) -> Iterator[LedgerClient]:
    """Our client, the one that is tried."""
    with LedgerClient(cluster.uri) as client:
        yield client


@pytest.fixture(autouse=True)
def quiet_bookies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a client does, no bookie ends, and none logs what a human should look at."""
    yield
    if "cluster" in request.fixturenames:
        complaints = request.getfixturevalue("cluster").complaints()
        assert not complaints, "\n".join(complaints)
