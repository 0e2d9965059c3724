"""Whom the answers to single adds belong to: in order, in disorder, and when asked twice."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ledger_client.expected_adds import ExpectedAdds
from ledger_client.requests import Adds
from wire.types import LedgerId

LEDGER = LedgerId(7)


def adds(request_id: int, entry_ids: Sequence[int]) -> Adds:
    return Adds(
        request_id=request_id, sink=lambda _: None, ledger_id=LEDGER, entry_ids=entry_ids,
        records=b"", master_key=b"",
    )  # fmt: skip


def taken(expected: ExpectedAdds, entry_ids: list[int]) -> list[tuple[int, list[int]]]:
    return [(one.request_id, list(run)) for one, run in expected.take(LEDGER, entry_ids)]


def test_answers_in_order_are_taken_in_one_run_per_request() -> None:
    expected = ExpectedAdds()
    expected.expect(adds(1, range(0, 100)))
    expected.expect(adds(2, range(100, 200)))
    assert taken(expected, list(range(150))) == [
        (1, list(range(100))),
        (2, list(range(100, 150))),
    ]
    assert taken(expected, list(range(150, 200))) == [(2, list(range(150, 200)))]
    assert taken(expected, [7]) == []


def test_entry_that_is_never_answered_does_not_cut_later_requests_into_single_entries() -> None:
    expected = ExpectedAdds()
    expected.expect(adds(1, range(0, 10)))
    assert sum(len(run) for _, run in taken(expected, [*range(5), *range(6, 10)])) == 9
    for number in range(2, 5):
        first = (number - 1) * 10
        expected.expect(adds(number, range(first, first + 10)))
        assert taken(expected, list(range(first, first + 10))) == [
            (number, list(range(first, first + 10)))
        ]
    assert taken(expected, [5]) == [(1, [5])]


def test_entry_asked_for_twice_belongs_to_the_earlier_request_first() -> None:
    expected = ExpectedAdds()
    expected.expect(adds(1, range(4, 6)))
    expected.expect(adds(2, range(2, 8)))
    got = taken(expected, [2, 3, 4, 5, 6, 7])
    assert [request for request, run in got for _ in run] == [2, 2, 1, 1, 2, 2]
    assert taken(expected, [4, 5]) == [(2, [4]), (2, [5])]


def test_answers_of_other_ledgers_belong_to_nobody() -> None:
    expected = ExpectedAdds()
    expected.expect(adds(1, range(3)))
    assert list(expected.take(8, [0, 1, 2])) == []
    expected.clear()
    assert taken(expected, [0]) == []


@st.composite
def _conversations(draw: st.DrawFn) -> list[list[int]]:
    """Requests as lists of ids; what is asked later may overlap, also in other strides."""
    return [
        sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=20)))
        for _ in range(draw(st.integers(1, 6)))
    ]


@given(_conversations(), st.data())
def test_every_answer_goes_to_the_first_request_that_misses_its_entry(
    requests: list[list[int]], data: st.DataObject
) -> None:
    """Against a table with a row per entry."""
    answers = [entry_id for request in requests for entry_id in request]
    if data.draw(st.booleans()):
        answers = data.draw(st.permutations(answers))
    answers += data.draw(st.lists(st.integers(0, 30), max_size=5))
    table: dict[int, list[int]] = {}
    expected = ExpectedAdds()
    for number, request in enumerate(requests):
        consecutive = request == list(range(request[0], request[-1] + 1))
        expected.expect(
            adds(number, range(request[0], request[-1] + 1) if consecutive else request)
        )
        for entry_id in request:
            table.setdefault(entry_id, []).append(number)
    wanted = [(table[entry_id].pop(0), entry_id) for entry_id in answers if table.get(entry_id)]
    found: list[tuple[int, int]] = []
    while answers:
        size = data.draw(st.integers(1, len(answers)))
        for number, run in taken(expected, answers[:size]):
            found += ((number, entry_id) for entry_id in run)
        answers = answers[size:]
    assert found == wanted
