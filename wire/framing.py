"""Frames on a byte stream: a length of four bytes, then that many bytes of payload.

`FrameBuffer` stands between a socket, which delivers bytes cut anywhere, and the scanners, which
want many whole frames in one contiguous `bytes` object. It is made for the usual case, hundreds of
small frames per receive: the received object is scanned where it is, and only the incomplete frame
at its end is copied, once, in front of the next receive.
"""

from __future__ import annotations

import struct
from typing import Final

from wire.errors import ProtocolError
from wire.types import FRAME_BYTES_MAX

LENGTH_BYTES: Final = 4

_LENGTH: Final = struct.Struct(">i")
#: Receives below this are put together at once, so that a frame is never thousands of pieces.
_PIECE_BYTES: Final = 16 * 1024


def frame(payload: bytes) -> bytes:
    """One payload as a frame."""
    return _LENGTH.pack(len(payload)) + payload


def payload_length(data: bytes | bytearray, position: int, limit: int = FRAME_BYTES_MAX) -> int:
    """The payload length of the frame that starts at `position`, checked against the limit.

    The limit counts the four length bytes too, as Apache's does.
    """
    (length,) = _LENGTH.unpack_from(data, position)
    if length <= 0 or length + LENGTH_BYTES > limit:
        raise ProtocolError(
            f"frame announces {length} bytes of payload; between 1 and {limit - LENGTH_BYTES} are"
            " allowed: close the connection, or raise the frame limit on both ends"
        )
    return int(length)


class FrameBuffer:
    """Collects what a stream delivers and offers the whole frames in it.

    `data` is contiguous and its next frame begins at `start`. A scanner walks from there, moves
    `start` behind every frame it has taken, and leaves the incomplete rest alone. Received bytes
    are never rewritten, so offsets into an older `data` stay good for whoever kept that object.

    While a frame longer than one receive is on its way, `data` is empty and its pieces gather
    until they can be joined, once: each byte is copied a constant number of times. (Joining at
    every receive would make a 5 MiB frame cost as much as 200 MiB; one buffer that grows is moved
    so often by the allocator that a frame of 1 MiB takes ten times as long.) What is held is never
    more than the frame limit and one receive.
    """

    __slots__ = ("_gathered", "_pieces", "_wanted", "data", "limit", "start")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self.limit = limit
        self.data = b""
        self.start = 0
        self._pieces: list[bytes | bytearray] = []
        self._gathered = 0  # bytes in the pieces
        self._wanted = 0  # bytes of the frame being gathered, with its length

    @property
    def held_bytes(self) -> int:
        """How much has been received and not been taken yet."""
        return len(self.data) - self.start + self._gathered

    def feed(self, chunk: bytes) -> None:
        """Take one receive. Raises ProtocolError if the frame that it continues is too big."""
        if self._gathered:
            self._gather(chunk)
            if self._gathered >= self._wanted:
                self.data, self.start = self._take_pieces(), 0
            return
        rest = len(self.data) - self.start
        if rest == 0:
            self.data, self.start = chunk, 0
            return
        if rest >= LENGTH_BYTES:
            wanted = payload_length(self.data, self.start, self.limit) + LENGTH_BYTES
            if rest + len(chunk) < wanted:
                self._gather(self.data[self.start :])
                self._gather(chunk)
                self._wanted = wanted
                self.data, self.start = b"", 0
                return
        self.data, self.start = self.data[self.start :] + chunk, 0

    def peek(self) -> int | None:
        """The first payload byte of the next frame, which tells v3 (0x0a) from v2 (0, 1, 2).

        None while that frame is not there; a frame that is still gathering counts as not there.
        """
        position = self.start + LENGTH_BYTES
        return self.data[position] if position < len(self.data) else None

    def next_frame(self) -> bytes | None:
        """Take the payload of the next frame; None while it is incomplete.

        For everything but the hot path, whose scanners walk `data` themselves.
        """
        position = self.start + LENGTH_BYTES
        if position > len(self.data):
            return None
        end = position + payload_length(self.data, self.start, self.limit)
        if end > len(self.data):
            return None
        self.start = end
        return self.data[position:end]

    def take_rest(self) -> bytes:
        """Take all bytes that no frame has claimed: behind START_TLS they belong to TLS."""
        rest = self.data[self.start :] + self._take_pieces()
        self.data, self.start = b"", 0
        return rest

    def _gather(self, chunk: bytes) -> None:
        self._gathered += len(chunk)
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) < _PIECE_BYTES:
            last += chunk
        else:
            self._pieces.append(bytearray(chunk) if len(chunk) < _PIECE_BYTES else chunk)

    def _take_pieces(self) -> bytes:
        joined = b"".join(self._pieces)
        self._pieces, self._gathered = [], 0
        return joined
