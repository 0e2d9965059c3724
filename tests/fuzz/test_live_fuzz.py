"""The live attack in short; the long one is `python -m tests.fuzz live --frames 10000000`."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.live import fuzz_bookie

FRAMES = 20_000


async def test_hostile_frames_hurt_neither_the_bookie_nor_its_neighbour(tmp_path: Path) -> None:
    figures = await fuzz_bookie(tmp_path, FRAMES, seed=1)
    assert figures.frames >= FRAMES
    assert figures.answer_bytes, "some of the frames were understood"
    assert figures.rounds
