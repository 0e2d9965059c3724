"""Configuration: reading files as BookKeeper does, checking them better than it does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.config import REQUIRED, ConfigError, Settings, option, options_of
from runtime.config_docs import classes_of, deviation_of, filled
from runtime.config_keys import APACHE_KEYS
from runtime.logs import Secret
from runtime.properties import parse_properties
from runtime.shared_options import HttpConfig, LogConfig, MetadataConfig, StatsConfig

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "configuration.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One option of every kind."""

    port: int = option("bookiePort", 3181, minimum=1, maximum=65535, doc="")
    threshold: float = option("diskUsageThreshold", 0.95, minimum=0, maximum=1, doc="")
    loopback: bool = option("allowLoopback", False, doc="")
    address: str | None = option("advertisedAddress", None, doc="")
    directories: tuple[str, ...] = option("ledgerDirectories", (), doc="")
    password: Secret | None = option("tlsKeyStorePasswordPath", None, doc="")  # noqa: RUF009
    mode: str = option("quire_mode", "fast", choices=("fast", "safe"), doc="")


def settings(text: str, environment: dict[str, str] | None = None) -> Settings:
    found = Settings(parse_properties(text, "bk.conf"), source="bk.conf")
    override = Settings.read(None, environment or {})
    found._by_key.update(override._by_key)
    return found


def sample(text: str) -> Sample:
    return settings(text).build(Sample)


def pairs(text: str) -> list[tuple[str, str]]:
    return [(setting.key, setting.text) for setting in parse_properties(text, "f")]


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("key=value", ("key", "value")),
        ("  key  =  value  ", ("key", "value")),
        ("key:value", ("key", "value")),
        ("key value", ("key", "value")),
        ("key\tvalue more", ("key", "value more")),
        ("key = a=b:c d", ("key", "a=b:c d")),
        ("key==value", ("key", "=value")),
        ("key", ("key", "")),
        ("key=", ("key", "")),
        (r"a\ b\=c=v", ("a b=c", "v")),
        (r"key=a\tb\u0041\\n\z", ("key", "a\tbA\\nz")),
        ("uri=zk://a:2181;b:2181/ledgers", ("uri", "zk://a:2181;b:2181/ledgers")),
        ("key=value # no comment", ("key", "value # no comment")),
        ("key=grüße", ("key", "grüße")),
    ],
)
def test_properties_line_is_split_as_java_splits_it(line: str, pair: tuple[str, str]) -> None:
    assert pairs(line) == [pair]


def test_properties_comments_and_empty_lines_are_skipped() -> None:
    assert pairs("# a=1\n  ! b=2 \\\nc=3\n\n \t\nd=4\r\ne=5\rf=6") == [
        ("c", "3"), ("d", "4"), ("e", "5"), ("f", "6"),
    ]  # fmt: skip


def test_properties_backslash_continues_a_line_unless_it_is_escaped() -> None:
    text = "a=one,\\\n    two,\\\n\tthree\nb=back\\\\\nc=x\\\\\\\ny\nd=end\\"
    assert pairs(text) == [("a", "one,two,three"), ("b", "back\\"), ("c", "x\\y"), ("d", "end")]


def test_properties_origin_is_the_line_where_a_setting_begins() -> None:
    origins = [setting.origin for setting in parse_properties("# x\na=1\\\n2\n\nb=3", "bk.conf")]
    assert origins == ["bk.conf:2", "bk.conf:5"]


def test_properties_list_is_split_at_commas_that_are_not_escaped() -> None:
    (setting,) = parse_properties(r"a= x , y\,z ,, \\,w", "f")
    assert setting.items == ("x", "y,z", "\\", "w")
    assert setting.text == "x , y,z ,, \\,w"


@pytest.mark.parametrize(("line", "problem"), [("= v", "without a key"), (r"k=\u12", r"\\u needs")])
def test_properties_nonsense_is_an_error_with_its_line(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"^f:2: .*{problem}"):
        parse_properties(f"a=b\n{line}", "f")


