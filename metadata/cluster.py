"""A cluster as a whole: open it at start, initialise it, format it, remove it.

Opening obeys what is stored. The destructive commands follow Apache's step by step, so that either
side's tools leave the same tree; asking the operator is left to whoever calls.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

from metadata.layout import (
    CLASS_NAMES,
    LayoutDecision,
    LayoutNode,
    decide_layout,
    format_layout,
    parse_layout,
)
from metadata.paths import ClusterPaths, LayoutType, LedgerPaths, is_special_name
from metadata.records import decode_instance_id
from metadata.store import (
    ANY_VERSION,
    ConnectionLostError,
    Create,
    MetadataError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
)
from metadata.tree import delete_tree
from metadata.uri import MetadataUri


class ClusterNotInitialisedError(MetadataError):
    """There is no cluster at this address."""


class ClusterExistsError(MetadataError):
    """There is a cluster already, and the command must not touch it."""


class ClusterRefusedError(MetadataError):
    """The command was not carried out; the message says what stands in its way."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What every process learns at start and keeps."""

    root: str
    layout: LayoutType
    instance_id: str | None  # None: made by something older, or lost; a bookie will compare


async def open_cluster(
    store: MetadataStore, uri: MetadataUri, *, shaded_prefix: str = ""
) -> Cluster:
    """Find out how the cluster is laid out, and refuse to guess.

    A root without LAYOUT gets one, as with Apache: everybody who starts must agree from then on.
    """
    paths = ClusterPaths(uri.root)
    if await store.exists(uri.root) is None:
        await store.sync(uri.root)
        if await store.exists(uri.root) is None:
            raise ClusterNotInitialisedError(
                f"cluster not initialised at {uri}: run `quire shell initnewcluster`"
            )
    layout = await _open_layout(store, paths, uri.layout, shaded_prefix)
    return Cluster(uri.root, layout, await read_instance_id(store, uri.root))


async def _open_layout(
    store: MetadataStore, paths: ClusterPaths, configured: LayoutType | None, shaded_prefix: str
) -> LayoutType:
    decision = await _decide(store, paths, configured, shaded_prefix)
    if decision.data is not None:
        try:
            await store.create(paths.layout, decision.data)
        except (NodeExistsError, ConnectionLostError):
            # Somebody was faster, perhaps we ourselves: now it agrees with us, or that is an error.
            decision = await _decide(store, paths, configured, shaded_prefix)
            if decision.data is not None:
                await store.create(paths.layout, decision.data)
    return decision.layout


async def _decide(
    store: MetadataStore, paths: ClusterPaths, configured: LayoutType | None, shaded_prefix: str
) -> LayoutDecision:
    try:
        node = await store.get(paths.layout)
    except NoNodeError:
        stored = None
    else:
        stored = parse_layout(node.data, path=paths.layout)
    return decide_layout(stored, configured, shaded_prefix=shaded_prefix, path=paths.layout)


async def read_instance_id(store: MetadataStore, root: str) -> str | None:
    path = ClusterPaths(root).instance_id
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    return decode_instance_id(node.data, path=path)


# ---------------------------------------------------------------------- initnewcluster


async def init_new_cluster(
    store: MetadataStore, uri: MetadataUri, *, chance: random.Random
) -> Cluster:
    """Make a new cluster where nothing is. The parent of the root must exist."""
    paths = ClusterPaths(uri.root)
    layout = uri.layout or LayoutType.HIERARCHICAL
    if await store.exists(uri.root) is not None:
        raise _exists(uri.root)
    instance_id = _new_instance_id(chance)
    try:
        await store.transact(
            [
                Create(uri.root),
                Create(paths.available),
                Create(paths.readonly),
                Create(paths.instance_id, instance_id.encode()),
            ]
        )
    except NodeExistsError:
        raise _exists(uri.root) from None
    except NoNodeError:
        parent = uri.root.rpartition("/")[0]
        raise ClusterRefusedError(
            f"{uri.root} cannot be created, {parent} does not exist: create it first, "
            "or use `metaformat`, which makes parents"
        ) from None
    except ConnectionLostError:
        if await read_instance_id(store, uri.root) != instance_id:
            raise
    await _create_layout(store, paths, layout)
    return Cluster(uri.root, layout, instance_id)


def _exists(root: str) -> ClusterExistsError:
    return ClusterExistsError(f"{root} exists already, nothing was changed: choose another root")


