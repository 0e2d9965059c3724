"""Apache BookKeeper's jars: from Maven by the coordinates in `pom.xml`, once per version.

They stay in `.cache/`. Small Java sources of ours are compiled against them when first needed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from runtime.java import find_java

NEWEST: Final = "4.18.0"
OLDER: Final = "4.17.3"

ROOT: Final = Path(__file__).parent.parent.parent
_CACHE: Final = ROOT / ".cache" / "interop"
_POM: Final = Path(__file__).with_name("pom.xml")
_RESOLVE_SECONDS: Final = 600
_COMPILE_SECONDS: Final = 120

#: What a JVM of ours says goes to its standard error, and no information below a warning.
LOGGING: Final = """\
appenders = console
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRefs = stderr
rootLogger.appenderRef.stderr.ref = stderr
"""


class JavaPeerError(Exception):
    """The Java side cannot be had."""


def resolve_jars(version: str) -> Path:
    """The folder with this version of BookKeeper and all that it needs, fetched if need be."""
    # A change of the coordinates must not find the jars of the old ones.
    folder = _CACHE / f"{version}-{_digest(_POM.read_bytes())}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaPeerError("Apache's jars come by Maven: install it so that `mvn` is on the PATH")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        jars = Path(temporary, "jars")
        command = [
            *(maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
            *("-Dstyle.color=never", f"-Dbookkeeper.version={version}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS)
        if done.returncode != 0:
            lines = (line.removeprefix("[ERROR]").strip() for line in done.stdout.splitlines())
            said = [line for line in lines if line]
            raise JavaPeerError(
                f"Maven cannot fetch BookKeeper {version}; is the network there? "
                f"It says: {said[0] if said else done.stderr.strip()[-300:]}"
            )
        _publish(jars, folder)
    return folder


def compile_java(source: Path, version: str) -> str:
    """A class path with this one class of ours, compiled, before everything of BookKeeper's."""
    jars = resolve_jars(version)
    folder = _CACHE / f"{source.stem}-{jars.name}-{_digest(source.read_bytes())}"
    if not folder.exists():
        compiler = find_java().path.resolve().with_name("javac")
        if not compiler.exists():
            raise JavaPeerError(f"{compiler} is missing: install a JDK, a runtime is not enough")
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            classes = Path(temporary, "classes")
            arguments = ["-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(source)]
            command = [str(compiler), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
            if done.returncode != 0:
                raise JavaPeerError(f"{source.name} does not compile:\n{done.stderr}")
            _publish(classes, folder)
    return f"{folder}:{jars}/*"


def write_logging(folder: Path) -> str:
    """The option by which a JVM logs as we like it."""
    path = folder / "log4j2.properties"
    path.write_text(LOGGING)
    return f"-Dlog4j2.configurationFile={path}"


def _publish(made: Path, folder: Path) -> None:
    # Whoever was faster wins; the content is the same.
    if not folder.exists():
        made.rename(folder)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
