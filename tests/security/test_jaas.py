"""Java's files with users and passwords."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.config import ConfigError
from runtime.jaas import read_login, read_users

SAMPLE = """
/* what Apache's documentation shows */
Bookie {
  org.apache.zookeeper.server.auth.DigestLoginModule required
    user_alice="her \\"secret\\""  // the first
    user_bob='unquoted';
};
# and a client
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="alice"
  password="her \\"secret\\"";
};
Kerberos { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };
"""


@pytest.fixture
def sample(tmp_path: Path) -> str:
    path = tmp_path / "jaas.conf"
    path.write_text(SAMPLE)
    path.chmod(0o600)
    return str(path)


def test_users_and_logins_are_found_in_their_sections(sample: str) -> None:
    users = read_users(sample, "Bookie")
    assert users["alice"].reveal() == 'her "secret"'
    login = read_login(sample, "BookKeeper")
    assert (login.user, login.password.reveal()) == ("alice", 'her "secret"')


def test_passwords_are_not_shown(sample: str) -> None:
    assert "secret" not in repr(read_users(sample, "Bookie"))
    assert "secret" not in repr(read_login(sample, "BookKeeper"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("", "no section Bookie"),
        ("Bookie {", "does not end|wants"),
        ("Bookie { x.DigestLoginModule required user_a=b };", "does not end|wants"),
        ("Bookie { x.DigestLoginModule perhaps user_a=b; };", "needs one of required"),
        ('Bookie { x.DigestLoginModule required user_a="b; };', "quotation mark"),
        ("Bookie { x.DigestLoginModule required user_a b; };", "wants '='"),
        ("Bookie { x.Krb5LoginModule required user_a=b; };", "names no users"),
        ("Bookie { x.DigestLoginModule required username=a; };", "names no users"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "jaas.conf"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said) as refused:
        read_users(str(path), "Bookie")
    assert "\n" not in str(refused.value)


def test_a_file_that_everybody_may_read_is_warned_about(
    sample: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path(sample).chmod(0o644)
    read_users(sample, "Bookie")
    assert "chmod 600" in caplog.text
    assert "secret" not in caplog.text
