"""`quire shell VERB`: the verbs and option names that BookKeeper's operators know."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from quire.access import Target
from quire.lazy import LazyGroup
from quire.output import say

#: Every verb and where it lives. Adding one is adding a row.
VERBS: Final = {
    "initnewcluster": "quire.shell_cluster:initnewcluster",
    "metaformat": "quire.shell_cluster:metaformat",
    "nukeexistingcluster": "quire.shell_cluster:nukeexistingcluster",
    "listbookies": "quire.shell_cluster:listbookies",
    "bookieinfo": "quire.shell_cluster:bookieinfo",
    "clusterinfo": "quire.shell_cluster:clusterinfo",
    "whatisinstanceid": "quire.shell_cluster:whatisinstanceid",
    "endpointinfo": "quire.shell_cluster:endpointinfo",
    "listledgers": "quire.shell_ledgers:listledgers",
    "ledgermetadata": "quire.shell_ledgers:ledgermetadata",
    "readledger": "quire.shell_entries:readledger",
    "deleteledger": "quire.shell_ledgers:deleteledger",
    "simpletest": "quire.shell_ledgers:simpletest",
    "updateledgers": "quire.shell_renames:updateledgers",
    "updateBookieInLedger": "quire.shell_renames:updatebookieinledger",
    "initbookie": "quire.shell_bookie:initbookie",
    "bookieformat": "quire.shell_bookie:bookieformat",
    "bookiesanity": "quire.shell_bookie:bookiesanity",
    "lastmark": "quire.shell_bookie:lastmark",
    "listfilesondisc": "quire.shell_bookie:listfilesondisc",
    "ledger": "quire.shell_storage:ledger",
    "readlog": "quire.shell_storage:readlog",
    "readjournal": "quire.shell_storage:readjournal",
    "localconsistencycheck": "quire.shell_storage:localconsistencycheck",
    "rebuild-db-ledger-locations-index": "quire.shell_storage:rebuild_index_command",
    "listunderreplicated": "quire.shell_recovery:listunderreplicated",
    "whoisauditor": "quire.shell_recovery:whoisauditor",
    "autorecovery": "quire.shell_recovery:autorecovery",
    "queryautorecoverystatus": "quire.shell_recovery:queryautorecoverystatus",
    "lostbookierecoverydelay": "quire.shell_recovery:lostbookierecoverydelay",
    "triggeraudit": "quire.shell_recovery:triggeraudit",
    "forceauditchecks": "quire.shell_recovery:forceauditchecks",
    "recover": "quire.shell_recover:recover",
    "decommissionbookie": "quire.shell_recover:decommissionbookie",
    "cookie_create": "quire.shell_cookies:cookie_create",
    "cookie_get": "quire.shell_cookies:cookie_get",
    "cookie_update": "quire.shell_cookies:cookie_update",
    "cookie_delete": "quire.shell_cookies:cookie_delete",
    "cookie_generate": "quire.shell_cookies:cookie_generate",
    "help": "quire.shell:help_verb",
}


@click.group(
    cls=LazyGroup,
    places=VERBS,
    epilog="Example: quire shell -conf conf/bk_server.conf listbookies -rw",
)
@click.option("--uri", metavar="URI", help="The cluster, as zk://host:2181/ledgers.")
@click.option("-conf", "--conf", metavar="FILE", help="A bookie's configuration.")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path),
    help="The folder of a local cluster.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON, one value per line.")
@click.option(
    "-ledgeridformat", "id_format", type=click.Choice(["long", "hex", "uuid"]), default="long",
    help="How ledger ids are read and shown.",
)  # fmt: skip
@click.option(
    "-entryformat", "entry_format", type=click.Choice(["string", "hex"]), default="string",
    help="How payloads are shown.",
)  # fmt: skip
@click.pass_context
def shell(
    context: click.Context,
    uri: str | None,
    conf: str | None,
    folder: Path | None,
    as_json: bool,
    id_format: str,
    entry_format: str,
) -> None:
    """Apache BookKeeper's shell: its verbs and options, with results on standard output."""
    context.obj = Target(
        uri=uri,
        conf=conf,
        folder=folder,
        as_json=as_json,
        id_format=id_format,
        entry_format=entry_format,
    )


@click.command(name="help", epilog="Example: quire shell help listbookies")
@click.argument("verb", required=False)
@click.pass_context
def help_verb(context: click.Context, verb: str | None) -> None:
    """Show all verbs, or how one of them is used."""
    above = context.parent
    assert above is not None
    if verb is None:
        say(shell.get_help(above))
        return
    found = shell.get_command(above, verb)
    if found is None:
        raise click.UsageError(f"No such command {verb!r}.", ctx=above)
    with click.Context(found, info_name=verb, parent=above) as described:
        say(found.get_help(described))
