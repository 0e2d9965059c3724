"""The live attack in short; the long one is `python -m tests.fuzz live --frames 10000000`."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.live import fuzz_bookie
from tests.fuzz.live_site import Plan


async def test_hostile_frames_hurt_neither_the_bookie_nor_its_neighbour(tmp_path: Path) -> None:
    figures = await fuzz_bookie(tmp_path, Plan(frames=15_000, seed=1, http=True))
    assert figures.frames >= 15_000
    assert figures.answer_bytes, "some of the frames were understood"
    assert figures.http_bytes, "some of the requests were understood"
    assert figures.rounds


async def test_hostile_frames_before_and_behind_a_password_hurt_nobody(tmp_path: Path) -> None:
    figures = await fuzz_bookie(tmp_path, Plan(frames=5_000, seed=2, guarded=True))
    assert 0 < figures.admitted < figures.connections
    assert figures.answer_bytes
    assert figures.rounds
