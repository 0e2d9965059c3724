"""Reading v2 frames by the receive buffer: runs of frames as numbers and offsets.

A scanner walks the whole frames of a `FrameBuffer` and yields, in order, one item per *run*:
consecutive frames that differ only in entry id and content. What an item says once (ledger, key,
flags, status) its user checks once, and what it says per entry is a list, ready for `zip`,
`dict.update` or a slice; there is no object per entry. Requests that are not hot come as messages.

Frame `i` of a run is `data[bounds[i] : bounds[i + 1]]`, so the frames of any part of a run are one
slice: a journal copies them as they are.

`frames.start` is moved on before an item is yielded, so a user may stop at any item and go on
later. Bad bytes raise ProtocolError at their place in the order, after everything good before them.

Measured on adds of 100 bytes, per frame: a tuple per frame 230 ns; the loop below 226 and 260 with
the LAC; `startswith` instead of unpacking the prefix 360; guessing that the next frames have the
same size and letting `iter_unpack` walk them 130, which is why a run tries that first. Answers and
reads have one size: unpacking 64 at a time takes 50 ns each, `iter_unpack` 90.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from wire.batch import BATCH_HEAD_BYTES, Walk, decode_batch, split_records, walk_batch
from wire.codec_v2 import (
    RequestFrame,
    decode_request,
    decode_response,
    refuse_batch,
)
from wire.entry import ENTRY_HEADER_BYTES
from wire.equal_frames import EqualFrames, scan_equal_frames
from wire.errors import BadRequestError, ProtocolError, Status, VersionError
from wire.framing import LENGTH_BYTES, FrameBuffer, payload_length
from wire.header_v2 import VERSION_MAX, header_word, split_word, status_from_wire
from wire.messages import AddBatchRequest, Response
from wire.types import MASTER_KEY_BYTES, Flag, LedgerId, Opcode

#: Where the entry begins in an ADD frame, counted from its length.
ADD_ENTRY_OFFSET: Final = 8 + MASTER_KEY_BYTES
#: Where the entry begins in the frame of a READ answer.
READ_ANSWER_ENTRY_OFFSET: Final = 28

_ADD_LENGTH_MIN: Final = 4 + MASTER_KEY_BYTES + ENTRY_HEADER_BYTES
_READ_LENGTH: Final = 20
_ANSWER_LENGTH: Final = 24
_BATCH_READ_ANSWER_LENGTH: Final = 32

_START: Final = struct.Struct(">iI")  # length, header word
_ADD: Final = struct.Struct(">I32sqq")  # length; word, key and ledger id; entry id; LAC
_PLAIN_ADD: Final = header_word(VERSION_MAX, Opcode.ADD)
_MIXED_ADD: Final = struct.Struct(">II20sqqq")  # length, word, key, ledger id, entry id, LAC
_IDS: Final = struct.Struct(">qq")
_ANSWER: Final = struct.Struct(">I16sq")  # length; word, status and ledger id; entry id
_ANY_ANSWER: Final = struct.Struct(">12s16s")  # length, word and status; ledger id and entry id
_PREFIX: Final = struct.Struct(">I20sq")  # word, key, ledger id
_STATUS_LEDGER: Final = struct.Struct(">iq")
_BATCH_READ_ANSWER: Final = struct.Struct(">iqqq")  # status, ledger id, entry id, request id

#: Guessing that frames have one size pays from this many on.
_GUESS_COUNT_MIN: Final = 8
#: Adds of many ledgers are unpacked this many at a time; what is left over, one by one.
_MIX_CHUNK: Final = 32


_READS: Final = EqualFrames.of_size(LENGTH_BYTES + _READ_LENGTH)
#: As bookies begin it: length, word and status; ledger id and entry id follow.
_GOOD_ADD_ANSWER: Final = struct.pack(
    ">iIi", _ANSWER_LENGTH, header_word(VERSION_MAX, Opcode.ADD), Status.OK.v2
)
_ADD_ANSWERS: Final = EqualFrames.of_size(LENGTH_BYTES + _ANSWER_LENGTH)


class AddRun(NamedTuple):
    """ADD frames of one ledger, one key and one header, entry ids strictly ascending."""

    version: int
    flags: int
    master_key: bytes
    ledger_id: LedgerId
    entry_ids: list[int]
    lac: int  # the highest one inside the entries
    data: bytes
    bounds: list[int]

    def entries(self) -> list[bytes]:
        """The entries, cut out of their frames."""
        data = self.data
        return [data[start + ADD_ENTRY_OFFSET : end] for start, end in pairwise(self.bounds)]


class AddMix(NamedTuple):
    """ADD frames of version 2 without flags, of any ledgers; frame `i` has the `i`th of everything.

    What many writers leave in one buffer. A run per frame would cost several times as much.
    """

    master_keys: list[bytes]
    ledger_ids: list[LedgerId]
    entry_ids: list[int]
    lacs: list[int]
    data: bytes
    bounds: list[int]


class ReadRun(NamedTuple):
    """Plain READ frames (no fence) of one ledger and one header, ids in any order."""

    version: int
    flags: int
    ledger_id: LedgerId
    entry_ids: list[int]


class AddBatch(NamedTuple):
    """An ADD_BATCH whose records were found right. Its frame is `data[start:end]`."""

    request: AddBatchRequest
    walk: Walk
    data: bytes
    start: int
    end: int


class AddAnswers(NamedTuple):
    """Answers to adds of one ledger with one status, in the order of arrival."""

    status: Status
    ledger_id: LedgerId
    entry_ids: list[int]


class AddAnswerMix(NamedTuple):
    """Good answers to adds of any ledgers, in the order of arrival: ledger and entry of each.

    As they are in the frame, 16 bytes: whoever knows what was sent need not take them apart.
    """

    keys: list[bytes]

    def ids(self) -> list[tuple[int, ...]]:
        """Ledger and entry of each."""
        return list(_IDS.iter_unpack(b"".join(self.keys)))


class ReadAnswers(NamedTuple):
    """Answers to reads of one ledger with one status, in the order of arrival.

    `entry_ids` are those of the requests. If the status is OK, entry `i` is
    `data[bounds[i] + READ_ANSWER_ENTRY_OFFSET : bounds[i + 1]]`.
    """

    status: Status
    ledger_id: LedgerId
    entry_ids: list[int]
    data: bytes
    bounds: list[int]


class BatchReadAnswer(NamedTuple):
    """One answer to a batch read, its records by their bounds; none unless the status is OK."""

    status: Status
    request_id: int
    ledger_id: LedgerId
    first_entry_id: int
    data: bytes
    bounds: Sequence[int]


RequestItem: TypeAlias = AddRun | AddMix | ReadRun | AddBatch | RequestFrame
ResponseItem: TypeAlias = AddAnswers | AddAnswerMix | ReadAnswers | BatchReadAnswer | Response


def scan_requests(frames: FrameBuffer) -> Iterator[RequestItem]:
    """What a bookie received. Adds that break a rule come as a RequestFrame with a Refusal."""
    data, position, end = frames.data, frames.start, len(frames.data)
    item: RequestItem
    while (after := _frame_end(data, position, end, frames.limit)) is not None:
        length, word = _START.unpack_from(data, position)
        version, opcode, flags = split_word(word)
        if opcode == Opcode.ADD and version <= VERSION_MAX and length >= _ADD_LENGTH_MIN:
            if min(_IDS.unpack_from(data, position + ADD_ENTRY_OFFSET)) >= 0:
                item, position = _scan_adds_or_mix(data, position, after, end, frames.limit, word)
            else:
                item, position = decode_request(data[position + LENGTH_BYTES : after]), after
        elif (
            opcode == Opcode.READ
            and version <= VERSION_MAX
            and length >= _READ_LENGTH
            and not flags & Flag.FENCE
        ):
            ledger_id, entry_id = _IDS.unpack_from(data, position + 8)
            if length == _READ_LENGTH:
                entry_ids, position = scan_equal_frames(_READS, data, position, end)
            else:  # bytes behind the ids are allowed and mean nothing
                entry_ids, position = [entry_id], after
            item = ReadRun(version, flags, LedgerId(ledger_id), entry_ids)
        elif opcode == Opcode.ADD_BATCH and version == VERSION_MAX:
            item, position = _scan_batch(data, position, after, flags), after
        else:
            item, position = decode_request(data[position + LENGTH_BYTES : after]), after
        frames.start = position
        yield item


def scan_adds(data: bytes, position: int, end: int) -> tuple[AddRun | AddMix, int] | None:
    """The ADD frames from `position` on that belong together, and where the next frame begins.

    None if there is no well-formed ADD. For frames that were accepted once, as a journal has them:
    they know no limit.
    """
    if end - position < LENGTH_BYTES + _ADD_LENGTH_MIN:
        return None
    length, word = _START.unpack_from(data, position)
    version, opcode, _ = split_word(word)
    after = position + LENGTH_BYTES + length
    if opcode != Opcode.ADD or version > VERSION_MAX or length < _ADD_LENGTH_MIN or after > end:
        return None
    if min(_IDS.unpack_from(data, position + ADD_ENTRY_OFFSET)) < 0:
        return None
    return _scan_adds_or_mix(data, position, after, end, len(data) + LENGTH_BYTES, word)


def scan_responses(frames: FrameBuffer) -> Iterator[ResponseItem]:
    """What a client received. Version and flags of answers mean nothing and are not looked at."""
    data, position, end = frames.data, frames.start, len(frames.data)
    item: ResponseItem
    while (after := _frame_end(data, position, end, frames.limit)) is not None:
        if after == end and data.startswith(_GOOD_ADD_ANSWER, position):
            frames.start = after  # mostly the only one, and somebody waits for it
            yield AddAnswerMix([data[position + 12 : after]])
            return
        length, word = _START.unpack_from(data, position)
        opcode = split_word(word).opcode
        if opcode == Opcode.ADD and length == _ANSWER_LENGTH:
            code, ledger_id = _STATUS_LEDGER.unpack_from(data, position + 8)
            status = status_from_wire(code)
            if status is Status.OK and _is_other_ledger(data, position, after):
                keys, position = _scan_answer_mix(data, position, end)
                item = AddAnswerMix(keys)
            else:
                entry_ids, position = scan_equal_frames(_ADD_ANSWERS, data, position, end)
                item = AddAnswers(status, LedgerId(ledger_id), entry_ids)
        elif opcode == Opcode.READ and length >= _ANSWER_LENGTH:
            item, position = _scan_read_answers(data, position, end, frames.limit)
        elif opcode == Opcode.BATCH_READ and length >= _BATCH_READ_ANSWER_LENGTH:
            item, position = _scan_batch_read_answer(data, position, after), after
        else:
            item, position = decode_response(data[position + LENGTH_BYTES : after]), after
        frames.start = position
        yield item


def add_key(ledger_id: int, entry_id: int) -> bytes:
    """How `AddAnswerMix` names an entry: as the first bytes of the entry itself do."""
    return _IDS.pack(ledger_id, entry_id)


def _frame_end(data: bytes, position: int, end: int, limit: int) -> int | None:
    """Where the frame at `position` ends; None if it is not whole yet."""
    if end - position < LENGTH_BYTES:
        return None
    length = payload_length(data, position, limit)
    after = position + LENGTH_BYTES + length
    if after > end:
        return None
    if length < 4:
        raise ProtocolError(f"v2 frame of {length} bytes has no room for its header")
    return after


def _scan_adds_or_mix(
    data: bytes, position: int, after: int, end: int, limit: int, word: int
) -> tuple[AddRun | AddMix, int]:
    run, behind = _scan_adds(data, position, after, end, limit)
    if len(run.entry_ids) > 1 or word != _PLAIN_ADD or behind == end:
        return run, behind
    mix, behind = _scan_mix(run, data, position, after, end, limit)
    return mix or run, behind


def _scan_adds(data: bytes, position: int, after: int, end: int, limit: int) -> tuple[AddRun, int]:
    """The run of adds that begins at `position` with a frame already found good."""
    _, prefix, entry_id, lac_max = _ADD.unpack_from(data, position)
    entry_ids = [entry_id]
    bounds = [position, after]
    size = after - position
    previous = entry_id
    position = after
    count = (end - position) // size
    if count >= _GUESS_COUNT_MIN:
        head = data[bounds[0] : bounds[0] + 36]  # the prefix with its length
        if data.startswith(head, position):
            add_id = entry_ids.append
            rows = _equal_adds(size)(memoryview(data)[position : position + count * size])
            for found, entry_id, lac in rows:
                if found != head or entry_id <= previous:
                    break
                add_id(entry_id)
                previous = entry_id
                if lac > lac_max:
                    lac_max = lac
            position += (len(entry_ids) - 1) * size
            bounds += range(after + size, position + 1, size)
    add_id, add_bound, unpack_from = entry_ids.append, bounds.append, _ADD.unpack_from
    length_max = limit - LENGTH_BYTES
    frame_last = end - LENGTH_BYTES - _ADD_LENGTH_MIN
    while position <= frame_last:
        length, found, entry_id, lac = unpack_from(data, position)
        if found != prefix or entry_id <= previous or not _ADD_LENGTH_MIN <= length <= length_max:
            break
        after = position + LENGTH_BYTES + length
        if after > end:
            break
        position = after
        add_id(entry_id)
        add_bound(position)
        previous = entry_id
        if lac > lac_max:
            lac_max = lac
    word, key, ledger_id = _PREFIX.unpack(prefix)
    version, _, flags = split_word(word)
    run = AddRun(version, flags, key, LedgerId(ledger_id), entry_ids, lac_max, data, bounds)
    return run, position


def _scan_mix(
    first: AddRun, data: bytes, position: int, after: int, end: int, limit: int
) -> tuple[AddMix | None, int]:
    """Plain adds from `position` on, `first` among them; none if the next one is not such.

    Ends where frames of one ledger follow each other: there a run is cheaper again.
    """
    mix = AddMix(
        [first.master_key], [first.ledger_id], first.entry_ids[:], [first.lac], data,
        [position, after],
    )  # fmt: skip
    position = _take_equal_adds(mix, after - position, after, end)
    length_max = limit - LENGTH_BYTES
    frame_last = end - LENGTH_BYTES - _ADD_LENGTH_MIN
    unpack_from = _MIXED_ADD.unpack_from
    previous = mix.ledger_ids[-1]
    while position <= frame_last:
        length, word, key, ledger_id, entry_id, lac = unpack_from(data, position)
        if word != _PLAIN_ADD or not _ADD_LENGTH_MIN <= length <= length_max:
            break
        after = position + LENGTH_BYTES + length
        if after > end or ledger_id < 0 or entry_id < 0 or ledger_id == previous:
            break
        mix.master_keys.append(key)
        mix.ledger_ids.append(ledger_id)
        mix.entry_ids.append(entry_id)
        mix.lacs.append(lac)
        mix.bounds.append(after)
        position = after
        previous = ledger_id
    if len(mix.ledger_ids) == 1:
        return None, first.bounds[-1]
    return mix, position


def _take_equal_adds(mix: AddMix, size: int, position: int, end: int) -> int:
    """Add frames of one size to the columns of a mix, many at a time; where the next one begins."""
    data, first = mix.data, mix.bounds[0]
    front = data[first : first + 8]  # length and word
    head = front + mix.master_keys[0]
    count = _MIX_CHUNK
    last = position + (count - 1) * size
    # The next and the last one first: frames of all sizes must not ask for a struct each.
    while (
        position + count * size <= end
        and data.startswith(front, position)
        and data.startswith(front, last)
    ):
        columns = _equal_mixed_adds(size).unpack_from(data, position)
        heads, ledger_ids, entry_ids = columns[0::4], columns[1::4], columns[2::4]
        keys = [mix.master_keys[0]] * count
        if heads.count(head) < count:  # writers with keys of their own
            if any(not each.startswith(front) for each in heads):
                break
            keys = [each[8:] for each in heads]
        if min(ledger_ids) < 0 or min(entry_ids) < 0 or len(set(ledger_ids)) * 3 < count:
            break
        mix.master_keys.extend(keys)
        mix.ledger_ids.extend(ledger_ids)
        mix.entry_ids.extend(entry_ids)
        mix.lacs.extend(columns[3::4])
        mix.bounds.extend(range(position + size, position + count * size + 1, size))
        position += count * size
        last += count * size
    return position


@lru_cache(maxsize=256)
def _equal_mixed_adds(size: int) -> struct.Struct:
    """ADD frames of one size: length, word and key in one piece, ledger id, entry id, LAC."""
    return struct.Struct(">" + f"28sqqq{size - 52}x" * _MIX_CHUNK)


@lru_cache(maxsize=256)
def _equal_adds(size: int) -> Callable[[memoryview], Iterator[tuple[Any, ...]]]:
    """A walk over ADD frames of one size: length to ledger id in one piece, entry id, LAC."""
    return struct.Struct(f">36sqq{size - 52}x").iter_unpack


def _is_other_ledger(data: bytes, position: int, after: int) -> bool:
    """Whether the frame at `after` is an answer like that at `position`, of another ledger."""
    return (
        data[position : position + 12] == data[after : after + 12]
        and data[position + 12 : position + 20] != data[after + 12 : after + 20]
    )


def _scan_answer_mix(data: bytes, position: int, end: int) -> tuple[list[bytes], int]:
    """Ledger and entry of the answers from `position` on that are alike in all else.

    Ends where answers of one ledger follow each other: there a run is cheaper again.
    """
    size = LENGTH_BYTES + _ANSWER_LENGTH
    front = data[position : position + 12]  # length, word and status
    whole = end - (end - position) % size
    keys: list[bytes] = []
    previous = b""
    for found, key in _ANY_ANSWER.iter_unpack(memoryview(data)[position:whole]):
        if found != front or (previous and key.startswith(previous)):
            break
        keys.append(key)
        previous = key[:8]
    return keys, position + len(keys) * size


def _scan_batch(data: bytes, position: int, after: int, flags: int) -> AddBatch | RequestFrame:
    payload = memoryview(data)[position + LENGTH_BYTES : after]
    request = decode_batch(payload, flags)
    try:
        walk = walk_batch(data, position + BATCH_HEAD_BYTES, after, request)
    except VersionError as error:
        refusal = refuse_batch(request, Status.BAD_VERSION, str(error))
    except BadRequestError as error:
        refusal = refuse_batch(request, Status.BAD_REQUEST, str(error))
    else:
        return AddBatch(request, walk, data, position, after)
    return RequestFrame(VERSION_MAX, refusal)


def _scan_read_answers(data: bytes, position: int, end: int, limit: int) -> tuple[ReadAnswers, int]:
    """The run of read answers that begins at `position` with a frame already found whole."""
    prefix = data[position + 4 : position + 20]
    code, ledger_id = _STATUS_LEDGER.unpack_from(prefix, 4)
    status = status_from_wire(code)
    entry_ids: list[int] = []
    bounds = [position]
    add_id, add_bound, unpack_from = entry_ids.append, bounds.append, _ANSWER.unpack_from
    length_max = limit - LENGTH_BYTES
    frame_last = end - LENGTH_BYTES - _ANSWER_LENGTH
    while position <= frame_last:
        length, found, entry_id = unpack_from(data, position)
        after = position + LENGTH_BYTES + length
        if found != prefix or after > end or not _ANSWER_LENGTH <= length <= length_max:
            break
        position = after
        add_id(entry_id)
        add_bound(position)
    return ReadAnswers(status, LedgerId(ledger_id), entry_ids, data, bounds), position


def _scan_batch_read_answer(data: bytes, position: int, after: int) -> BatchReadAnswer:
    code, ledger_id, first, request_id = _BATCH_READ_ANSWER.unpack_from(data, position + 8)
    status = status_from_wire(code)
    records = position + LENGTH_BYTES + _BATCH_READ_ANSWER_LENGTH
    # Behind an error there should be nothing; whatever is there is not looked at.
    bounds = split_records(data, records, after if status is Status.OK else records)
    return BatchReadAnswer(status, request_id, LedgerId(ledger_id), first, data, bounds)
