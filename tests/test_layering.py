"""Imports point one way, pure parts stay pure, each foreign library has one door.

Reads the imports of every module with `ast`; nothing is imported. DESIGN's house rules in one file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: What each package may import of the others.
MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "runtime": {"wire"},
    "metadata": {"wire", "runtime"},
    "bookie": {"wire", "runtime", "metadata"},
    "ledger_client": {"wire", "runtime", "metadata"},
    "autorecovery": {"wire", "runtime", "metadata", "ledger_client"},
    "spark": {"wire", "runtime", "metadata", "ledger_client"},
    "quire": {
        "wire", "runtime", "metadata", "bookie", "ledger_client", "autorecovery", "spark",
    },
}  # fmt: skip

#: The only modules that may import a library.
DOORS: dict[str, tuple[str, ...]] = {
    "kazoo": ("metadata/zookeeper.py", "metadata/zookeeper_handler.py"),
    "rocksdict": ("bookie/storage/index.py",),
    "prometheus_client": ("runtime/metrics.py",),
    "pyspark": ("spark/",),
    "pyarrow": ("spark/", "ledger_client/arrow_batches.py"),
    "starlette": ("quire/", "runtime/http"),
    "hypercorn": ("runtime/http.py", "runtime/http1.py"),
    "click": ("quire/", "ledger_client/command_line.py", "ledger_client/terminal.py"),
    "rich": ("quire/output.py", "ledger_client/terminal.py"),
    "crc32c": ("wire/", "bookie/storage/"),
    "google": ("wire/", "metadata/"),
}

#: Modules that decide and never wait: values in, values out.
PURE = ("wire/", "/core/")
PURE_METADATA = {
    f"metadata/{name}.py"
    for name in ("model", "codec", "paths", "layout", "uri", "cookie", "service_info", "records")
}
IMPURE_MODULES = {
    "asyncio", "io", "kazoo", "os", "pathlib", "pyspark", "rocksdict", "secrets", "select",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "trio",
}  # fmt: skip
#: `random.Random` is a value that the caller seeds; the functions of the module are global state.
IMPURE_CALLS = {"random": {"Random"}, "datetime": set()}


def modules() -> list[Path]:
    found = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]
    assert found, "no modules found: the test looks in the wrong place"
    return [path for path in found if not path.name.endswith("_pb2.py")]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.lineno, node.module


def is_pure(path: Path) -> bool:
    name = name_of(path)
    return name.startswith(PURE[0]) or PURE[1] in name or name in PURE_METADATA


def broken_rules(path: Path) -> Iterator[str]:
    name = name_of(path)
    package = name.split("/")[0]
    for line, imported in imports(path):
        top = imported.split(".")[0]
        where = f"{name}:{line} imports {imported}"
        if top in ("tests", "bench"):
            yield f"{where}: packages never import tests or benchmarks"
        elif top in MAY_IMPORT and top != package and top not in MAY_IMPORT[package]:
            yield f"{where}: {package} may import only {sorted(MAY_IMPORT[package])}"
        elif top in DOORS and not name.startswith(DOORS[top]):
            yield f"{where}: the door to {top} is {' or '.join(DOORS[top])}"
        if not is_pure(path):
            continue
        if top in IMPURE_MODULES:
            yield f"{where}: this module is pure"
        if package == "wire" and top not in sys.stdlib_module_names | {"wire", "crc32c", "google"}:
            yield f"{where}: wire/ uses the standard library, crc32c and protobuf only"


def impure_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            allowed = IMPURE_CALLS.get(node.value.id)
            if allowed is not None and node.attr not in allowed:
                yield f"{name_of(path)}:{node.lineno} uses {node.value.id}.{node.attr}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_module_keeps_the_house_rules(path: Path) -> None:
    broken = list(broken_rules(path))
    if is_pure(path):
        broken += impure_calls(path)
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("wire/x.py", "import runtime.files"),
        ("wire/x.py", "import trio"),
        ("wire/x.py", "import random\nrandom.random()"),
        ("bookie/x.py", "from ledger_client import LedgerClient"),
        ("bookie/x.py", "import kazoo.client"),
        ("bookie/core/x.py", "import time"),
        ("metadata/x.py", "def f():\n    import bookie.server"),
        ("runtime/x.py", "from tests.support import zookeeper"),
    ],
)
def test_rules_catch_a_wrong_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert list(broken_rules(path)) + list(impure_calls(path))
