"""What a stranger can send: frames of both versions, batches, availability vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.fuzz.target import Target, judged
from tests.wire.v2 import entry, load
from wire import codec_v2
from wire.availability import decode_availability, encode_availability, runs_of
from wire.batch import (
    BATCH_FORMAT,
    BATCH_HEAD_BYTES,
    Walk,
    _walk_records,
    decode_batch,
    encode_batch,
    join_records,
    walk_batch,
)
from wire.codec_v3 import decode_request, decode_response
from wire.errors import LedgerError
from wire.framing import FrameBuffer
from wire.messages import AddBatchRequest
from wire.scan_v2 import scan_requests, scan_responses
from wire.scan_v3 import scan_add, scan_add_answer, scan_read, scan_read_answer, scan_reads
from wire.scan_v3_runs import scan_add_runs

_LIMIT = 4096


def frames_v2(data: bytes) -> None:
    for scan in (scan_requests, scan_responses):
        frames = FrameBuffer(limit=_LIMIT)
        frames.feed(data)
        held = frames.held_bytes
        try:
            for _ in scan(frames):
                assert frames.held_bytes < held, "an item that took no bytes"
                held = frames.held_bytes
        except LedgerError:
            pass
    judged(codec_v2.decode_request, data[4:])
    judged(codec_v2.decode_response, data[4:])


def frames_v3(data: bytes) -> None:
    payload = data[4:]
    judged(decode_request, payload)
    judged(decode_response, payload)
    for scan in (scan_add, scan_read, scan_add_answer, scan_read_answer):
        scan(payload, 0, len(payload))
    scan_add_runs(payload, 0, len(payload))
    scan_reads(payload, 0, len(payload))


def batches(data: bytes) -> None:
    """The quick walk over equal records finds what the plain one finds, and refuses the same."""
    payload = data[4:]
    request = judged(lambda payload: decode_batch(payload, 0), payload)
    if not isinstance(request, AddBatchRequest):
        return

    def found(walk: Callable[[bytes, int, int, AddBatchRequest], Walk]) -> object:
        def columns(payload: bytes) -> object:
            walked = walk(payload, BATCH_HEAD_BYTES - 4, len(payload), request)
            return list(walked.entry_ids), list(walked.bounds), walked.lac

        return judged(columns, payload)

    quick = found(walk_batch)
    if isinstance(quick, tuple) or request.format == BATCH_FORMAT:
        plain = found(_walk_records)
        assert quick == plain or (quick == "BadRequestError" and _is_refused_early(request))


def _is_refused_early(request: AddBatchRequest) -> bool:
    """Ids that no records could have; the plain walk alone would not look at the ledger's."""
    return request.ledger_id < 0 or request.first_entry_id < 0


def availability(data: bytes) -> None:
    judged(decode_availability, data)


def _batch_seeds() -> Iterable[bytes]:
    for ids in (range(20), range(0, 60, 3), [0, 1, 5, 9, 10], [7]):
        for sizes in ((30,), (0, 30, 200)):
            entries = [entry(7, i, bytes(sizes[i % len(sizes)])) for i in ids]
            yield encode_batch(
                join_records(entries),
                request_id=3,
                ledger_id=7,
                first_entry_id=ids[0],
                last_entry_id=ids[-1],
                count=len(entries),
                master_key=bytes(20),
            )


def _frames(name: str) -> list[bytes]:
    """The captured frames that are short enough to be worth changing."""
    found = (bytes.fromhex(vector["frame_hex"]) for vector in load(name))
    return [frame for frame in dict.fromkeys(found) if len(frame) <= _LIMIT]


def _availability_seeds() -> Iterable[bytes]:
    for ids in ([], [0], range(10), range(0, 90, 3), [0, 1, 2, 10, 11, 12, 20, 21, 22, 40]):
        yield encode_availability(runs_of(ids))


TARGETS = (
    Target("frames_v2", frames_v2, lambda: _frames("wire-v2.json")),
    Target("frames_v3", frames_v3, lambda: _frames("wire-v3.json")),
    Target("batches", batches, _batch_seeds),
    Target("availability", availability, _availability_seeds),
)
