"""Protobuf's variable-length integers, for the few places that bypass the protobuf library.

Seven bits per byte, least significant first, the top bit of a byte says that another follows.
Signed numbers are written as their 64-bit two's complement, so every negative one takes ten bytes.
"""

from __future__ import annotations

from typing import Final

_WORD: Final = 1 << 64
_SIGN: Final = 1 << 63

# Adds and reads write several numbers per entry, nearly all below 2**28: two look-ups and a
# concatenation take a third of the time of a loop. The tables hold 2.1 MB.
#: The varints of 0 to 2**14 - 1, by value.
SHORT_VARINTS: Final = [bytes((low,)) for low in range(0x80)] + [
    bytes((value & 0x7F | 0x80, value >> 7)) for value in range(0x80, 0x4000)
]
_LOW_HALF: Final = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(0x4000)]


def encode_varint(value: int) -> bytes:
    """The shortest form of a number from -2**63 to 2**64 - 1."""
    if 0x4000 <= value < 0x1000_0000:
        return _LOW_HALF[value & 0x3FFF] + SHORT_VARINTS[value >> 14]
    if 0 <= value < 0x4000:
        return SHORT_VARINTS[value]
    assert -_SIGN <= value < _WORD, f"{value} does not fit into 64 bits"
    value %= _WORD
    head = b""
    while value >= 0x4000:
        head += _LOW_HALF[value & 0x3FFF]
        value >>= 14
    return head + SHORT_VARINTS[value]


def decode_varint(raw: bytes) -> int:
    """The unsigned value of `raw`, which is exactly one varint of up to ten bytes.

    Bits beyond the 64th are dropped, as protobuf does. The subtractions take away the top bits of
    all bytes but the last at once.
    """
    size = len(raw)
    if size == 3:
        return raw[0] + (raw[1] << 7) + (raw[2] << 14) - 0x4080
    if size == 2:
        return raw[0] + (raw[1] << 7) - 0x80
    if size == 1:
        return raw[0]
    value = raw[0] + (raw[1] << 7) + (raw[2] << 14) + (raw[3] << 21) - 0x20_4080
    if size == 4:
        return value
    value -= 0x1000_0000
    for index in range(4, size):
        value += (raw[index] & 0x7F) << 7 * index
    return value % _WORD


def decode_signed_varint(raw: bytes) -> int:
    """The value of `raw`, which is exactly one varint that holds an int64."""
    value = decode_varint(raw)
    return value - _WORD if value >= _SIGN else value
