"""Addresses of the metadata store, and what we say to wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.layout import CLASS_NAMES
from metadata.paths import LayoutType
from metadata.uri import InvalidUriError, MetadataUri, Server, metadata_uri_of, parse_metadata_uri

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("zk://zk1:2181/ledgers", None),
        ("zk+null://zk1:2181/ledgers", None),
        ("zk+hierarchical://zk1:2181/ledgers", LayoutType.HIERARCHICAL),
        ("zk+longhierarchical://zk1:2181/ledgers", LayoutType.LONG_HIERARCHICAL),
        ("zk+flat://zk1:2181/ledgers", LayoutType.FLAT),
        ("ZK+Flat://zk1:2181/ledgers", LayoutType.FLAT),
        ("zk+hierarchical://zk1/ledgers", LayoutType.HIERARCHICAL),
    ],
)
def test_uri_names_the_layout(text: str, layout: LayoutType | None) -> None:
    assert parse_metadata_uri(text) == MetadataUri((Server("zk1", 2181),), "/ledgers", layout)


@pytest.mark.parametrize("servers", ["a:1;b:2;c:2181", "a:1,b:2,c", "a:1;b:2,c", "a:1; b:2; c"])
def test_servers_are_separated_by_semicolon_or_comma(servers: str) -> None:
    uri = parse_metadata_uri(f"zk://{servers}/a/b/ledgers")
    assert uri.connect_string == "a:1,b:2,c:2181"
    assert uri.root == "/a/b/ledgers"
    assert str(uri) == "zk://a:1;b:2;c:2181/a/b/ledgers"


def test_ipv6_server_is_written_in_brackets() -> None:
    uri = parse_metadata_uri("zk://[::1]:2182;[fe80::1%eth0]/ledgers")
    assert uri.servers == (Server("::1", 2182), Server("fe80::1%eth0", 2181))
    assert uri.connect_string == "[::1]:2182,[fe80::1%eth0]:2181"
    assert parse_metadata_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write it like zk"),
        ("zk1:2181/ledgers", "write it like zk"),
        ("/ledgers", "write it like zk"),
        ("etcd://h:2379/x", "unknown scheme 'etcd'"),
        ("zkx://h/ledgers", "unknown scheme 'zkx'"),
        ("zk+ms://h/ledgers", "ms layout"),
        ("zk+deep://h/ledgers", "unknown layout 'deep', write one of hierarchical,"),
        ("zk+://h/ledgers", "unknown layout ''"),
        ("zk://h:2181", "root path is missing"),
        ("zk://h:2181/", "root path is missing"),
        ("zk://h:2181/ledgers/", "leave out the slash"),
        ("zk://h:2181//ledgers", "absolute path"),
        ("zk://h:2181/led gers", "not a znode path"),
        ("zk://h:2181/ledgers?x=1", "not a znode path"),
        ("zk:///ledgers", "a host is missing"),
        ("zk://h;/ledgers", "a host is missing"),
        ("zk://;h/ledgers", "a host is missing"),
        ("zk://:2181/ledgers", "a host is missing"),
        ("zk://h:/ledgers", "'' is not a port"),
        ("zk://h:x/ledgers", "'x' is not a port"),
        ("zk://h:0/ledgers", "'0' is not a port"),
        ("zk://h:65536/ledgers", "'65536' is not a port"),
        ("zk://user@h:2181/ledgers", "is not a host"),
        ("zk://::1/ledgers", r"in brackets, like \[::1\]:2181"),
        ("zk://[::1/ledgers", "is not a host"),
        ("zk://[host]:2181/ledgers", "is not a host"),
        ("zk://[::1]2181/ledgers", "is not a host"),
        ("metadata-store:rocksdb:///tmp/x", "only metadata-store:zk:host:port works"),
        ("metadata-store:oxia://h:6648/x", "only metadata-store:zk:host:port works"),
        ("metadata-store:memory:local", "only metadata-store:zk:host:port works"),
        ("metadata-store:zk:", "a host is missing"),
    ],
)
def test_wrong_uri_is_answered_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(InvalidUriError, match=message) as caught:
        parse_metadata_uri(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("metadata-store:zk:zk1:2181", "zk1:2181", "/ledgers"),
        ("metadata-store:zk:zk1:2181/", "zk1:2181", "/ledgers"),
        ("metadata-store:zk:a:1,b:2/my/cluster", "a:1,b:2", "/my/cluster/ledgers"),
        ("metadata-store:zk:a:1;b:2/my/cluster", "a:1,b:2", "/my/cluster/ledgers"),
        ("metadata-store:zk1:2181/c", "zk1:2181", "/c/ledgers"),
        ("metadata-store:zk1", "zk1:2181", "/ledgers"),
        # As Pulsar reads it: `zk:` is the store, and a host named 2181 remains.
        ("metadata-store:zk:2181", "2181:2181", "/ledgers"),
    ],
)
def test_uri_of_pulsar_has_its_ledgers_inside_the_path(text: str, servers: str, root: str) -> None:
    uri = parse_metadata_uri(text)
    assert (uri.connect_string, uri.root, uri.layout) == (servers, root, None)


def test_older_settings_make_the_same_address() -> None:
    uri = metadata_uri_of(zk_servers="a:1,b")
    assert uri == MetadataUri((Server("a", 1), Server("b", 2181)), "/ledgers", None)
    assert metadata_uri_of(zk_servers="a:1/chroot", root="/x").root == "/chroot/x"
    assert metadata_uri_of(zk_servers="a:1/", root="/x").root == "/x"
    for layout, name in CLASS_NAMES.items():
        assert metadata_uri_of(zk_servers="a", factory_class=name).layout is layout


@pytest.mark.parametrize("root", ["ledgers", "", "/", "/x/"])
def test_older_root_setting_must_be_a_path(root: str) -> None:
    with pytest.raises(InvalidUriError):
        metadata_uri_of(zk_servers="a:1", root=root)


def test_legacy_layout_has_no_name_in_a_uri_and_follows_the_stored_layout() -> None:
    uri = MetadataUri((Server("a"),), "/ledgers", LayoutType.LEGACY_HIERARCHICAL)
    assert str(uri) == "zk://a:2181/ledgers"


@steady
@given(
    st.lists(
        st.builds(
            Server,
            st.from_regex(r"[a-z0-9][a-z0-9.\-]{0,8}", fullmatch=True),
            st.integers(1, 65535),
        ),
        min_size=1,
        max_size=4,
    ),
    st.from_regex(r"(/[a-z0-9_.\-]{1,6}){1,3}", fullmatch=True),
    st.sampled_from([None, *LayoutType]).filter(lambda one: one != LayoutType.LEGACY_HIERARCHICAL),
)
def test_uri_round_trips(servers: list[Server], root: str, layout: LayoutType | None) -> None:
    uri = MetadataUri(tuple(servers), root, layout)
    assert parse_metadata_uri(str(uri)) == uri


@steady
@given(st.text(alphabet="zk+:/[];,ab1 .\n", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, "zk://" + text, "metadata-store:" + text):
        try:
            uri = parse_metadata_uri(candidate)
        except InvalidUriError:
            continue
        assert parse_metadata_uri(str(uri)) == uri
