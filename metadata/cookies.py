"""Cookies in the metadata store: which bookies a cluster has ever had, and on which directories.

The list of cookies is the list of all known bookies, dead or alive. The text itself and its rules
are in `metadata/cookie.py`; here it is only stored.
"""

from __future__ import annotations

import logging

from metadata.cookie import Cookie, StoredCookie, decode_cookie, encode_cookie
from metadata.model import InvalidMetadataError, check_bookie_id
from metadata.paths import ClusterPaths
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    ConnectionLostError,
    MetadataError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
)
from metadata.tree import create_below
from wire.types import BookieId

_log = logging.getLogger(__name__)


class CookieExistsError(MetadataError):
    """Another bookie registered this id, with other directories."""


class NoCookieError(MetadataError):
    """The store has no cookie for this bookie."""


class CookieChangedError(MetadataError):
    """The cookie is not the one that was read. Read it again and decide anew."""


class Cookies:
    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = ClusterPaths(root)

    async def bookies(self) -> list[BookieId]:
        """Every bookie that has a cookie, sorted."""
        try:
            names, _ = await self._store.children(self._paths.cookies)
        except NoNodeError:
            return []  # made with the first cookie
        return [BookieId(name) for name in names if self._is_bookie(name)]

    def _is_bookie(self, name: str) -> bool:
        try:
            check_bookie_id(name)
        except InvalidMetadataError as error:
            # No ledger can name it, so nobody misses it.
            _log.warning("ignoring %s/%s: %s", self._paths.cookies, name, error)
            return False
        return True

    async def read(self, bookie_id: BookieId) -> StoredCookie:
        """InvalidCookieError if it cannot be understood; that is not the same as none."""
        path = self._paths.cookie(bookie_id)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            raise _no_cookie(bookie_id) from None
        return StoredCookie(bookie_id, decode_cookie(node.data, source=path), node.stat.version)

    async def find(self, bookie_id: BookieId) -> StoredCookie | None:
        """Like `read`, for whoever is about to act on absence: None is certain."""
        await self._store.sync(self._paths.cookie(bookie_id))
        try:
            return await self.read(bookie_id)
        except NoCookieError:
            return None

    async def create(self, cookie: Cookie) -> StoredCookie:
        """CookieExistsError if there is one, unless it is this very one from a lost answer."""
        path = self._paths.cookie(cookie.bookie_id)
        data = encode_cookie(cookie)
        try:
            try:
                await create_below(self._store, self._paths.root, path, data)
            except ConnectionLostError:
                if await self._holds(path, data, version=0):
                    return StoredCookie(cookie.bookie_id, cookie, 0)
                # Had it been applied, it would be there: create is safe to repeat.
                await create_below(self._store, self._paths.root, path, data)
        except NodeExistsError:
            raise CookieExistsError(
                f"bookie {cookie.bookie_id} has a cookie already at {path}: another bookie took "
                "the id, or this one lost its directories"
            ) from None
        return StoredCookie(cookie.bookie_id, cookie, 0)

    async def update(self, cookie: Cookie, *, version: int) -> StoredCookie:
        """Replace the cookie that was read with `version`."""
        path = self._paths.cookie(cookie.bookie_id)
        data = encode_cookie(cookie)
        try:
            stat = await self._store.set(path, data, version=version)
        except NoNodeError:
            raise _no_cookie(cookie.bookie_id) from None
        except BadVersionError:
            raise CookieChangedError(
                f"the cookie of bookie {cookie.bookie_id} has changed since version {version}"
            ) from None
        except ConnectionLostError:
            if version == ANY_VERSION or not await self._holds(path, data, version=version + 1):
                raise
            return StoredCookie(cookie.bookie_id, cookie, version + 1)
        return StoredCookie(cookie.bookie_id, cookie, stat.version)

    async def delete(self, bookie_id: BookieId, *, version: int) -> None:
        """Forget a bookie. With `ANY_VERSION` whatever cookie it has."""
        try:
            await self._store.delete(self._paths.cookie(bookie_id), version=version)
        except NoNodeError:
            raise _no_cookie(bookie_id) from None
        except BadVersionError:
            raise CookieChangedError(
                f"the cookie of bookie {bookie_id} has changed since version {version}"
            ) from None
        except ConnectionLostError:
            if await self.find(bookie_id) is not None:
                raise

    async def _holds(self, path: str, data: bytes, *, version: int) -> bool:
        await self._store.sync(path)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return False
        return node.data == data and node.stat.version == version


def _no_cookie(bookie_id: BookieId) -> NoCookieError:
    return NoCookieError(f"bookie {bookie_id} has no cookie in the metadata store")
