"""The scanners and builders of the hot path against the codec, which takes one frame at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import v2
from tests.wire.scan_v2_checks import (
    KEY,
    OTHER_KEY,
    SIZES,
    adds,
    as_frames,
    as_responses,
    batch,
    buffer,
)
from wire import build_v2
from wire.batch import join_records
from wire.codec_v2 import (
    Refusal,
    RequestFrame,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from wire.errors import ProtocolError, Status
from wire.framing import FrameBuffer
from wire.messages import (
    AddBatchResponse,
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
    ReadAnswers,
    ReadRun,
    add_key,
    scan_requests,
    scan_responses,
)
from wire.types import Flag, LedgerId


def test_captured_requests_in_one_buffer_scan_as_they_decode() -> None:
    frames = v2.frames("request")
    expected = [decode_request(frame[4:]) for frame in frames]
    assert as_frames(scan_requests(buffer(*frames))) == expected


def test_captured_answers_in_one_buffer_scan_as_they_decode() -> None:
    frames = v2.frames("response")
    expected = [decode_response(frame[4:]) for frame in frames]
    assert as_responses(scan_responses(buffer(*frames))) == expected


@given(requests=st.lists(v2.requests, max_size=8), repeats=st.integers(1, 3))
def test_requests_scan_as_they_decode(requests: list[Request], repeats: int) -> None:
    frames = [encode_request(request) for request in requests] * repeats
    expected = [decode_request(frame[4:]) for frame in frames]
    assert as_frames(scan_requests(buffer(*frames))) == expected


@given(responses=st.lists(v2.responses, max_size=8), repeats=st.integers(1, 3))
def test_answers_scan_as_they_decode(responses: list[Response], repeats: int) -> None:
    frames = [encode_response(response) for response in responses] * repeats
    expected = [decode_response(frame[4:]) for frame in frames]
    assert as_responses(scan_responses(buffer(*frames))) == expected


# Runs


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 8, 9, 200])
def test_adds_of_one_writer_are_one_run(count: int, sizes: list[int]) -> None:
    data = adds(range(5, 5 + count), sizes, flags=Flag.HIGH_PRIORITY)
    (run,) = scan_requests(buffer(data))
    assert isinstance(run, AddRun)
    assert run.version == 2
    assert run.flags == Flag.HIGH_PRIORITY
    assert run.master_key == KEY
    assert run.ledger_id == 7
    assert run.entry_ids == list(range(5, 5 + count))
    assert run.lac == 5 + count - 3
    assert (run.bounds[0], run.bounds[-1]) == (0, len(data))
    entries = [run.data[begin + ADD_ENTRY_OFFSET : end] for begin, end in pairwise(run.bounds)]
    assert build_v2.add_requests(entries, master_key=KEY, flags=Flag.HIGH_PRIORITY) == data


def test_highest_lac_of_a_run_counts_wherever_it_is() -> None:
    for at in range(30):
        entries = [v2.entry(7, i, b"x", lac=50 if i == at else 3) for i in range(30)]
        (run,) = scan_requests(buffer(build_v2.add_requests(entries, master_key=KEY)))
        assert isinstance(run, AddRun)
        assert run.lac == 50


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("length", [1, 30])
@pytest.mark.parametrize(
    "other",
    [
        {"ledger_id": 8},
        {"key": OTHER_KEY},
        {"flags": Flag.RECOVERY_ADD},
        {"entry_ids": range(30)},  # ids that go back, or come again
    ],
    ids=["ledger", "key", "flags", "ids"],
)
def test_run_ends_where_anything_but_the_next_id_changes(
    other: dict[str, Any], length: int, sizes: list[int]
) -> None:
    first = adds(range(length), sizes)
    second = adds(**({"entry_ids": range(length, 2 * length), "sizes": sizes} | other))
    runs = list(scan_requests(buffer(first, second)))
    if length == 1 and "ledger_id" in other:  # two ledgers, one frame each: the shortest mix
        assert [type(run) for run in runs] == [AddMix]
        return
    assert len(runs) == 2
    assert isinstance(runs[0], AddRun)
    assert isinstance(runs[1], AddRun)
    assert runs[0].data[: runs[0].bounds[-1]] == first
    assert runs[1].data[runs[1].bounds[0] : runs[1].bounds[-1]] == second
    assert runs[0].entry_ids == list(range(length))


@pytest.mark.parametrize("position", [0, 1, 5, 29])
@pytest.mark.parametrize("entry", [v2.entry(7, -1), v2.entry(-1, 3), v2.entry(7, 99)[:31]])
def test_bad_add_inside_a_run_is_refused_alone(entry: bytes, position: int) -> None:
    bad = build_v2.add_requests([entry], master_key=KEY)
    parts = [adds(range(position), [4]), bad, adds(range(position, 30), [4])]
    items = [item for item in scan_requests(buffer(*parts)) if not isinstance(item, AddRun)]
    assert len(items) == 1
    assert isinstance(items[0], RequestFrame)
    refusal = items[0].request
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.response, AddResponse)
    assert refusal.response.status is Status.BAD_REQUEST
    kept = as_frames(i for i in scan_requests(buffer(*parts)) if isinstance(i, AddRun))
    assert [request.entry_id for _, request in kept] == list(range(30))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_runs_know_the_version_to_answer_with(version: int) -> None:
    add = AddRequest(ledger_id=LedgerId(7), entry_id=1, master_key=KEY, body=v2.entry(7, 1))
    read = ReadRequest(ledger_id=LedgerId(7), entry_id=1)
    items = list(
        scan_requests(
            buffer(encode_request(add, version=version), encode_request(read, version=version))
        )
    )
    assert [type(item) for item in items] == [AddRun, ReadRun]
    assert [item.version for item in items if isinstance(item, AddRun | ReadRun)] == [version] * 2


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_reads_of_one_ledger_are_one_run(count: int) -> None:
    entry_ids = [(i * 37) % 100 - 1 for i in range(count)]
    reads = build_v2.read_requests(entry_ids, ledger_id=7, flags=Flag.READ_CLASS_BATCH)
    other = build_v2.read_requests([1], ledger_id=8)
    trailing = b"\0\0\0\x15" + other[4:] + b"!"
    items = list(scan_requests(buffer(reads, other, trailing)))
    assert items == [
        ReadRun(2, Flag.READ_CLASS_BATCH, LedgerId(7), entry_ids),
        ReadRun(2, 0, LedgerId(8), [1]),
        ReadRun(2, 0, LedgerId(8), [1]),
    ]


@pytest.mark.parametrize("ledgers", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 23, 24, 63, 64, 65, 300])
def test_add_answers_are_built_and_scanned(count: int, ledgers: int) -> None:
    entry_ids = [i * 1_000_003 for i in range(count)]
    parts = [build_v2.add_answers(Status.OK, 7 + i, entry_ids) for i in range(ledgers)]
    single = [
        encode_response(AddResponse(status=Status.OK, ledger_id=LedgerId(7), entry_id=entry_id))
        for entry_id in entry_ids
    ]
    assert parts[0] == b"".join(single)
    items = list(scan_responses(buffer(*parts)))
    if count > 1:
        assert items == [AddAnswers(Status.OK, LedgerId(7 + i), entry_ids) for i in range(ledgers)]
    else:
        assert items == [AddAnswerMix([add_key(7 + i, 0) for i in range(ledgers)])]


def test_answers_of_many_ledgers_are_a_mix_up_to_where_one_has_several_or_failed() -> None:
    good = [build_v2.add_answers(Status.OK, ledger, [ledger]) for ledger in (1, 2, 3)]
    items = list(
        scan_responses(
            buffer(
                *good,
                build_v2.add_answers(Status.OK, 4, [7, 8, 9]),
                *good,
                build_v2.add_answers(Status.FENCED, 5, [1]),
                good[0],
            )
        )
    )
    assert items == [
        AddAnswerMix([add_key(1, 1), add_key(2, 2), add_key(3, 3), add_key(4, 7)]),
        AddAnswers(Status.OK, LedgerId(4), [8, 9]),
        AddAnswerMix([add_key(1, 1), add_key(2, 2), add_key(3, 3)]),
        AddAnswers(Status.FENCED, LedgerId(5), [1]),
        AddAnswerMix([add_key(1, 1)]),
    ]


def test_lone_answer_to_an_add_is_good_only_if_it_says_so_and_is_whole() -> None:
    good = build_v2.add_answers(Status.OK, 7, [3])
    for cut in range(len(good)):
        frames = buffer(good[:cut])
        assert list(scan_responses(frames)) == []
        frames.feed(good[cut:])
        assert list(scan_responses(frames)) == [AddAnswerMix([add_key(7, 3)])]
        assert frames.held_bytes == 0
    other_version = good[:4] + b"\x01" + good[5:]
    assert list(scan_responses(buffer(other_version))) == [AddAnswers(Status.OK, LedgerId(7), [3])]
    failed = build_v2.add_answers(Status.IO_ERROR, 7, [3])
    assert list(scan_responses(buffer(failed))) == [AddAnswers(Status.IO_ERROR, LedgerId(7), [3])]


def test_add_answers_of_many_ledgers_in_turn_keep_their_order() -> None:
    single = [
        AddResponse(
            status=Status.FENCED if i % 7 == 0 else Status.OK,
            ledger_id=LedgerId(i % 3),
            entry_id=i,
        )
        for i in range(400)
    ]
    frames = buffer(*map(encode_response, single))
    assert as_responses(scan_responses(frames)) == single


def test_refused_adds_are_answered_in_the_version_of_the_request() -> None:
    data = build_v2.add_answers(Status.UNKNOWN_LEDGER_STATE, 7, [1], version=1)
    assert data == encode_response(
        AddResponse(status=Status.IO_ERROR, ledger_id=LedgerId(7), entry_id=1), version=1
    )


def test_read_answers_are_built_and_scanned() -> None:
    entries = [v2.entry(7, i, bytes(i)) for i in range(40)]
    entry_ids = [*range(39), -1]  # the last one answers "the last entry you have"
    data = build_v2.read_answers(7, entry_ids, entries)
    missing = ReadResponse(status=Status.NO_ENTRY, ledger_id=LedgerId(7), entry_id=40)
    run, error = scan_responses(buffer(data, encode_response(missing)))
    assert isinstance(run, ReadAnswers)
    assert run.entry_ids == entry_ids
    assert [
        run.data[begin + READ_ANSWER_ENTRY_OFFSET : end] for begin, end in pairwise(run.bounds)
    ] == entries
    assert as_responses([error]) == [missing]


def test_batch_read_answer_is_built_from_slices() -> None:
    entries = [v2.entry(7, i, bytes(i)) for i in range(10)]
    pieces: list[bytes | memoryview] = [
        join_records(entries[:4]),
        memoryview(join_records(entries[4:])),
    ]
    answer = build_v2.batch_read_answer(pieces, request_id=5, ledger_id=7, first_entry_id=0)
    assert answer[1] is pieces[0], "records are passed on, not copied"
    data = b"".join(answer)
    expected = BatchReadResponse(
        status=Status.OK,
        request_id=5,
        ledger_id=LedgerId(7),
        first_entry_id=0,
        entries=tuple(entries),
    )
    assert data == encode_response(expected)
    assert as_responses(scan_responses(buffer(data))) == [expected]


def test_batch_comes_with_its_walk_and_its_frame() -> None:
    frame = batch(50)
    before = adds([1], [0])
    _, item, _ = scan_requests(buffer(before, frame, before))
    assert isinstance(item, AddBatch)
    assert item.data[item.start : item.end] == frame
    assert item.request.request_id == 11
    assert item.request.master_key == KEY
    assert list(item.walk.entry_ids) == list(range(50))
    assert item.walk.bounds[0] == item.start + 68
    assert item.walk.bounds[-1] == item.end


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (batch(5, format=2), Status.BAD_VERSION),
        (batch(5, announced=6), Status.BAD_REQUEST),
        (batch(5)[:4] + b"\x01" + batch(5)[5:], Status.BAD_VERSION),
        (batch(5)[:4] + b"\x03" + batch(5)[5:], Status.BAD_VERSION),
    ],
    ids=["format", "count", "version 1", "version 3"],
)
def test_batch_that_is_wrong_is_refused_and_the_rest_goes_on(frame: bytes, status: Status) -> None:
    item, run = scan_requests(buffer(frame, adds([1], [0])))
    assert isinstance(run, AddRun)
    assert isinstance(item, RequestFrame)
    assert item.version == frame[4]
    assert isinstance(item.request, Refusal)
    assert item.request.response == AddBatchResponse(
        status=status,
        request_id=11,
        ledger_id=LedgerId(7),
        first_entry_id=0,
        last_entry_id=4,
    )


# Buffers


def test_good_frames_come_before_the_error_of_a_bad_one() -> None:
    frames = buffer(adds(range(20), [4]), b"\x00\x00\x00\x04\x02\x09\x00\x00")
    items = scan_requests(frames)
    assert isinstance(next(items), AddRun)
    assert frames.held_bytes == 8
    with pytest.raises(ProtocolError, match="opcode 9"):
        next(items)


def test_scan_that_is_left_early_goes_on_later() -> None:
    parts = [adds(range(20), [4]), adds(range(20), [4], ledger_id=8), adds([1], [4])]
    frames = buffer(*parts)
    first = next(iter(scan_requests(frames)))
    rest = list(scan_requests(frames))
    assert as_frames([first, *rest]) == as_frames(scan_requests(buffer(*parts)))
    assert frames.held_bytes == 0


@pytest.mark.parametrize("size", [1, 7, 44, 61, 300, 1000])
def test_scan_of_a_stream_in_pieces_equals_that_of_the_whole(size: int) -> None:
    stream = b"".join(
        [adds(range(40), [4]), batch(30), adds(range(40, 60), [0, 90]), *v2.frames("request")]
    )
    frames, found = FrameBuffer(), []
    for position in range(0, len(stream), size):
        frames.feed(stream[position : position + size])
        found += as_frames(scan_requests(frames))
    assert found == as_frames(scan_requests(buffer(stream)))
    assert frames.held_bytes == 0


@pytest.mark.parametrize("size", [1, 7, 27, 28, 29, 61, 300, 1000])
def test_scan_of_answers_in_pieces_equals_that_of_the_whole(size: int) -> None:
    """Runs of every kind are cut inside their last frame, which must wait for its rest."""
    entries = [v2.entry(7, i, bytes(i)) for i in range(60)]
    stream = b"".join(
        [
            build_v2.read_answers(7, range(60), entries),
            build_v2.add_answers(Status.OK, 7, range(150)),
            *build_v2.batch_read_answer(
                [join_records(entries)], request_id=1, ledger_id=7, first_entry_id=0
            ),
            *v2.frames("response"),
        ]
    )
    frames, found = FrameBuffer(), []
    for position in range(0, len(stream), size):
        frames.feed(stream[position : position + size])
        found += as_responses(scan_responses(frames))
    assert found == as_responses(scan_responses(buffer(stream)))
    assert frames.held_bytes == 0


@pytest.mark.parametrize("position", [0, 1, 12])
def test_frame_over_the_limit_is_an_error_even_if_it_is_whole(position: int) -> None:
    """The limit is tested in the middle of runs too, guessed and walked."""
    frames = FrameBuffer(limit=100)
    frames.feed(adds(range(position), [4]) + adds([position], [200]))
    with pytest.raises(ProtocolError, match="announces 256 bytes"):
        list(scan_requests(frames))
    frames = FrameBuffer(limit=100)
    entries = [v2.entry(7, i, bytes(4)) for i in range(position)] + [bytes(90)]
    frames.feed(build_v2.read_answers(7, range(position + 1), entries))
    with pytest.raises(ProtocolError, match="announces 114 bytes"):
        list(scan_responses(frames))