def _new_instance_id(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


async def _create_layout(store: MetadataStore, paths: ClusterPaths, layout: LayoutType) -> None:
    data = format_layout(LayoutNode(CLASS_NAMES[layout]))
    try:
        await store.create(paths.layout, data)
    except (NodeExistsError, ConnectionLostError):
        # Ours, or that of a bookie that started between two of our steps.
        await _open_layout(store, paths, layout, "")


# ---------------------------------------------------------------------- metaformat


async def format_cluster(
    store: MetadataStore,
    uri: MetadataUri,
    *,
    confirmed: bool,
    chance: random.Random,
    layout: LayoutType | None = None,
) -> Cluster:
    """Forget all ledgers and cookies of a cluster, or make a new one with all its parents.

    An existing cluster is touched only if the operator `confirmed`. Bookies that are running are
    not asked; their next start fails, because the cluster has a new instance id.

    Apache takes the new layout from a setting of its own and ignores the URI, which makes a
    cluster that the same URI cannot open; here it is `layout`, or that of the URI.
    """
    paths = ClusterPaths(uri.root)
    if await store.exists(uri.root) is not None and not confirmed:
        raise ClusterRefusedError(
            f"{uri.root} exists: formatting it forgets every ledger, confirm to go on"
        )
    for path in (uri.root, paths.available, paths.readonly):
        await _ensure(store, path)
    await _forget_ledgers(store, paths)
    chosen = layout or uri.layout or LayoutType.HIERARCHICAL
    await delete_tree(store, paths.layout)
    await _create_layout(store, paths, chosen)
    for path in (paths.marks, paths.locks, paths.cookies, paths.instance_id):
        await delete_tree(store, path)
    instance_id = _new_instance_id(chance)
    try:
        await store.create(paths.instance_id, instance_id.encode())
    except ConnectionLostError:
        if await read_instance_id(store, uri.root) != instance_id:
            raise
    return Cluster(uri.root, chosen, instance_id)


async def _ensure(store: MetadataStore, path: str) -> None:
    try:
        await store.create(path, parents=True)
    except NodeExistsError:
        return


async def _forget_ledgers(store: MetadataStore, paths: ClusterPaths) -> None:
    """Delete every ledger of the layout that is stored, and the counters of ids."""
    stored = (await _decide(store, paths, None, "")).layout
    ledgers = LedgerPaths(paths.root, stored)
    names, _ = await store.children(paths.root)
    for name in names:
        path = f"{paths.root}/{name}"
        is_counter = is_special_name(name) and name not in _KEPT
        if is_counter or (ledgers.is_top_level(name) and not is_special_name(name)):
            await delete_tree(store, path)


_KEPT = frozenset({"available", "cookies", "LAYOUT", "INSTANCEID", "underreplication"})


# ---------------------------------------------------------------------- nukeexistingcluster


async def nuke_cluster(
    store: MetadataStore,
    uri: MetadataUri,
    *,
    root: str,
    instance_id: str | None = None,
    force: bool = False,
) -> bool:
    """Remove a cluster altogether. False if there is none.

    The operator says twice which one is meant: its `root`, and its instance id or `force`.
    """
    if root != uri.root:
        raise ClusterRefusedError(f"asked to remove {root}, but the configured root is {uri.root}")
    if force == (instance_id is not None):
        raise ClusterRefusedError("give either the instance id of the cluster or force, not both")
    paths = ClusterPaths(root)
    if await store.exists(root) is None:
        return False
    if instance_id is not None:
        stored = await read_instance_id(store, root)
        if stored != instance_id:
            raise ClusterRefusedError(
                f"{root} has instance id {stored}, not {instance_id}: nothing was removed"
            )
    await _refuse_live_bookies(store, paths)
    await _refuse_strangers(store, paths)
    await _forget_ledgers(store, paths)
    names, _ = await store.children(root)
    for name in filter(is_special_name, names):
        await delete_tree(store, f"{root}/{name}")
    # Not the whole tree: what came in meanwhile is a stranger too, and makes this fail.
    await store.delete(root, version=ANY_VERSION)
    return True


async def _refuse_live_bookies(store: MetadataStore, paths: ClusterPaths) -> None:
    for directory in (paths.available, paths.readonly):
        try:
            names, _ = await store.children(directory)
        except NoNodeError:
            continue
        live = [name for name in names if f"{directory}/{name}" != paths.readonly]
        if live:
            raise ClusterRefusedError(
                f"bookies are registered in {directory}: {', '.join(live)}; stop them first"
            )


async def _refuse_strangers(store: MetadataStore, paths: ClusterPaths) -> None:
    """What is neither ours nor a ledger may be anybody's; it is not for us to delete."""
    ledgers = LedgerPaths(paths.root, (await _decide(store, paths, None, "")).layout)
    names, _ = await store.children(paths.root)
    for name in names:
        if not is_special_name(name) and not ledgers.is_top_level(name):
            raise ClusterRefusedError(
                f"{paths.root}/{name} does not belong to the cluster: remove it by hand first"
            )
