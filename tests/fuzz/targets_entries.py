"""What a bookie that is broken, or hostile, hands to a reader: entries, and confirmations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.fuzz.target import Target, judged
from wire.digest import Digest, digest_for
from wire.entry import (
    ENTRY_HEADER_BYTES,
    Entry,
    decode_entries,
    decode_entry,
    decode_lac,
    encode_entries,
    encode_lac,
)
from wire.entry_run import EntryRun, check_entries, compare_ids, lacs_of
from wire.types import DigestType

_LEDGER, _FIRST = 7, 40
_DIGESTS = [digest_for(kind, b"password") for kind in DigestType]
_HEAD_BYTES = 4


class _Answer(NamedTuple):
    """A run of answers as a scan finds it: `skip` bytes before each entry."""

    data: bytes
    bounds: Sequence[int]
    skip: int
    digest: Digest

    @property
    def entry_ids(self) -> range:
        return range(_FIRST, _FIRST + len(self.bounds) - 1)


def _answer_of(data: bytes) -> _Answer | None:
    """The first bytes say which digest, how many entries, what lies before each, and whether
    digests are made right: behind a wrong one nothing would be reached."""
    if len(data) <= _HEAD_BYTES:
        return None
    kind, count, skip, form = data[:_HEAD_BYTES]
    digest, count, skip = _DIGESTS[kind % len(_DIGESTS)], count % 16 + 1, skip % 40
    body = data[_HEAD_BYTES:]
    size = len(body) // count
    if not size:
        return None
    bounds: Sequence[int] = range(0, size * count + 1, size)
    if form & 1:  # cut somewhere else, as the bytes themselves say
        cuts = sorted(body[place] * len(body) // 256 for place in range(count - 1))
        bounds = [0, *cuts, len(body)]
    answer = _Answer(body, bounds, skip, digest)
    return _with_digests(answer) if form & 2 else answer


def _with_digests(answer: _Answer) -> _Answer:
    data, digest = bytearray(answer.data), answer.digest
    for begin, end in zip(answer.bounds, answer.bounds[1:], strict=False):
        start = begin + answer.skip
        stored = start + ENTRY_HEADER_BYTES
        payload = stored + digest.size
        if payload <= end:
            data[stored:payload] = digest.of(bytes(data[start:stored]), bytes(data[payload:end]))
    return answer._replace(data=bytes(data))


def entries(data: bytes) -> None:
    """The quick check agrees with the plain one, and that with the check of each entry alone."""
    answer = _answer_of(data)
    if answer is None:
        return
    body, bounds, skip, digest = answer
    plain = decode_entries(
        body, bounds, skip, ledger_id=_LEDGER, entry_ids=answer.entry_ids, digest=digest
    )
    good, error = check_entries(
        body, bounds, skip, ledger_id=_LEDGER, entry_ids=answer.entry_ids, digest=digest
    )
    assert (good, str(error)) == (len(plain.payloads), str(plain.error))
    assert (error is None) == (good == len(answer.entry_ids))
    assert max([-1, *lacs_of(body, bounds, skip, good)]) == plain.lac
    trusting, _ = compare_ids(
        body, bounds, skip, ledger_id=_LEDGER, entry_ids=answer.entry_ids, digest=digest
    )
    assert trusting >= good, "who trusts more takes no less"
    run = EntryRun(body, bounds[: good + 1], skip + ENTRY_HEADER_BYTES + digest.size)
    assert [bytes(view) for view in run.views] == plain.payloads
    assert list(run.lengths) == [len(payload) for payload in plain.payloads]
    for place, entry_id in enumerate(answer.entry_ids[: good + 1]):
        found = _one(body[bounds[place] + skip : bounds[place + 1]], entry_id, digest)
        assert isinstance(found, Entry) == (place < good)
        if isinstance(found, Entry):
            assert found.payload == plain.payloads[place]


def _one(body: bytes, entry_id: int, digest: Digest) -> object:
    return judged(
        lambda body: decode_entry(body, ledger_id=_LEDGER, entry_id=entry_id, digest=digest), body
    )


def confirmations(data: bytes) -> None:
    for digest in _DIGESTS:
        found = judged(lambda data: decode_lac(data, ledger_id=_LEDGER, digest=digest), data)  # noqa: B023
        if isinstance(found, int):
            assert encode_lac(ledger_id=_LEDGER, lac=found, digest=digest) == data


def _entry_seeds() -> Iterable[bytes]:
    for kind, digest in enumerate(_DIGESTS):
        for sizes, form in (((30,), 2), ((30,), 0), ((0, 30, 200), 3), ((0,), 2)):
            payloads = [bytes([65 + i]) * sizes[i % len(sizes)] for i in range(4)]
            made = encode_entries(
                payloads, ledger_id=_LEDGER, first_entry_id=_FIRST, lac=39, length=9, digest=digest
            )
            yield bytes([kind, 3, 24, form]) + b"".join(bytes(24) + entry for entry in made)


def _confirmation_seeds() -> Iterable[bytes]:
    for digest in _DIGESTS:
        yield encode_lac(ledger_id=_LEDGER, lac=39, digest=digest)


TARGETS = (
    Target("entries", entries, _entry_seeds),
    Target("confirmations", confirmations, _confirmation_seeds),
)
