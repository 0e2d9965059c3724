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


@pytest.mark.parametrize(
    "options",
    [
        'username="a" password="secret" "secret";',
        "username=a password=very secret;",
        'username="a"; "secret" required;',
        'username="a"; secret;',
        'username="a";\n}; "secret\nline" { x.Other required; ',
        'username="a"; }; "secret" ; ',
    ],
)
def test_no_error_repeats_what_may_be_a_password(
    tmp_path: Path, options: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by fuzzing: what stood in the wrong place was shown."""
    path = tmp_path / "jaas.conf"
    path.write_text(f"Other {{\n  x.DigestLoginModule required\n  {options} }};")
    with pytest.raises(ConfigError) as refused:
        read_login(str(path), "BookKeeper")
    assert "secret" not in str(refused.value) + caplog.text
    assert "\n" not in str(refused.value)


def test_an_error_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text('/* one\n two */\nBookie {\n  x.DigestLoginModule required\n  user_a "b"; };')
    with pytest.raises(ConfigError, match=r"jaas\.conf:5: an option's name wants '='"):
        read_users(str(path), "Bookie")


def test_marks_in_quotation_marks_are_text(tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text('Bookie { x.DigestLoginModule required user_a=";" user_b="}" user_c="="; };')
    found = read_users(str(path), "Bookie")
    assert {name: password.reveal() for name, password in found.items()} == {
        "a": ";", "b": "}", "c": "="
    }  # fmt: skip


def test_a_file_that_everybody_may_read_is_warned_about(
    sample: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path(sample).chmod(0o644)
    read_users(sample, "Bookie")
    assert "chmod 600" in caplog.text
    assert "secret" not in caplog.text
