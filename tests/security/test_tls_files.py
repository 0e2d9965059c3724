"""Contexts from files: defaults, mistakes in one line, renewal without a restart."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.config import ConfigError
from runtime.tls import Certificates, TlsOptions, client_context, openssl_name, server_context
from runtime.tls_config import TLS_FACTORY, TlsConfig
from tests.security.certificates import Authority, Issued


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("files")


def options(issued: Issued, **changes: object) -> TlsOptions:
    given = {"certificate": issued.certificate, "key": issued.key} | changes
    return TlsOptions(**given)  # type: ignore[arg-type]


def test_only_modern_versions_and_suites_are_offered(issued: Issued) -> None:
    for context in (server_context(options(issued)), client_context(TlsOptions())):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        for suite in context.get_ciphers():
            assert suite["aead"], suite
            assert suite["kea"] in ("kx-ecdhe", "kx-any"), "no forward secrecy"


def test_a_client_checks_names_and_authorities_by_default() -> None:
    context = client_context(TlsOptions())
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_suites_by_javas_names_are_understood(issued: Issued) -> None:
    java = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    context = server_context(options(issued, ciphers=(java,), protocols=("TLSv1.2",)))
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    names = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] == "TLSv1.2"]
    assert names == ["ECDHE-RSA-AES256-GCM-SHA384"]
    chacha = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    assert openssl_name(chacha) == "ECDHE-ECDSA-CHACHA20-POLY1305"


def _no_file(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    return options(issued, key=str(folder / "nothing.pem"))


def _no_pem(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    path = folder / "junk.pem"
    path.write_bytes(os.urandom(100))
    return options(issued, certificate=str(path))


def _other_key(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    return options(issued, key=authority.issue("other").key)


def _locked_key(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    locked = authority.issue("locked", password=b"a planted secret")
    return options(locked)


def _wrong_password(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    locked = authority.issue("locked", password=b"a planted secret")
    (folder / "password").write_text("a wrong one")
    return options(locked, key_password_file=str(folder / "password"))


def _bad_trust(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    return options(issued, trust=issued.key, require_certificate=True)


def _no_trust(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    return options(issued, require_certificate=True)


def _wrong_store_password(authority: Authority, issued: Issued, folder: Path) -> TlsOptions:
    store = authority.store("store", issued, b"a planted secret")
    (folder / "password").write_text("a wrong one")
    return TlsOptions(key=store, key_type="PKCS12", key_password_file=str(folder / "password"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_no_file, "nothing.pem cannot be read: No such file"),
        (_no_pem, "junk.pem is no PEM file with a certificate"),
        (_other_key, "is not the key of the certificate in"),
        (_locked_key, "is encrypted: name a file with its password"),
        (_wrong_password, "check the file and its password"),
        (_bad_trust, "holds no certificate of an authority"),
        (_no_trust, "nothing says whose: set tlsTrustStore"),
        (_wrong_store_password, "its password is another"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    make: Callable[[Authority, Issued, Path], TlsOptions],
    said: str,
    authority: Authority,
    issued: Issued,
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        server_context(make(authority, issued, tmp_path))
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_old_versions_and_javas_stores_are_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"TLSv1\.2 or TLSv1\.3"):
        TlsOptions(protocols=("TLSv1.1",))
    with pytest.raises(ConfigError, match="keytool -importkeystore"):
        TlsOptions(key="store.jks", key_type="JKS")


def test_a_locked_key_and_a_java_store_are_opened(
    authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("a planted secret\n")
    locked = authority.issue("locked", password=b"a planted secret")
    server_context(options(locked, key_password_file=str(password)))
    store = authority.store("store", issued, b"a planted secret")
    trust = authority.trust_store(b"a planted secret")
    context = server_context(
        TlsOptions(
            key=store,
            key_type="PKCS12",
            key_password_file=str(password),
            trust=trust,
            trust_type="PKCS12",
            trust_password_file=str(password),
            require_certificate=True,
        )
    )
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.get_ca_certs()


# ---------------------------------------------------------------------- renewal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def renewed(authority: Authority, issued: Issued, tmp_path: Path) -> tuple[Certificates, Clock]:
    """Certificates in files of their own, and the time."""
    for path in (issued.certificate, issued.key):
        shutil.copy(path, tmp_path)
    own = Issued(
        str(tmp_path / Path(issued.certificate).name), str(tmp_path / Path(issued.key).name)
    )
    clock = Clock()
    return Certificates(options(own), server_context, refresh_seconds=10, clock=clock), clock


def test_renewed_certificates_are_used_without_a_restart(
    renewed: tuple[Certificates, Clock], authority: Authority
) -> None:
    certificates, clock = renewed
    before = certificates.current()
    new = authority.issue("new")
    assert certificates.options.certificate is not None
    shutil.copy(new.certificate, certificates.options.certificate)
    assert certificates.options.key is not None
    shutil.copy(new.key, certificates.options.key)
    assert certificates.current() is before, "files are not looked at for every connection"
    clock.now = 10.0
    assert certificates.current() is not before
    assert certificates.reloads == 1
    clock.now = 20.0
    certificates.current()
    assert certificates.reloads == 1, "nothing has changed"


def test_certificates_that_cannot_be_used_leave_the_old_ones_in_place(
    renewed: tuple[Certificates, Clock], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificates, clock = renewed
    before = certificates.current()
    new = authority.issue("new")
    assert certificates.options.certificate is not None
    shutil.copy(new.certificate, certificates.options.certificate)  # and its key is yet to come
    clock.now = 10.0
    assert certificates.current() is before
    assert "the old ones stay" in caplog.text
    assert certificates.options.key is not None
    shutil.copy(new.key, certificates.options.key)
    clock.now = 20.0
    assert certificates.current() is not before


# ---------------------------------------------------------------------- configuration


def test_a_client_shows_its_key_only_where_it_is_told_to(issued: Issued) -> None:
    shared = {"factory": TLS_FACTORY, "key": issued.key, "certificate": issued.certificate}
    quiet = TlsConfig(**shared).client()  # type: ignore[arg-type]
    assert quiet is not None
    assert quiet.key is None
    shown = TlsConfig(mutual=True, **shared).client()  # type: ignore[arg-type]
    assert shown is not None
    assert shown.key == issued.key
    assert TlsConfig().client() is None
    assert TlsConfig().server() is None


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="TLS is off"):
        TlsConfig(required=True)
    with pytest.raises(ConfigError, match="nothing to show"):
        TlsConfig(factory=TLS_FACTORY, mutual=True).client()
    with pytest.raises(ConfigError, match="set tlsKeyStore"):
        TlsConfig(factory=TLS_FACTORY).server()
