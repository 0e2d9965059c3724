"""The ledger client: create, append, read, tail and recover ledgers.

    >>> import trio
    >>> from ledger_client import LedgerClient
    >>> async def main() -> None:
    ...     async with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
    ...         async with await client.create(password=b"secret") as ledger:
    ...             await ledger.append(b"hello")
    ...             await ledger.append_many([b"a", b"b"])
    ...         async with await client.open(ledger.id, password=b"secret") as reader:
    ...             async for entry in reader.read(0, reader.last_confirmed):
    ...                 print(entry.id, entry.payload)
    >>> trio.run(main)
    0 b'hello'
    1 b'a'
    2 b'b'

Its siblings `wire`, `runtime` and `metadata` have short names that another program may use for
modules of its own. A mixture would fail far from its cause, so it is refused here.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def _refuse_strangers() -> None:
    home = Path(__file__).resolve().parent.parent
    for name in ("wire", "runtime", "metadata"):
        module = import_module(name)
        file = module.__file__
        found = Path(file).resolve() if file else None
        if found is None or found.parent.parent != home:
            where = found or f"{list(module.__path__)} (a folder without __init__.py)"
            raise ImportError(
                f"ledger_client needs its own package `{name}` beside it in {home}, but Python "
                f"found {where}: rename that module, or put it behind this one on sys.path"
            )


_refuse_strangers()

# Only behind the check, since these import the siblings.
from ledger_client.bookie_info import BookieSpace  # noqa: E402
from ledger_client.client import LedgerClient  # noqa: E402
from ledger_client.core.options import ChangeMode, StormLimits, WriterOptions  # noqa: E402
from ledger_client.core.placement import DefaultPolicy, PlacementPolicy  # noqa: E402
from ledger_client.core.quarantine import QuarantineOptions  # noqa: E402
from ledger_client.core.reader import ReadOptions  # noqa: E402
from ledger_client.core.topology_placement import (  # noqa: E402
    RackAware,
    RegionAware,
    ZoneAware,
)
from ledger_client.entrance import ClientAuth, EntranceError, SaslDigest  # noqa: E402
from ledger_client.entries import EntryReader, LedgerEntry  # noqa: E402
from ledger_client.errors import (  # noqa: E402
    BookieFailedError,
    ClientClosedError,
    CorruptEntryError,
    DuplicateEntryIdError,
    EntryTooLargeError,
    InvalidEntryIdError,
    InvalidLedgerIdError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    QuorumTimeoutError,
    RecoveryError,
    TooManyChangesError,
    UnreadableEntryError,
    WrongDigestTypeError,
)
from ledger_client.health import ClientStatistics, CorruptCopy  # noqa: E402
from ledger_client.reader import LedgerReader  # noqa: E402
from ledger_client.security import Security, read_security  # noqa: E402
from ledger_client.tail import LedgerTail  # noqa: E402
from ledger_client.topology import Topology, TopologyScript, TopologyTable  # noqa: E402
from ledger_client.weights import SpaceOptions  # noqa: E402
from ledger_client.writer import LedgerWriter  # noqa: E402
from metadata.access import ZookeeperAccess  # noqa: E402
from metadata.discovery import Bookies  # noqa: E402
from metadata.ledgers import LedgerExistsError  # noqa: E402
from metadata.model import LedgerMetadata  # noqa: E402
from metadata.update import LedgerClosedError, LedgerGoneError  # noqa: E402
from runtime.jaas import Login  # noqa: E402
from runtime.logs import Secret  # noqa: E402
from runtime.tls import TlsOptions  # noqa: E402
from wire.errors import (  # noqa: E402
    BadRequestError,
    BookieUnavailableError,
    FencedError,
    LedgerError,
    NoSuchEntryError,
    TransientError,
    UnauthorizedError,
)
from wire.types import DigestType  # noqa: E402

__all__ = [
    "BadRequestError",
    "BookieFailedError",
    "BookieSpace",
    "BookieUnavailableError",
    "Bookies",
    "ChangeMode",
    "ClientAuth",
    "ClientClosedError",
    "ClientStatistics",
    "CorruptCopy",
    "CorruptEntryError",
    "DefaultPolicy",
    "DigestType",
    "DuplicateEntryIdError",
    "EntranceError",
    "EntryReader",
    "EntryTooLargeError",
    "FencedError",
    "InvalidEntryIdError",
    "InvalidLedgerIdError",
    "LedgerClient",
    "LedgerClosedError",
    "LedgerEntry",
    "LedgerError",
    "LedgerExistsError",
    "LedgerGoneError",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerTail",
    "LedgerWriter",
    "Login",
    "MetadataUnavailableError",
    "NoSuchEntryError",
    "NotEnoughBookiesError",
    "PlacementPolicy",
    "QuarantineOptions",
    "QuorumTimeoutError",
    "RackAware",
    "ReadOptions",
    "RecoveryError",
    "RegionAware",
    "SaslDigest",
    "Secret",
    "Security",
    "SpaceOptions",
    "StormLimits",
    "TlsOptions",
    "TooManyChangesError",
    "Topology",
    "TopologyScript",
    "TopologyTable",
    "TransientError",
    "UnauthorizedError",
    "UnreadableEntryError",
    "WriterOptions",
    "WrongDigestTypeError",
    "ZoneAware",
    "ZookeeperAccess",
    "read_security",
]
