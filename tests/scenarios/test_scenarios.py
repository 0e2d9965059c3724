"""Every story beside this file, told again. `QUIRE_REWRITE=1` writes what happens today."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.reader_story import LacStory, ReaderStory
from tests.scenarios.recovery_story import RecoveryStory
from tests.scenarios.runner import REWRITE, Arguments, Story, told
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
    today = told(path, KINDS)
    if os.environ.get(REWRITE):
        path.write_text(today)
    assert path.read_text() == today


def test_there_are_stories() -> None:
    assert STORIES


def test_a_story_that_goes_otherwise_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("writer E=3 Qa=2\n----\nready\n\nadd\n----\nconfirm through 0\n")
    today = told(path, KINDS)
    assert today != path.read_text()
    assert "package 0..0" in today
