"""Which cluster and which bookie a command is about, and how it gets at them.

A cluster is named by `--uri`, else by the configuration of `--conf` or the environment, else by
the folder of a local cluster that is running. The same options stand behind every command.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import trio

from ledger_client import LedgerClient, Security
from ledger_client.security import security_of
from metadata.access import access_of
from metadata.cluster import Cluster, open_cluster
from metadata.connect import open_store
from metadata.ledgers import Ledgers
from metadata.store import MetadataStore
from metadata.uri import MetadataUri, parse_metadata_uri
from quire.cluster_folder import FOLDER_DEFAULT, ClusterFolder, ClusterFolderError
from runtime.config import ConfigError, Settings
from runtime.shared_options import MetadataConfig
from wire.types import BookieId

if TYPE_CHECKING:
    from autorecovery.context import RecoveryContext
    from bookie.lifetimes import BookieSettings

    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType  # generic since click 8.4 only

T = TypeVar("T")
URI_VARIABLE: Final = "BK_metadataServiceUri"
_ID_MAX: Final = 2**63 - 1
#: Who holds the locks of repairs by hand, for people who read them.
_OPERATOR: Final = BookieId("operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a command was told."""

    uri: str | None = None
    conf: str | None = None
    folder: Path | None = None
    as_json: bool = False
    id_format: str = "long"
    entry_format: str = "string"

    # ------------------------------------------------------------------ the cluster

    def metadata_uri(self) -> MetadataUri:
        if self.uri is not None:
            return parse_metadata_uri(self.uri)
        config = Settings.read(self.conf).build(MetadataConfig)
        if config.service_uri is not None or config.servers:
            return parse_metadata_uri(config.uri())
        if self.conf is not None:
            raise ConfigError(f"{self.conf}: metadataServiceUri is not set: set it, or give --uri")
        folder = self.folder or Path(FOLDER_DEFAULT)
        if self.folder is None and not folder.exists():
            raise ClusterFolderError(
                "which cluster? Give --uri zk://host:2181/ledgers or --conf FILE, set "
                f"{URI_VARIABLE}, or name the folder of a local cluster with --dir"
            )
        return parse_metadata_uri(ClusterFolder(folder).read_record().uri)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[tuple[MetadataStore, MetadataUri]]:
        """The metadata store, whether or not there is a cluster in it."""
        uri = self.metadata_uri()
        config = Settings.read(self.conf).build(MetadataConfig)
        async with open_store(
            uri,
            session_seconds=config.session_timeout_ms / 1000,
            access=access_of(config),
        ) as store:
            yield store, uri

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[tuple[MetadataStore, Cluster]]:
        async with self.store() as (store, uri):
            yield store, await open_cluster(store, uri)

    @asynccontextmanager
    async def ledgers(self) -> AsyncIterator[Ledgers]:
        async with self.cluster() as (store, cluster):
            yield Ledgers(store, cluster.root, cluster.layout, chance=random.Random())

    def client(self) -> LedgerClient:
        return LedgerClient(str(self.metadata_uri()), **self.security())

    def security(self) -> Security:
        """Whom to trust and who we are, by the configuration and the environment."""
        return security_of(Settings.read(self.conf))

    @asynccontextmanager
    async def recovery(self) -> AsyncIterator[RecoveryContext]:
        """What autorecovery's own functions work on."""
        from autorecovery.config import AuditorConfig, WorkerConfig
        from autorecovery.context import RecoverySettings
        from autorecovery.daemon import opened_context

        read = Settings.read(self.conf)
        settings = RecoverySettings(
            auditor=read.build(AuditorConfig),
            worker=read.build(WorkerConfig),
            security=self.security(),
        )
        async with opened_context(
            self.metadata_store, self.metadata_uri(), bookie_id=_OPERATOR, settings=settings
        ) as context:
            yield context

    @asynccontextmanager
    async def metadata_store(self) -> AsyncIterator[MetadataStore]:
        async with self.store() as (store, _):
            yield store

    # ------------------------------------------------------------------ one bookie

    def bookie(self) -> BookieSettings:
        """The bookie of the configuration, which commands on its directories need."""
        from bookie.settings import bookie_settings, finish

        if self.conf is None:
            raise click.UsageError("which bookie? Give its configuration with --conf FILE")
        read = Settings.read(self.conf)
        settings, _ = bookie_settings(read)
        finish(read)
        return settings


def run(job: Callable[..., Awaitable[T]], *arguments: object) -> T:
    return trio.run(functools.partial(job, *arguments))


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which cluster is meant; it gets a `Target` first."""

    @click.option("--uri", metavar="URI", help="The cluster, as zk://host:2181/ledgers.")
    @click.option("-conf", "--conf", metavar="FILE", help="A bookie's configuration.")
    @click.option(
        "--dir",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="QUIRE_DIR",
        help=f"The folder of a local cluster; {FOLDER_DEFAULT} if it is there.",
    )
    @click.option("--json", "as_json", is_flag=True, help="JSON, one value per line.")
    @click.pass_context
    @functools.wraps(function)
    def command(
        context: click.Context,
        /,
        uri: str | None,
        conf: str | None,
        folder: Path | None,
        as_json: bool,
        **arguments: Any,
    ) -> Any:
        outer = context.obj if isinstance(context.obj, Target) else Target()
        target = Target(
            uri=uri or outer.uri,
            conf=conf or outer.conf,
            folder=folder or outer.folder,
            as_json=as_json or outer.as_json,
            id_format=outer.id_format,
            entry_format=outer.entry_format,
        )
        return function(target, **arguments)

    return command


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


class LedgerIdType(_IntType):
    """A ledger id in the format of `-ledgeridformat`: decimal, hexadecimal, or as a UUID."""

    name = "ledger id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        form = ctx.obj.id_format if ctx is not None and isinstance(ctx.obj, Target) else "long"
        digits = value.replace("-", "") if form == "uuid" else value
        try:
            found = int(digits, 10 if form == "long" else 16)
        except ValueError:
            found = -1
        if not 0 <= found <= _ID_MAX or not value[:1].isalnum():
            self.fail(f"{value!r} is no ledger id", param, ctx)
        return found


LEDGER_ID: Final = LedgerIdType()


def shown_id(target: Target, ledger_id: int) -> str:
    """A ledger id in the format that the operator chose."""
    if target.id_format == "hex":
        return f"{ledger_id:x}"
    if target.id_format == "uuid":
        low = f"{ledger_id:016x}"
        return f"00000000-0000-0000-{low[:4]}-{low[4:]}"
    return str(ledger_id)


@contextmanager
def named(path: Path | str) -> Iterator[None]:
    """Errors of the operating system on a file that the operator named, in one line."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None