def test_config_without_settings_has_the_defaults() -> None:
    assert sample("") == Sample()
    assert Sample().port == 3181


def test_config_values_get_the_type_of_their_field() -> None:
    text = (
        "bookiePort=4000\ndiskUsageThreshold=0.5\nallowLoopback=Yes\nadvertisedAddress=b1\n"
        "ledgerDirectories=/a, /b\ntlsKeyStorePasswordPath=pw\nquire_mode=safe\n"
    )
    assert sample(text) == Sample(
        port=4000, threshold=0.5, loopback=True, address="b1", directories=("/a", "/b"),
        password=Secret("pw"), mode="safe",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["true", "TRUE", "yes", "on", "t", "y", "1"])
def test_config_switch_knows_every_spelling_of_true(text: str) -> None:
    assert sample(f"allowLoopback={text}").loopback is True


@pytest.mark.parametrize("text", ["false", "False", "no", "OFF", "f", "n", "0"])
def test_config_switch_knows_every_spelling_of_false(text: str) -> None:
    assert sample(f"allowLoopback={text}").loopback is False


def test_config_numbers_may_be_hexadecimal() -> None:
    assert sample("bookiePort=0x10").port == 16


def test_config_empty_text_counts_as_unset() -> None:
    assert sample("advertisedAddress=\nledgerDirectories=") == Sample()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bookiePort=abc", "bookiePort is 'abc'; it must be a whole number from 1 to 65535"),
        ("bookiePort=0", "bookiePort is '0'; it must be a whole number from 1 to 65535"),
        ("bookiePort=70000", "is '70000'; it must be a whole number from 1 to 65535"),
        ("bookiePort=1.5", "is '1.5'; it must be a whole number from 1 to 65535"),
        ("bookiePort=1_000", "is '1_000'"),
        ("bookiePort=", "bookiePort is ''"),
        ("diskUsageThreshold=1.01", "is '1.01'; it must be a number from 0 to 1"),
        ("diskUsageThreshold=nan", "is 'nan'"),
        ("diskUsageThreshold=0_1", "is '0_1'"),
        ("allowLoopback=maybe", "is 'maybe'; it must be true or false"),
        ("quire_mode=slow", "is 'slow'; it must be fast or safe"),
        ("advertisedAddress=${host}", "references are not resolved"),
    ],
)
def test_config_error_names_place_key_value_and_what_is_allowed(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sample(f"# first\n{line}")
    assert str(caught.value).startswith("bk.conf:2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_config_key_given_twice_is_an_error_unless_it_is_a_list() -> None:
    with pytest.raises(ConfigError, match=r"^bk.conf:3: bookiePort is set again; .* bk.conf:1"):
        sample("bookiePort=1\n\nbookiePort=1")
    assert sample("ledgerDirectories=/a,/b\nledgerDirectories=/c").directories == ("/a", "/b", "/c")


def test_config_required_option_must_be_set() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy:
        port: int = option("bookiePort", REQUIRED, doc="")
        name: str = option("bookieId", REQUIRED, doc="")

    with pytest.raises(ConfigError, match=r"^bk.conf: bookiePort is not set; give a whole number"):
        settings("").build(Needy)
    with pytest.raises(ConfigError, match=r"^bk.conf:2: bookieId is ''; it must be a text"):
        settings("bookiePort=1\nbookieId=").build(Needy)
    assert settings("bookiePort=1\nbookieId=b").build(Needy) == Needy(port=1, name="b")


def test_config_complaint_of_a_dataclass_names_the_file() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pair:
        low: int = option("bookiePort", 1, doc="")

        def __post_init__(self) -> None:
            if self.low > 5:
                raise ValueError("bookiePort above httpServerPort")

    with pytest.raises(ConfigError, match=r"^bk.conf: bookiePort above httpServerPort"):
        settings("bookiePort=6").build(Pair)


def test_config_secret_is_not_shown_by_anything() -> None:
    config = sample("tlsKeyStorePasswordPath=hunter2")
    assert "hunter2" not in repr(config)
    assert config.password is not None
    assert config.password.reveal() == "hunter2"


def test_settings_environment_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bk.conf"
    path.write_text("bookiePort=1\nadvertisedAddress=file\nledgerDirectories=/a\n")
    environment = {
        "BK_bookiePort": "2", "BK_ledgerDirectories": "/x,/y", "BK_HOME": "/opt", "bookiePort": "9",
    }  # fmt: skip
    found = Settings.read(str(path), environment)
    assert found.build(Sample) == Sample(port=2, address="file", directories=("/x", "/y"))
    assert found.finish() == []


def test_settings_error_from_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^environment BK_bookiePort: bookiePort is 'x'"):
        Settings.read(None, {"BK_bookiePort": "x"}).build(Sample)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("bokiePort", "did you mean bookiePort?"),
        ("zktimeout", "did you mean zkTimeout?"),
        ("quire_mod", "did you mean quire_mode?"),
        ("xyzzy", "see docs/configuration.md"),
    ],
)
def test_settings_unknown_key_is_an_error_with_the_nearest_name(key: str, hint: str) -> None:
    found = settings(f"bookiePort=1\n{key}=1")
    found.build(Sample)
    with pytest.raises(ConfigError) as caught:
        found.finish()
    assert str(caught.value).startswith(f"bk.conf:2: unknown key {key!r}; ")
    assert hint in str(caught.value)


