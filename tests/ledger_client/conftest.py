"""What tests of connections share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.memory_sockets import MemoryStream


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each call of the kernel that sends."""
    made: list[int] = []
    send = MemoryStream.send_pieces_now

    def counted(stream: MemoryStream, pieces: Sequence[bytes | memoryview]) -> int:
        made.append(send(stream, pieces))
        return made[-1]

    monkeypatch.setattr(MemoryStream, "send_pieces_now", counted)
    return made
