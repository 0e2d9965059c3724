"""Tidiness as a test: what a reader would stumble over is found here first."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "wire", "runtime", "metadata", "bookie", "ledger_client", "autorecovery", "spark", "quire",
)  # fmt: skip
MODULE_LINES_MAX = 500


def tracked() -> list[str]:
    """Files of the repository, as git knows them; new ones included, ignored ones not."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [name for name in out.splitlines() if (ROOT / name).is_file()]


def sources() -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and not name.endswith("_pb2.py")]


def texts() -> list[tuple[str, str]]:
    """Text files written by us (captured vectors and the licence are not)."""
    skipped = ("tests/vectors/", "LICENSE")
    suffixes = {".py", ".md", ".cfg", ".toml", ".txt", ".proto", ".yml", ".conf", ""}
    return [
        (name, (ROOT / name).read_text())
        for name in tracked()
        if not name.startswith(skipped) and Path(name).suffix in suffixes
    ]


def lines_with(pattern: str, names: tuple[str, ...] = ()) -> list[str]:
    wanted = re.compile(pattern)
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        if name != "tests/test_tidy.py" and (not names or name.startswith(names))
        for number, line in enumerate(text.splitlines(), 1)
        if wanted.search(line)
    ]


@pytest.mark.parametrize("name", sources())
def test_module_is_small_enough_to_read(name: str) -> None:
    count = len((ROOT / name).read_text().splitlines())
    assert count <= MODULE_LINES_MAX, f"{name} has {count} lines: two names would say more than one"


def test_packages_print_nothing() -> None:
    """Programs speak through logs and the command line's own console."""
    folders = tuple(f"{package}/" for package in PACKAGES)
    found = lines_with(r"^\s*print\(", folders)
    assert not found, "\n".join(found)


def test_nothing_is_left_unfinished() -> None:
    found = lines_with(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
    assert not found, "\n".join(found)


def test_no_path_of_one_machine_is_named() -> None:
    """Apache's defaults, which we name and do not use, are the exception."""
    found = lines_with(r"(^|[\s\"'=(`])/(work|root|home)/|[\"'`]/tmp/(?!bk-(txn|data)`)")
    assert not found, "\n".join(found)


def test_no_package_registry_is_named() -> None:
    found = lines_with(r"(?i)pypi\.org|pythonhosted|repo1?\.maven|registry\.npmjs|deb\.debian\.org")
    assert not found, "\n".join(found)


def test_no_test_is_skipped() -> None:
    """A skipped test proves nothing. What a machine lacks is told by one place, and fails in CI."""
    found = lines_with(r"pytest\.(mark\.)?(skip|xfail|importorskip)", ("tests/",))
    assert not [line for line in found if not line.startswith("tests/support/needs.py")], found


def test_every_folder_of_tests_is_a_package() -> None:
    """Without `__init__.py`, `tests/wire` would shadow `wire`."""
    folders = {str(Path(name).parent) for name in sources() if name.startswith("tests/")}
    missing = [folder for folder in folders if not (ROOT / folder / "__init__.py").exists()]
    assert not missing


def test_every_package_is_installed() -> None:
    """`packages` in setup.cfg is an explicit list; a new package must be added to it."""
    text = (ROOT / "setup.cfg").read_text()
    listed = set(re.search(r"^packages =\n((?:    \S+\n)+)", text, re.M).group(1).split())  # type: ignore[union-attr]
    present = {
        str(Path(name).parent).replace("/", ".")
        for name in sources()
        if name.startswith(tuple(f"{package}/" for package in PACKAGES))
    }
    assert present == listed


def test_changelog_has_its_form() -> None:
    """Unreleased on top; every entry stands under one of the four headings for users."""
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[0] == "Unreleased"
    kinds = set(re.findall(r"^### (.+)$", text, re.M))
    assert kinds <= {"Safety", "Compatibility", "Features", "Internals"}


def test_what_make_installs_is_what_the_constraints_name() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    locked = re.findall(r"^(\S+==\S+) \\$", lock, re.MULTILINE)
    assert locked == [line for line in constraints if not line.startswith("#")]
    assert all(re.search(rf"^{re.escape(line)} \\\n    --hash=", lock, re.M) for line in locked)
