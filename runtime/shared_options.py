"""Options that every kind of process reads: metadata service, HTTP, metrics, logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runtime.config import ConfigError, option
from runtime.logs import LEVELS, Secret
from runtime.tls import TlsOptions

PORT_MAX: Final = 65535

_LOOPBACK = "Entries and metadata are read there without a password: open it on purpose or never."


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """Where the metadata is and how to get in."""

    service_uri: str | None = option(
        "metadataServiceUri",
        None,
        doc="The metadata service, as `zk://host:port;host:port/ledgers`. One of this key and "
        "`zkServers` must be set.",
    )
    servers: tuple[str, ...] = option(
        "zkServers",
        (),
        doc="ZooKeeper servers, `host:port` separated by commas, for files that have no "
        "`metadataServiceUri`.",
    )
    root_path: str = option(
        "zkLedgersRootPath", "/ledgers", doc="The root of the cluster; used with `zkServers` only."
    )
    session_timeout_ms: int = option(
        "zkTimeout",
        10000,
        minimum=1000,
        maximum=600000,
        doc="Session time-out in ms: how long a lost process stays registered.",
    )
    restrict_access: bool = option(
        "zkEnableSecurity",
        False,
        doc="Create nodes that only their creator may use. Every process of the cluster must then "
        "log in as the same user.",
    )
    auth_scheme: str | None = option(
        "quire_zkAuthScheme",
        None,
        choices=("digest", "sasl"),
        doc="How to log in to ZooKeeper: `digest`, or `sasl` (DIGEST-MD5). Unset: anonymously.",
    )
    auth_user: str | None = option("quire_zkAuthUser", None, doc="The user to log in as.")
    auth_password: Secret | None = option(  # noqa: RUF009 (declares a field; a Secret is a value)
        "quire_zkAuthPassword",
        None,
        doc="The password. Prefer the variable `BK_quire_zkAuthPassword` to a file.",
    )
    tls: bool = option(
        "quire_zkTls", False, doc="Speak TLS with ZooKeeper: name its secure port in the address."
    )
    tls_trust: str | None = option(
        "quire_zkTlsTrustStore",
        None,
        doc="PEM: the authorities that may vouch for ZooKeeper. Unset: the operating system's.",
    )
    tls_certificate: str | None = option(
        "quire_zkTlsCertificatePath", None, doc="PEM: our certificate, if ZooKeeper wants one."
    )
    tls_key: str | None = option("quire_zkTlsKeyStore", None, doc="PEM: its key.")
    tls_key_password_file: str | None = option(
        "quire_zkTlsKeyStorePasswordPath", None, doc="A file with the password of the key."
    )
    tls_check_hostname: bool = option(
        "quire_zkTlsHostnameVerification",
        True,
        doc="Want ZooKeeper's certificate to name the host that is dialled.",
    )

    def __post_init__(self) -> None:
        credentials = (self.auth_scheme, self.auth_user, self.auth_password)
        if any(credentials) and not all(credentials):
            raise ConfigError(
                "quire_zkAuthScheme, quire_zkAuthUser and quire_zkAuthPassword belong together: "
                "set all three or none"
            )
        if not self.tls and (self.tls_trust or self.tls_certificate or self.tls_key):
            raise ConfigError("quire_zkTls is false, and files for it are named: set it to true")
        if not self.root_path.startswith("/") or self.root_path.rstrip("/") != self.root_path:
            raise ConfigError(
                f"zkLedgersRootPath is {self.root_path!r}; it must begin with / and not end with it"
            )

    def tls_options(self) -> TlsOptions | None:
        if not self.tls:
            return None
        return TlsOptions(
            trust=self.tls_trust,
            certificate=self.tls_certificate,
            key=self.tls_key,
            key_password_file=self.tls_key_password_file,
            check_hostname=self.tls_check_hostname,
        )

    def uri(self) -> str:
        """The metadata service; built from `zkServers` as Apache builds it when there is no URI."""
        if self.service_uri is not None:
            return self.service_uri
        if not self.servers:
            raise ConfigError(
                "metadataServiceUri is not set; give zk://host:port/ledgers, for example"
            )
        # A chroot behind the last server ends up in front of the root path.
        last, slash, chroot = self.servers[-1].partition("/")
        hosts = ";".join((*self.servers[:-1], last))
        return f"zk+null://{hosts}{slash}{chroot.rstrip('/')}{self.root_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The admin HTTP server."""

    enabled: bool = option("httpServerEnabled", False, doc="Serve the admin paths.")
    host: str = option(
        "httpServerHost", "127.0.0.1", doc="The address to listen on.", why=_LOOPBACK
    )
    port: int = option(
        "httpServerPort", 8080, minimum=0, maximum=PORT_MAX, doc="The port; 0 picks a free one."
    )
    tls: bool = option(
        "httpServerTlsEnable",
        False,
        doc="Serve HTTPS, with the PEM files of `quire_httpCertificateFile` and "
        "`quire_httpKeyFile`. Apache's key stores are not read.",
    )
    certificate_file: str | None = option(
        "quire_httpCertificateFile",
        None,
        doc="With `httpServerTlsEnable`: the certificate and those that it was signed by, as PEM.",
    )
    key_file: str | None = option(
        "quire_httpKeyFile", None, doc="With `httpServerTlsEnable`: its private key, as PEM."
    )
    token_file: str | None = option(
        "quire_httpTokenFile",
        None,
        doc="A file with one line, the token that everything needs that changes something, as "
        "`Authorization: Bearer <token>`. Unset: changes are taken from this machine only.",
    )
    names: tuple[str, ...] = option(
        "quire_httpServerNames",
        (),
        doc="Further host names under which the server is used. It answers to addresses, to "
        "`localhost` and to the name of its machine anyway, and to no other name.",
    )

    def __post_init__(self) -> None:
        parts = (self.tls, self.certificate_file, self.key_file)
        if any(parts) and not all(parts):
            raise ConfigError(
                "httpServerTlsEnable, quire_httpCertificateFile and quire_httpKeyFile belong "
                "together: set all three or none"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsConfig:
    """Metrics for Prometheus. With the HTTP server on they are its `/metrics`."""

    provider: str = option(
        "statsProviderClass",
        "org.apache.bookkeeper.stats.NullStatsProvider",
        choices=(
            "org.apache.bookkeeper.stats.NullStatsProvider",
            "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
        ),
        doc="Whether to offer metrics; Apache's class names, of which we know two.",
    )
    own_server: bool = option(
        "prometheusStatsHttpEnable",
        True,
        doc="Serve `/metrics` on a port of its own when the HTTP server is off.",
    )
    host: str = option(
        "prometheusStatsHttpAddress", "127.0.0.1", doc="The address of that server.", why=_LOOPBACK
    )
    port: int = option(
        "prometheusStatsHttpPort",
        8000,
        minimum=0,
        maximum=PORT_MAX,
        doc="The port of that server; 0 picks a free one.",
    )
    latency_window_seconds: int = option(
        "prometheusStatsLatencyRolloverSeconds",
        60,
        minimum=1,
        maximum=3600,
        doc="How far back the quantiles of summaries look, in seconds.",
    )

    @property
    def enabled(self) -> bool:
        return self.provider.endswith("PrometheusMetricsProvider")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is written to standard error."""

    level: str = option(
        "quire_logLevel", "info", choices=LEVELS, doc="The least important lines to write."
    )
    format: str = option(
        "quire_logFormat", "text", choices=("text", "json"), doc="Lines for people or for machines."
    )