def test_settings_unknown_variable_is_an_error_too() -> None:
    with pytest.raises(ConfigError, match="environment BK_bokiePort: unknown key"):
        Settings.read(None, {"BK_bokiePort": "1"}).finish()


def test_settings_report_known_keys_without_use_once() -> None:
    found = settings("numAddWorkerThreads=4\nstorageserver.grpc.port=4181\nbookiePort=1")
    found.build(Sample)
    assert found.finish() == [
        "bk.conf:1: numAddWorkerThreads has no effect in Quire",
        "bk.conf:2: storageserver.grpc.port has no effect in Quire",
    ]
    assert len(settings("bookiePort=1").finish()) == 1
    assert settings("bookiePort=1\nquire_mode=safe").finish(Sample) == []


def test_settings_missing_or_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.conf")
    with pytest.raises(ConfigError, match=r"missing.conf: cannot read .*No such file.*--conf"):
        Settings.read(missing, {})
    with pytest.raises(ConfigError, match="Is a directory"):
        Settings.read(str(tmp_path), {})
    latin = tmp_path / "latin.conf"
    latin.write_bytes("a=grüße".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin.conf: not UTF-8 at byte 4"):
        Settings.read(str(latin), {})


def test_settings_take_a_file_with_every_key_of_apache() -> None:
    """An operator's existing file must never stop the start for a key that BookKeeper knows."""
    vectors = json.loads((ROOT / "tests/vectors/config-defaults.json").read_text())
    keys = {
        row["key"] for part in ("server", "client", "storage_and_stats") for row in vectors[part]
    }
    keys |= set(vectors["reported_by_running_bookie"])
    for part in ("server", "client"):
        keys |= set(vectors[f"{part}_keys_without_simple_getter"])
    assert len(keys) > 300
    text = "".join(f"{key}=\n" for key in sorted(keys))
    assert len(settings(text).finish()) == len(keys)


def test_key_table_has_the_defaults_of_the_running_peer() -> None:
    vectors = json.loads((ROOT / "tests/vectors/config-defaults.json").read_text())
    derived = ("getZkAvailableBookiesPath", "isLocalScrubEnabled")  # computed from their key
    checked = 0
    for row in (*vectors["server"], *vectors["client"], *vectors["storage_and_stats"]):
        default = row["default"]
        if row.get("getter") in derived or default in (None, [], ""):
            continue
        if isinstance(default, list):
            default = ",".join(default)
        text = {True: "true", False: "false"}.get(default, str(default))
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(APACHE_KEYS[row["key"]].default or "nan") == default
        else:
            assert APACHE_KEYS[row["key"]].default == text
        checked += 1
    assert checked > 250


@pytest.mark.parametrize("config", classes_of(PAGE.read_text()))
def test_declarations_keep_apaches_names_types_and_defaults_or_say_why(config: type) -> None:
    assert config.__doc__
    for name, declared in options_of(config).items():
        assert declared.doc.endswith("."), f"{name}: documentation is a sentence"
        apache = APACHE_KEYS.get(declared.key)
        if declared.key.startswith("quire_"):
            assert apache is None
            continue
        assert apache is not None, f"{declared.key} is no key of Apache's: name it quire_..."
        assert declared.kind == apache.kind or (declared.kind, apache.kind) in {
            ("list", "str"), ("secret", "str"),
        }  # fmt: skip
        deviates = deviation_of(declared) is not None
        assert deviates == bool(declared.why), f"{declared.key}: a deviation needs a reason"


def test_page_for_operators_is_in_step_with_the_declarations() -> None:
    """To bring it up to date: python -m runtime.config_docs docs/configuration.md"""
    page = PAGE.read_text()
    assert filled(page) == page
    assert classes_of(page)[:4] == [MetadataConfig, HttpConfig, StatsConfig, LogConfig]


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("metadataServiceUri=zk://a:1;b:2/x", "zk://a:1;b:2/x"),
        ("zkServers=a:1,b:2", "zk+null://a:1;b:2/ledgers"),
        ("zkServers=a:1,b:2/chroot\nzkLedgersRootPath=/q", "zk+null://a:1;b:2/chroot/q"),
        ("zkServers=a:1\nmetadataServiceUri=zk://c/l", "zk://c/l"),
    ],
)
def test_metadata_uri_is_built_from_old_keys_when_it_is_not_set(text: str, uri: str) -> None:
    assert settings(text).build(MetadataConfig).uri() == uri


