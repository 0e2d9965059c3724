"""Streams of v2 frames for tests of the scanner, and its answers in the codec's words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from tests.wire import v2
from wire import build_v2
from wire.batch import encode_batch, join_records
from wire.codec_v2 import (
    RequestFrame,
)
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from wire.scan_v2 import (
    ADD_ENTRY_OFFSET,
    READ_ANSWER_ENTRY_OFFSET,
    AddAnswerMix,
    AddAnswers,
    AddBatch,
    AddMix,
    AddRun,
    BatchReadAnswer,
    ReadAnswers,
    ReadRun,
    RequestItem,
    ResponseItem,
)
from wire.types import Flag, LedgerId

KEY, OTHER_KEY = bytes(range(20)), bytes(20)
SIZES = [[0], [100], [0, 1, 50]]


def buffer(*parts: bytes) -> FrameBuffer:
    frames = FrameBuffer()
    frames.feed(b"".join(parts))
    return frames


def as_frames(items: Iterable[RequestItem]) -> list[Any]:
    """What the codec would have said, out of what the scanner says."""
    found: list[Any] = []
    for item in items:
        match item:
            case AddRun():
                for entry_id, (begin, end) in zip(
                    item.entry_ids, pairwise(item.bounds), strict=True
                ):
                    request: Request = AddRequest(
                        ledger_id=item.ledger_id,
                        entry_id=entry_id,
                        master_key=item.master_key,
                        body=item.data[begin + ADD_ENTRY_OFFSET : end],
                        recovery=bool(item.flags & Flag.RECOVERY_ADD),
                        high_priority=bool(item.flags & Flag.HIGH_PRIORITY),
                    )
                    found.append((item.version, request))
            case AddMix():
                for key, ledger_id, entry_id, lac, (begin, end) in zip(
                    item.master_keys, item.ledger_ids, item.entry_ids, item.lacs,
                    pairwise(item.bounds), strict=True,
                ):  # fmt: skip
                    body = item.data[begin + ADD_ENTRY_OFFSET : end]
                    assert lac == int.from_bytes(body[16:24], "big", signed=True)
                    request = AddRequest(
                        ledger_id=ledger_id, entry_id=entry_id, master_key=key, body=body
                    )
                    found.append((2, request))
            case ReadRun():
                for entry_id in item.entry_ids:
                    request = ReadRequest(
                        ledger_id=item.ledger_id,
                        entry_id=entry_id,
                        high_priority=bool(item.flags & Flag.HIGH_PRIORITY),
                        read_class_batch=bool(item.flags & Flag.READ_CLASS_BATCH),
                    )
                    found.append((item.version, request))
            case AddBatch():
                found.append((2, item.request))
            case RequestFrame():
                found.append(tuple(item))
    return found


def as_responses(items: Iterable[ResponseItem]) -> list[Response]:
    found: list[Response] = []
    for item in items:
        match item:
            case AddAnswerMix():
                found += [
                    AddResponse(status=Status.OK, ledger_id=LedgerId(ledger_id), entry_id=entry_id)
                    for ledger_id, entry_id in item.ids()
                ]
            case AddAnswers(status, ledger_id, entry_ids):
                found += [
                    AddResponse(status=status, ledger_id=ledger_id, entry_id=entry_id)
                    for entry_id in entry_ids
                ]
            case ReadAnswers():
                for entry_id, (begin, end) in zip(
                    item.entry_ids, pairwise(item.bounds), strict=True
                ):
                    body = item.data[begin + READ_ANSWER_ENTRY_OFFSET : end]
                    found.append(
                        ReadResponse(
                            status=item.status,
                            ledger_id=item.ledger_id,
                            entry_id=entry_id,
                            body=body if item.status is Status.OK else None,
                        )
                    )
            case BatchReadAnswer():
                found.append(
                    BatchReadResponse(
                        status=item.status,
                        request_id=item.request_id,
                        ledger_id=item.ledger_id,
                        first_entry_id=item.first_entry_id,
                        entries=tuple(item.data[a + 4 : b] for a, b in pairwise(item.bounds)),
                    )
                )
            case _:
                found.append(item)
    return found


def adds(
    entry_ids: Iterable[int],
    sizes: list[int],
    *,
    ledger_id: int = 7,
    key: bytes = KEY,
    flags: int = 0,
) -> bytes:
    entries = [
        v2.entry(ledger_id, entry_id, bytes(sizes[i % len(sizes)]), lac=entry_id - 2)
        for i, entry_id in enumerate(entry_ids)
    ]
    return build_v2.add_requests(entries, master_key=key, flags=flags)


def mixed(ledger_ids: Iterable[int], sizes: list[int], key: bytes = KEY) -> bytes:
    """One add to each of the ledgers."""
    return b"".join(
        adds([100 + i], [sizes[i % len(sizes)]], ledger_id=ledger_id, key=key)
        for i, ledger_id in enumerate(ledger_ids)
    )


def batch(count: int, *, format: int = 1, announced: int | None = None) -> bytes:
    return encode_batch(
        join_records([v2.entry(7, i) for i in range(count)]),
        request_id=11,
        ledger_id=7,
        first_entry_id=0,
        last_entry_id=count - 1,
        count=announced or count,
        master_key=KEY,
        format=format,
    )
