"""One cluster and one JVM per version for the whole run; every test also minds the bookies' logs.

A test is a row of the matrix: `@row("what happens", v2="why not over v2")`. It runs once per
column, that is per version of the client and wire protocol. With QUIRE_INTEROP_TABLE=FILE the
run's results are written there as a table.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.cluster import LocalCluster, local_cluster
from tests.interop.java_client import JavaClient
from tests.interop.java_peer import JavaPeer, JavaPeerError, java_peer, resolve_jars
from tests.interop.table import Column, Results

NEWEST = "4.18.0"
COLUMNS = [Column(version, wire) for version in (NEWEST, "4.17.3") for wire in ("v2", "v3")]
_BOOKIES = 5
_results = Results(COLUMNS)
_folders: list[Path] = []  # of this run, with the logs of everybody

MakeClient = Callable[..., JavaClient]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "row(title, older=False, v2=None, v3=None): a row of the matrix. v2, v3: why it does not "
        "apply over that protocol. older: run it with the older client too",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    row = metafunc.definition.get_closest_marker("row")
    assert row is not None, f"{metafunc.definition.nodeid} is no row of the matrix"
    cells = _results.add_row(row, metafunc.function.__name__)
    metafunc.parametrize("column", cells, ids=str, indirect=True, scope="session")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        _results.note(report.nodeid, passed=report.passed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if path := os.environ.get("QUIRE_INTEROP_TABLE"):
        _results.write(Path(path))


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


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    _require_jars(NEWEST)  # before the effort of starting everything else
    with local_cluster(folder, _BOOKIES) as running:
        yield running


@pytest.fixture(scope="session")
def peers(folder: Path) -> Iterator[Callable[[str], JavaPeer]]:
    """A JVM per version, started when first asked for."""
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
def make_client(
    column: Column, cluster: LocalCluster, peers: Callable[[str], JavaPeer]
) -> Iterator[MakeClient]:
    """Clients of the test's column: `make_client("reader", explicitLacInterval=50)`.

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


@pytest.fixture(autouse=True)
def quiet_bookies(cluster: LocalCluster) -> Iterator[None]:
    """Whatever a client does, no bookie ends, and none logs what a human should look at."""
    yield
    complaints = cluster.complaints()
    assert not complaints, "\n".join(complaints)