def test_metadata_uri_must_come_from_somewhere() -> None:
    with pytest.raises(ConfigError, match="metadataServiceUri is not set"):
        settings("").build(MetadataConfig).uri()


@pytest.mark.parametrize("path", ["ledgers", "/ledgers/", "/"])
def test_metadata_root_path_must_be_a_znode_path(path: str) -> None:
    with pytest.raises(ConfigError, match="zkLedgersRootPath"):
        settings(f"zkLedgersRootPath={path}").build(MetadataConfig)


def test_metadata_credentials_belong_together() -> None:
    with pytest.raises(ConfigError, match="belong together"):
        settings("quire_zkAuthScheme=digest\nquire_zkAuthUser=u").build(MetadataConfig)
    text = "quire_zkAuthScheme=digest\nquire_zkAuthUser=u\nquire_zkAuthPassword=pw"
    config = settings(text).build(MetadataConfig)
    assert config.auth_password == Secret("pw")


@pytest.mark.parametrize(
    "text",
    ["httpServerTlsEnable=true", "quire_httpCertificateFile=a\nquire_httpKeyFile=b"],
)
def test_https_is_all_or_nothing(text: str) -> None:
    """A key that is forgotten must not expose what was to be protected."""
    with pytest.raises(ConfigError, match="belong together: set all three or none"):
        settings(text).build(HttpConfig)
    whole = "httpServerTlsEnable=true\nquire_httpCertificateFile=a\nquire_httpKeyFile=b"
    assert settings(whole).build(HttpConfig).tls


def test_what_was_set_is_shown_without_secrets() -> None:
    text = "zkTimeout=5000\nquire_zkAuthPassword=hush\nlater=a\ntlsKeyStorePasswordPath=x\nlater=b"
    assert settings(text).given(MetadataConfig) == {
        "zkTimeout": "5000",
        "quire_zkAuthPassword": "***",
        "tlsKeyStorePasswordPath": "***",
        "later": "a,b",
    }


def test_stats_are_offered_when_apaches_provider_is_named() -> None:
    assert not settings("").build(StatsConfig).enabled
    name = "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"
    assert settings(f"statsProviderClass={name}").build(StatsConfig).enabled
