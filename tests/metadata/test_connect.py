"""From a URI to an open store."""

from __future__ import annotations

import pytest

from metadata.connect import open_store
from metadata.store import StoreClosedError
from metadata.uri import parse_metadata_uri
from tests.support.zookeeper import fresh_root_path, shared_zookeeper


async def test_the_root_of_a_uri_is_an_absolute_path_and_no_chroot() -> None:
    uri = parse_metadata_uri(f"zk://{shared_zookeeper().address}{fresh_root_path()}/ledgers")
    async with open_store(uri) as store:
        await store.create(f"{uri.root}/LAYOUT", b"x", parents=True)
        assert uri.root.split("/")[1] in (await store.children("/"))[0]
    with pytest.raises(StoreClosedError):
        await store.get(uri.root)
