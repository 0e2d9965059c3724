"""The applications behind HTTP: the admin paths of a bookie, and the console, without a cluster.

The metadata is real and in memory. The bookie is a few values: what is asked of it is told.
"""

from __future__ import annotations

import itertools
import random
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import trio

from autorecovery.settings import process_settings
from metadata.cluster import init_new_cluster
from metadata.ledgers import Ledgers
from metadata.memory import MemoryMetadata
from metadata.model import Fragment, LedgerMetadata, LedgerState
from metadata.paths import LayoutType
from metadata.underreplication import UnderReplication
from metadata.uri import parse_metadata_uri
from quire.admin import OPEN_PATHS, all_pages
from quire.admin_host import AdminHost
from quire.admin_http import AdminApp
from quire.console.app import Console, console_app
from quire.console.feed import Feed
from runtime.config import Settings
from runtime.http_guard import Guard, Guarded
from runtime.logs import Secret
from runtime.metrics import Registry
from runtime.properties import parse_properties
from tests.console.test_app import Cluster, Panel
from tests.console.test_app import Ledgers as ConsoleLedgers
from wire.types import NO_ENTRY, BookieId, DigestType, LedgerId

TOKEN = "0123456789abcdef"
#: They look at disks, at files or at other bookies, which is not what is tried here.
_NOT_TRIED = ("list_disk_file", "sanity", "expand_storage", "list_bookie_info")
_URI = parse_metadata_uri("zk+hierarchical://memory/ledgers")
_BOOKIE = BookieId("127.0.0.1:3181")
_CONF = "metadataServiceUri=zk+hierarchical://memory/ledgers\nadvertisedAddress=127.0.0.1\n"
_CONF += "statsProviderClass=org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider\n"


class Denied:
    """Behind the guard: whoever changes something has the token."""

    def __init__(self, app: Any, open_paths: frozenset[str]) -> None:
        self._app = app
        self._open_paths = open_paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            sent = [value for name, value in scope["headers"] if name == b"authorization"]
            is_known = len(sent) == 1 and sent[0].endswith(TOKEN.encode())
            assert is_known or scope["path"] in self._open_paths, "without a token"
        await self._app(scope, receive, send)


@cache
def admin_app() -> Any:
    settings = Settings(parse_properties(_CONF, "bk_server.conf"))
    host = AdminHost(settings, process_settings(settings), Registry(), is_bookie=True)
    host.bookie = cast(Any, _bookie())
    context = trio.run(_context)

    async def reachable() -> Any:
        return context

    host.access.context = reachable  # type: ignore[method-assign]
    host.orders = cast(Any, SimpleNamespace(begin=lambda *order: None))
    pages = {path: page for path, page in all_pages(host).items() if not path.endswith(_NOT_TRIED)}
    guard = Guard(token=Secret(TOKEN), names=frozenset({"bookie1"}), open_paths=OPEN_PATHS)
    return Guarded(Denied(AdminApp(pages), OPEN_PATHS), guard)


@cache
def console() -> Any:
    ledgers = ConsoleLedgers()
    feed = Feed(cast(Any, Cluster()), cast(Any, ledgers))
    shown = Console(
        uri=str(_URI),
        instance_id="an id",
        feed=feed,
        ledgers=cast(Any, ledgers),
        panel=cast(Any, Panel()),
    )
    return console_app(shown, token=Secret(TOKEN), names=frozenset({"console"}))


async def _context() -> Any:
    """A cluster with one ledger, closed and empty."""
    store = MemoryMetadata().connect()
    chance = random.Random(1)
    await init_new_cluster(store, _URI, chance=chance)
    ledgers = Ledgers(store, _URI.root, LayoutType.HIERARCHICAL, chance=chance)
    await ledgers.create(_ledger(), ledger_id=LedgerId(7))
    marks = UnderReplication(
        store, _URI.root, owner="operator", chance=chance, now_ms=itertools.count(1).__next__
    )
    await marks.open()
    bookies = SimpleNamespace(all={_BOOKIE}, writable={_BOOKIE}, read_only=set())
    bookies.endpoint = lambda bookie_id: SimpleNamespace(host="127.0.0.1")
    return SimpleNamespace(
        store=store,
        marks=marks,
        cluster=SimpleNamespace(root=_URI.root),
        client=SimpleNamespace(ledgers=_ReadOnly(ledgers), bookies=lambda: bookies, chance=chance),
    )


class _ReadOnly:
    """Nothing that one input deletes is missed by the next."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.read = ledgers.read
        self.ranges = ledgers.ranges
        self.is_gone = ledgers.is_gone

    async def delete(self, ledger_id: LedgerId) -> None:
        await trio.lowlevel.checkpoint()


def _ledger() -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(7),
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, (_BOOKIE,)),),
        state=LedgerState.CLOSED,
        last_entry_id=NO_ENTRY,
        digest_type=DigestType.CRC32C,
        password=b"secret",
    )


def _bookie() -> Any:
    def nothing(*told: object) -> None:
        """Done."""

    upkeep = SimpleNamespace(
        compact=nothing,
        compact_indexes=nothing,
        suspend=nothing,
        allow=nothing,
        is_idle=True,
        statistics=list,
        schedule=SimpleNamespace(suspended=set()),
        disks=SimpleNamespace(acceptance=SimpleNamespace(accepts_priority=True)),
    )
    return SimpleNamespace(
        mode=SimpleNamespace(read_only=False, set_read_only=nothing),
        settings=SimpleNamespace(
            bookie=SimpleNamespace(read_only=False, read_only_allowed=True),
            storage=SimpleNamespace(ledger_directories=()),
        ),
        bookie=SimpleNamespace(space=lambda: SimpleNamespace(free_bytes=1, total_bytes=2)),
        store=SimpleNamespace(engine=SimpleNamespace(upkeep=upkeep, directories=[])),
        collector=SimpleNamespace(rounds=0, force=nothing),
        identity=SimpleNamespace(bookie_id=_BOOKIE, host="127.0.0.1"),
        port=3181,
    )
