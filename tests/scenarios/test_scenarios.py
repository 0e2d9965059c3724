"""Every story beside this file, told again. `QUIRE_REWRITE=1` writes what happens today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.reader_story import LacStory, ReaderStory
from tests.scenarios.recovery_story import RecoveryStory
from tests.scenarios.runner import REWRITE, Arguments, Story, check, told
from tests.scenarios.writer_story import WriterStory

HERE = Path(__file__).parent
KINDS: dict[str, Callable[[Arguments], Story]] = {
    "writer": WriterStory,
    "reader": ReaderStory,
    "lac": LacStory,
    "recovery": RecoveryStory,
}
STORIES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_goes_as_it_is_told(path: Path) -> None:
    check(path, KINDS)


def test_there_are_stories() -> None:
    assert STORIES


def test_a_story_that_goes_otherwise_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REWRITE, raising=False)
    path = tmp_path / "wrong.txt"
    path.write_text("writer E=3 Qa=2\n----\nready\n\nadd\n----\nconfirm through 0\n")
    with pytest.raises(AssertionError):
        check(path, KINDS)
    assert "package 0..0" in told(path, KINDS)
