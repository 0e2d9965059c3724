"""The checker on histories written by hand: silent on good ones, loud on each kind of bad one."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from tests.chaos.checker import Checker, Violation
from tests.chaos.history import payload_of

LEDGER = 7
NONCE = "n"
END = 4
LENGTH = sum(len(payload_of(NONCE, entry)) for entry in range(END + 1))


def line(kind: str, who: str = "c1-1", at: float = 1.0, **facts: Any) -> dict[str, Any]:
    return {"k": kind, "who": who, "t": at, "l": LEDGER, "h": "h", **facts}


def read(who: str, first: int, last: int, at: float = 5.0, nonce: str = NONCE) -> dict[str, Any]:
    crcs = [crc32(payload_of(nonce, entry)) for entry in range(first, last + 1)]
    return line("read", who, at, first=first, last=last, crcs=crcs)


def opened(who: str, last: int = END, length: int = LENGTH, at: float = 9.0) -> dict[str, Any]:
    return line("opened", who, at, t0=at, last=last, length=length)


CREATED = line("created", nonce=NONCE, mode="plain", digest="CRC32C", shape=(3, 3, 2))
ACKED = line("acked", at=2.0, a=0, b=END)
GOOD = [CREATED, ACKED, line("closed", last=END, length=LENGTH, at=3.0)]
JUDGED = [opened("judge-1"), read("judge-1", 0, END)]


def rules(*lines: dict[str, Any], is_rotten: bool = False) -> list[str]:
    return [found.rule for found in Checker(is_rotten=is_rotten).feed(lines).finish()]


def test_checker_finds_nothing_in_a_good_history() -> None:
    checker = Checker().feed([*GOOD, line("lac", lac=2), line("lac", lac=END), *JUDGED])
    assert checker.finish() == []
    assert (checker.counts.confirmed, checker.counts.lost) == (END + 1, 0)


def test_checker_does_not_depend_on_the_order_of_clients() -> None:
    assert rules(*JUDGED, *GOOD) == []


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ("lost", [CREATED, ACKED, opened("c2-1", last=2, length=0), *GOOD[:0]]),
        ("lost", [*GOOD, opened("judge-1"), read("judge-1", 0, END - 1)]),
        ("lost", GOOD),
        ("end", [*GOOD, *JUDGED, opened("c2-1", last=END + 1, length=LENGTH)]),
        ("end", [*GOOD, *JUDGED, opened("c2-1", length=LENGTH + 1)]),
        ("end", [CREATED, ACKED, opened("judge-1", length=3), read("judge-1", 0, END)]),
        ("end", [*GOOD, *JUDGED, line("end seen", "c2-1", last=END - 1)]),
        ("gap", [*GOOD, *JUDGED, line("acked", a=END + 2, b=END + 2)]),
        ("gap", [*GOOD, *JUDGED, line("wrong id", found=3, wanted=2)]),
        ("gap", [*GOOD, *JUDGED, line("short read", next=2, last=4)]),
        ("LAC", [*GOOD, *JUDGED, line("lac", "c2-1", lac=END + 1)]),
        ("LAC", [*GOOD, *JUDGED, line("lac", "c2-1", lac=3), line("lac", "c2-1", lac=2)]),
        ("LAC", [*GOOD, *JUDGED, read("c2-1", END + 1, END + 1)]),
        ("bytes", [*GOOD, *JUDGED, read("c2-1", 0, 1, nonce="other")]),
        ("denied", [*GOOD, *JUDGED, line("denied", "c2-1", entry=3, first=0, t0=1.0,
                                         error="NoSuchEntryError", text="")]),
        ("deleted", [*GOOD, *JUDGED, line("gone", "c2-1", t0=1.0)]),
        ("deleted", [*GOOD, line("delete begun", at=10.0), line("deleted", at=11.0),
                     opened("c2-1", at=12.0)]),
        ("client", [*GOOD, *JUDGED, {**line("bug", role="writer", text="oh"), "l": None}]),
        ("client", [*GOOD, *JUDGED, {**line("hung", role="writer"), "l": None}]),
    ],
)  # fmt: skip
def test_checker_catches_what_must_not_happen(rule: str, lines: list[dict[str, Any]]) -> None:
    assert rule in rules(*lines)


def test_an_end_below_what_was_confirmed_is_a_loss_even_if_the_ledger_was_deleted_later() -> None:
    length = sum(len(payload_of(NONCE, entry)) for entry in range(3))
    short = opened("c2-1", last=2, length=length)
    assert rules(CREATED, ACKED, short, line("delete begun", at=20.0)) == ["lost"]


def test_unforced_entries_may_be_lost_and_forced_ones_may_not() -> None:
    deferred = {**CREATED, "mode": "deferred"}
    short = sum(len(payload_of(NONCE, entry)) for entry in range(3))
    end = [opened("judge-1", last=2, length=short), read("judge-1", 0, 2)]
    assert rules(deferred, ACKED, line("forced", b=2), *end) == []
    assert "lost" in rules(deferred, ACKED, line("forced", b=3), *end)


def test_what_a_failed_writer_counts_as_confirmed_is_confirmed() -> None:
    failed = line("append failed", error="FencedError", confirmed=3)
    end = [opened("judge-1", last=2, length=0), read("judge-1", 0, 2)]
    assert "lost" in rules(CREATED, failed, *end)


def test_deleted_ledgers_may_be_denied_and_need_not_be_read() -> None:
    gone = [line("delete begun", at=10.0), line("deleted", at=11.0), line("gone", at=12.0, t0=1.0)]
    assert rules(*GOOD, *gone) == []


def test_rot_excuses_ledgers_without_digests_and_no_others() -> None:
    other = read("c2-1", 0, 1, nonce="other")
    plain = [{**CREATED, "digest": "DUMMY"}, *GOOD[1:], *JUDGED]
    assert rules(*plain, other, is_rotten=True) == []
    assert "bytes" in rules(*plain, other)
    assert "bytes" in rules(*GOOD, *JUDGED, other, is_rotten=True)


def test_spark_must_see_all_of_a_closed_ledger() -> None:
    checksum = sum(crc32(payload_of(NONCE, entry)) for entry in range(END + 1))
    scan = {"entries": END + 1, "nbytes": LENGTH, "checksum": checksum}
    assert rules(*GOOD, *JUDGED, line("scanned", "spark-1", **scan)) == []
    assert "bytes" in rules(*GOOD, *JUDGED, line("scanned", "spark-1", **{**scan, "checksum": 1}))
    assert "end" in rules(
        *GOOD, *JUDGED, line("scanned", "spark-1", entries=1, nbytes=1, checksum=1)
    )


def test_length_is_a_matter_of_order_where_callers_choose_ids() -> None:
    given = {**CREATED, "mode": "given"}
    end = [opened("judge-1", length=3), read("judge-1", 0, END)]
    assert rules(given, ACKED, *end) == []
    assert "end" in rules(given, ACKED, *end, opened("c2-1", length=4))


def test_one_violation_of_a_kind_is_told_for_each_ledger() -> None:
    again = [line("lac", "c2-1", lac=END + number) for number in (1, 2, 3)]
    back = [line("lac", "c2-1", lac=number) for number in (2, 1, 0)]
    found = Checker().feed([*GOOD, *JUDGED, *again, *back]).finish()
    assert [violation.rule for violation in found] == ["LAC", "more"]


def test_violations_name_the_ledger() -> None:
    assert str(Violation("lost", LEDGER, "3 entries")) == "lost: ledger 7: 3 entries"
