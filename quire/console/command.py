"""`quire console`: the console of any cluster, ours or Apache's, on a port of its own."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import click
import trio

from ledger_client.placement_config import PlacementConfig
from quire.access import Target
from quire.console.serving import HOST_DEFAULT, PORT_DEFAULT, ConsoleSettings, running_console
from quire.output import show_json
from runtime import logs
from runtime.config import ConfigError, Settings
from runtime.http import server_tls
from runtime.http_guard import read_token
from runtime.service import Readiness, signals_into


@click.command(epilog="Example: quire console --metadata-uri zk://127.0.0.1:2181/ledgers")
@click.option("--metadata-uri", "--uri", metavar="URI", help="As zk://host:2181/ledgers.")
@click.option(
    "--conf",
    metavar="FILE",
    help="A bookie's configuration: the metadata service, its credentials, the racks.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="QUIRE_DIR",
    help="The folder of a local cluster.",
)
@click.option("--host", default=HOST_DEFAULT, show_default=True, help="The address to serve on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT_DEFAULT,
    show_default=True,
    help="0 picks a free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="A host name by which browsers reach it, beside its address and the machine's own name.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="A file with a token in it. Reading payloads needs it then, and all else if --host is "
    "not of this machine alone.",
)
@click.option("--tls-certificate", metavar="FILE", help="PEM; serves https.")
@click.option("--tls-key", metavar="FILE", help="PEM; the key of the certificate.")
@click.option("--ready-fd", type=int, metavar="N", help="Write READY to this descriptor.")
def console(
    metadata_uri: str | None,
    conf: str | None,
    folder: Path | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    token_file: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    ready_fd: int | None,
) -> None:
    """Serve a page that shows a cluster live, until Ctrl-C.

    It shows bookies, ledgers, re-replication and entries, and changes nothing. Faults can be
    inflicted from the page of `quire up --console` only.
    """
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together")
    is_private = not _is_loopback(host)
    if is_private and token_file is None:
        raise click.UsageError(
            f"--host {host} opens the console to others: give --token-file, or serve on "
            f"{HOST_DEFAULT}"
        )
    target = Target(uri=metadata_uri, conf=conf, folder=folder)
    settings = ConsoleSettings(
        uri=target.metadata_uri(),
        open_metadata=target.metadata_store,
        host=host,
        port=port,
        token=None if token_file is None else read_token(token_file),
        is_private=is_private,
        names=names,
        tls=_tls(tls_certificate, tls_key),
        placement=Settings.read(conf).build(PlacementConfig),
        security=target.security(),
    )
    logs.configure("warning")
    trio.run(_serve, settings, ready_fd)


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None or key is None:
        return None
    return server_tls(certificate, key)


async def _serve(settings: ConsoleSettings, ready_fd: int | None) -> None:
    stop = trio.Event()
    with signals_into(stop):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, stop, nursery.cancel_scope)
            async with running_console(settings) as url:
                show_json({"console": url, "metadataServiceUri": str(settings.uri)})
                Readiness(descriptor=ready_fd).announce("console", url=url)
                await trio.sleep_forever()


async def _cancel_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        if host == "localhost":
            return True
        raise ConfigError(f"--host {host!r}: want an address of this machine") from None
