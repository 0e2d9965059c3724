"""What a hostile client sends to a live bookie: bursts of changed requests, and how they arrive.

A connection speaks one version. Whatever ends it hides the frames behind it, so every burst is a
hundred frames that the bookie has to understand, and one ending: bytes that are no request, a
length that is too long, half a frame. START_TLS is taken at the beginning of a connection only, so
it has connections of its own.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.http_requests import REQUESTS
from tests.fuzz.target import mutations
from tests.wire.v2 import load, probes
from wire import codec_v2, codec_v3
from wire.errors import ProtocolError
from wire.messages import StartTlsRequest

BURST = 100
#: Frames that each pool holds, and the longest of them: what the attack itself takes of memory.
POOL = 20_000
FRAME_BYTES_MAX = 2048
#: New frames in the pool for each burst.
CHANGES = 40
HTTP_BURST = 10

#: One byte more than a bookie takes, the longest there are, and those that are negative.
_LENGTHS = (5 * (1 << 20) + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0, 1, 3)

#: A header, or whatever the version has, and the request.
Decode = Callable[[bytes], tuple[object, object]]


class Burst(NamedTuple):
    """Bytes for one connection."""

    data: bytes
    cuts: list[int]  # where it is cut into packets
    is_deserted: bool  # reset at once, without a look at the answers
    requests: int = BURST
    version: int = 2

    def packets(self) -> Iterator[bytes]:
        start = 0
        for end in (*self.cuts, len(self.data)):
            yield self.data[start:end]
            start = end


def delivered(data: bytes, rng: random.Random, requests: int = BURST) -> Burst:
    """Most bursts are one write; some come in pieces, and some senders do not wait."""
    cuts: list[int] = []
    if rng.randrange(4) == 0:
        cuts = sorted(rng.randrange(len(data)) for _ in range(rng.choice((1, 3, 20))))
    return Burst(data, cuts, rng.randrange(10) == 0, requests)


class Pool:
    """Frames of one version that the bookie has to understand, ever renewed by changing them."""

    def __init__(self, seeds: list[bytes], decode: Decode, endings: Iterable[bytes]) -> None:
        self._decode = decode
        self._seeds = [seed for seed in seeds if not self._ends(seed)]
        self._frames = list(self._seeds)
        # Those that are made stay; the others are replaced by changed frames that end, too.
        self._endings = list(endings)
        self._endings_changed = [seed for seed in seeds if self._ends(seed)] or [b"\0\0\0\1\0"]

    def burst(self, rng: random.Random) -> Burst:
        for data in mutations(
            [*self._seeds, *rng.choices(self._frames, k=50)], CHANGES, rng.randbytes(8)
        ):
            self._keep(data, rng)
        frames = b"".join(rng.choices(self._frames, k=BURST))
        return delivered(frames + self._ending(rng), rng)

    def _keep(self, data: bytes, rng: random.Random) -> None:
        frame = max(0, len(data) - 4).to_bytes(4, "big") + data[4:]
        if len(frame) > FRAME_BYTES_MAX:
            return
        if self._ends(frame):
            _renew(self._endings_changed, rng.choice((data, frame)), 1000, rng)
        else:
            _renew(self._frames, frame, POOL, rng)

    def _ending(self, rng: random.Random) -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            frame = rng.choice(self._frames)
            return frame[: rng.randrange(len(frame))]
        if kind == 1:
            return rng.choice(_LENGTHS).to_bytes(4, "big") + rng.choice(self._frames)
        return rng.choice(self._endings if kind == 2 else self._endings_changed)

    def _ends(self, frame: bytes) -> bool:
        """Whether nothing behind this frame is read as a frame."""
        try:
            _, request = self._decode(frame[4:])
        except ProtocolError:
            return True
        return isinstance(request, StartTlsRequest)


def _renew(kept: list[bytes], data: bytes, most: int, rng: random.Random) -> None:
    if len(kept) < most:
        kept.append(data)
    else:
        kept[rng.randrange(most)] = data


def hostile_bursts(rng: random.Random) -> Iterator[Burst]:
    """Without end; of one version each."""
    odd = [sent for sent in probes().values() if len(sent) <= FRAME_BYTES_MAX]
    v2_seeds = [*_requests("wire-v2.json", "v2"), *TARGETS["batches"].seeds()]
    v2 = Pool(v2_seeds, codec_v2.decode_request, [*odd, *REQUESTS[:3], client_hello()])
    v3 = Pool(_requests("wire-v3.json", "v3"), codec_v3.decode_request, odd)
    while True:
        for _ in range(10):
            yield v2.burst(rng)
            yield v3.burst(rng)._replace(version=3)
        yield tls_attempt(rng)


def hostile_http(rng: random.Random) -> Iterator[Burst]:
    """Changed requests of the admin paths, some behind one another on a connection."""
    while True:
        changed = list(mutations(list(REQUESTS), HTTP_BURST // 2, rng.randbytes(8)))
        asked = rng.choices(REQUESTS, k=HTTP_BURST - len(changed)) + changed
        yield delivered(b"".join(asked), rng, HTTP_BURST)


def client_hello() -> bytes:
    """The first bytes of somebody who begins TLS."""
    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    begun = context.wrap_bio(ssl.MemoryBIO(), sent)
    with suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return sent.read()


def tls_attempt(rng: random.Random) -> Burst:
    """START_TLS, and behind it what is nearly TLS, no TLS at all, or smuggled requests."""
    hello = client_hello()
    (changed,) = mutations([hello], 1, rng.randbytes(8))
    start = codec_v3.encode_request(StartTlsRequest(), transaction_id=1)
    smuggled = start + b"".join(_requests("wire-v3.json", "v3")[:10])
    behind = rng.choice((b"", hello, changed, changed, smuggled, hello + smuggled))
    return delivered(start + behind, rng, 1)._replace(version=3)


@cache
def _requests(name: str, version: str) -> list[bytes]:
    found = (
        bytes.fromhex(vector["frame_hex"])
        for vector in load(name)
        if vector["direction"] == "request" and vector["version"] == version
    )
    return [frame for frame in dict.fromkeys(found) if len(frame) <= FRAME_BYTES_MAX]
