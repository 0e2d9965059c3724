"""A target: a reader of bytes that may refuse them with an error of ours and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from wire.errors import LedgerError

CORPUS = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    name: str
    feed: Callable[[bytes], None]  # whatever it raises is a bug
    seeds: Callable[[], Iterable[bytes]]
    changes: int = 1500  # changed inputs that `make test` tries

    @property
    def corpus(self) -> Path:
        """Inputs that reached something new once: one a line, in hex."""
        return CORPUS / f"{self.name}.hex"

    def kept(self) -> list[bytes]:
        lines = self.corpus.read_text().split() if self.corpus.exists() else []
        return [b"" if line == "-" else bytes.fromhex(line) for line in lines]

    def keep(self, inputs: Iterable[bytes]) -> None:
        lines = sorted({data.hex() or "-" for data in inputs}, key=lambda line: (len(line), line))
        if lines:
            self.corpus.write_text("".join(f"{line}\n" for line in lines))
        else:
            self.corpus.unlink(missing_ok=True)


def judged(parse: Callable[[bytes], object], data: bytes) -> object:
    """What `parse` makes of it, or the name of the error of ours that it raised."""
    try:
        return parse(data)
    except LedgerError as error:
        refusal = error
    assert "\n" not in str(refusal), f"an error is one line: {refusal}"
    return type(refusal).__name__


def mutations(seeds: list[bytes], count: int, seed: str | bytes) -> Iterator[bytes]:
    """Changed inputs, the same for the same seed: what runs where no coverage guides."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 4))):
            _change(data, rng, seeds)
        yield bytes(data)


_NUMBERS = (0, 1, -1, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFFF, -0x80000000, (1 << 63) - 1, -(1 << 63))


def _change(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(6)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        size = rng.choice((1, 2, 4, 8))
        number = rng.choice(_NUMBERS) & ((1 << 8 * size) - 1)
        data[at : at + size] = number.to_bytes(size, "big")
    elif kind == 2:
        del data[at : at + rng.choice((1, 4, 8, 40))]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 40)))
    elif kind == 4:
        other = rng.choice(seeds)
        start = rng.randrange(len(other) + 1)
        data[at:at] = other[start : start + rng.choice((4, 16, 64))]
    else:
        del data[at:]
