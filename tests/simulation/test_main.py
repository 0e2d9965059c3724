"""What `make simulate` says."""

from __future__ import annotations

import sys

import pytest

from tests.simulation import __main__ as command
from tests.simulation.planted import BUGS


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments])
    return command.main()


def test_seeds_that_are_green_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seeds", "7", "--first", "3") == 0
    said = capsys.readouterr().out
    assert "7 seeds of the inner ring" in said
    assert "no invariant was violated" in said


def test_a_failure_names_seed_and_invariant_tells_the_story_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = next(bug for bug in BUGS if bug.name == "one ack too few")
    with bug.planted():
        assert run(monkeypatch, "--seeds", "20") == 1
        said = capsys.readouterr().out
        seed = said.split("SEED=")[1].split()[0]
        assert f"seed {seed} violates I2" in said
        assert "W sends a copy of 0" in said
        assert f"replay it with: make simulate SEED={seed}" in said
        assert run(monkeypatch, "--seed", seed) == 1
    assert "violates I2" in capsys.readouterr().out


def test_one_seed_is_told_as_a_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seed", "3") == 0
    said = capsys.readouterr().out
    assert "everything is healed" in said
    assert "seed 3: no invariant was violated" in said


def test_several_processes_share_the_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seeds", "60", "--jobs", "2") == 0
    assert "60 seeds of the inner ring" in capsys.readouterr().out
