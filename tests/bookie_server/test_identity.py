"""Who a bookie is, and when it must not start."""

from __future__ import annotations

import pytest
import trio.testing

from bookie.config import BookieConfig
from bookie.identity import ANY_ADDRESS, Identity, Resolver, identify
from metadata.cookie import InvalidCookieError
from metadata.cookies import Cookies
from metadata.store import ANY_VERSION
from runtime.config import ConfigError
from tests.bookie_server.service import BOOKIE_ID, FixedResolver, Site


def named(**changes: object) -> Identity:
    return identify(BookieConfig(**changes), 3181, FixedResolver())  # type: ignore[arg-type]


class Machine(Resolver):
    """One whose name leads to itself, as on many laptops."""

    def host_name(self) -> str:
        return "laptop"

    def address(self, host: str) -> str:
        if host == "nowhere":
            raise OSError(2, "Name or service not known")
        return "127.0.1.1"

    def interface_address(self, interface: str) -> str:
        if interface != "eth0":
            raise OSError(19, "No such device")
        return "10.1.1.1"


def test_bookie_is_known_by_its_address_and_port() -> None:
    mine = named()
    assert (mine.bookie_id, mine.host, mine.listen_host) == (
        "10.0.0.5:3181",
        "10.0.0.5",
        ANY_ADDRESS,
    )
    assert mine.former_ids == ("bookie.example:3181",)


@pytest.mark.parametrize(
    ("changes", "bookie_id", "host"),
    [
        ({"use_host_name": True}, "bookie.example:3181", "bookie.example"),
        ({"use_host_name": True, "use_short_host_name": True}, "bookie:3181", "bookie"),
        ({"advertised_address": "shelf.example"}, "shelf.example:3181", "shelf.example"),
        ({"bookie_id": "shelf-7"}, "shelf-7", "10.0.0.5"),
        ({"bookie_id": "s", "advertised_address": "shelf.example"}, "s", "shelf.example"),
    ],
)
def test_bookie_is_known_by_what_the_operator_chose(
    changes: dict[str, object], bookie_id: str, host: str
) -> None:
    mine = named(**changes)
    assert (mine.bookie_id, mine.host) == (bookie_id, host)


def test_configured_id_has_no_former_ids() -> None:
    assert named(bookie_id="shelf-7").former_ids == ()


def test_loopback_is_refused_unless_allowed() -> None:
    with pytest.raises(ConfigError, match="allowLoopback=true"):
        identify(BookieConfig(), 3181, Machine())
    mine = identify(BookieConfig(allow_loopback=True), 3181, Machine())
    assert (mine.bookie_id, mine.listen_host) == ("127.0.1.1:3181", "127.0.1.1")


def test_bookie_on_one_interface_listens_there_only() -> None:
    mine = identify(BookieConfig(interface="eth0"), 3181, Machine())
    assert (mine.bookie_id, mine.listen_host) == ("10.1.1.1:3181", "10.1.1.1")
    with pytest.raises(ConfigError, match="listeningInterface 'wlan0'"):
        identify(BookieConfig(interface="wlan0"), 3181, Machine())


def test_advertised_name_must_have_an_address() -> None:
    with pytest.raises(ConfigError, match="advertisedAddress 'nowhere' has no address"):
        identify(BookieConfig(advertised_address="nowhere"), 3181, Machine())


@pytest.mark.parametrize("bookie_id", ["read only", "a/b", "readonly"])
def test_impossible_id_is_refused(bookie_id: str) -> None:
    with pytest.raises(ConfigError, match="bookieId"):
        named(bookie_id=bookie_id)


async def new_site() -> Site:
    site = Site()
    await site.initialise()
    return site


def exists(site: Site, path: str) -> bool:
    return site.files.exists(path)


async def test_new_bookie_stamps_its_directories_and_the_store(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        stored = await Cookies(site.metadata.connect(), "/ledgers").find(BOOKIE_ID)
        assert stored is not None
        assert stored.cookie.journal_dirs == "/disk/journal"
    assert exists(site, "/disk/journal/current/VERSION")
    assert exists(site, "/disk/ledgers/current/VERSION")
    async with site.serving():
        pass  # and is the same bookie afterwards


async def test_bookie_under_another_name_does_not_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        pass
    error = await site.refusal(use_host_name=True)
    assert isinstance(error, InvalidCookieError)
    assert "is not matching" in str(error)


async def test_bookie_whose_cookie_is_gone_does_not_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        pass
    await Cookies(site.metadata.connect(), "/ledgers").delete(BOOKIE_ID, version=ANY_VERSION)
    error = await site.refusal()
    assert isinstance(error, InvalidCookieError)
    assert "not stored in metadata store" in str(error)


async def test_emptied_directory_keeps_the_bookie_from_starting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        pass
    site.files.remove("/disk/ledgers/current/VERSION")
    error = await site.refusal()
    assert isinstance(error, InvalidCookieError)
    assert "without a cookie" in str(error)


async def test_bookie_of_another_cluster_does_not_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site, other = await new_site(), Site()
    other.chance.seed(99)
    await other.initialise()
    async with site.serving():
        pass
    cookie = await Cookies(site.metadata.connect(), "/ledgers").find(BOOKIE_ID)
    assert cookie is not None
    await Cookies(other.metadata.connect(), "/ledgers").create(cookie.cookie)
    site.metadata = other.metadata
    error = await site.refusal()
    assert isinstance(error, InvalidCookieError)
    assert "another cluster" in str(error)
