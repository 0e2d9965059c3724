"""Every example in the documents and docstrings of the client runs, on a live cluster."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ledger_client
from tests.ledger_client.live.cluster import LiveCluster

ROOT = Path(__file__).parent.parent.parent.parent
URI = "zk://127.0.0.1:2181/ledgers"
PAGES = ["docs/client.md"]
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append((f"{page}:{line}", match[1]))
    assert found, "no examples found: the test looks in the wrong place"
    return found


@pytest.mark.parametrize(("name", "source"), [pytest.param(n, s, id=n) for n, s in blocks()])
def test_example_runs(cluster: LiveCluster, name: str, source: str) -> None:
    assert URI in source, f"{name}: examples name {URI}, which is replaced here"
    code = compile(source.replace(URI, cluster.uri), name, "exec")
    exec(code, {"__name__": "example"})


def docstring_tests() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = []
    for module in pkgutil.walk_packages(ledger_client.__path__, "ledger_client."):
        if not module.name.endswith("__main__"):
            found += finder.find(importlib.import_module(module.name), module.name)
    found += finder.find(ledger_client)
    tests = [test for test in found if test.examples]
    assert tests, "no examples found: the test looks in the wrong place"
    return tests


@pytest.mark.parametrize("test", [pytest.param(t, id=t.name) for t in docstring_tests()])
def test_docstring_is_true(cluster: LiveCluster, test: doctest.DocTest) -> None:
    for example in test.examples:
        example.source = example.source.replace(URI, cluster.uri)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
