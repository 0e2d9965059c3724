"""The page for operators shows every path, with methods that these have."""

from __future__ import annotations

import re
from pathlib import Path

from tests.http.test_vectors import PAGES

PAGE = (Path(__file__).parent.parent.parent / "docs" / "http.md").read_text()


def examples() -> set[tuple[str, str]]:
    """Method and path of each line with curl."""
    found = set()
    for line in re.findall(r"^curl .*$", PAGE, re.M):
        method = re.search(r"-X (\w+)", line)
        path = re.search(r"http://127\.0\.0\.1:8080(/[\w/]+)", line)
        assert path is not None, line
        found.add((method[1] if method else "GET", path[1]))
    return found


def test_every_path_has_an_example_for_each_of_its_methods() -> None:
    wanted = {
        (method, path)
        for path, methods in PAGES.items()
        for method in (methods if path != "/heartbeat" else {"GET"})
    }
    assert examples() == wanted


def test_every_path_of_apaches_is_there() -> None:
    """As the captured requests have them."""
    from tests.http.exchanges import captured

    asked = {row["path"] for row in captured() if row["status"] == 200}
    missing = [path for path in asked if re.sub("/+", "/", path).rstrip("/") not in PAGES]
    assert not missing
