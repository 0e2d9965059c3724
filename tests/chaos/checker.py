"""Replay a history and say what must not have happened.

Only what can be seen from outside counts, so every rule is one that a user could appeal to:

lost        what was confirmed to a writer is in the ledger, and can be read at the end
end         everybody who saw the end of a ledger saw the same one, with the same length
gap         entries are confirmed and read without gaps, up to the end
LAC         nobody was told a LAC beyond the end, and nobody saw it go back
bytes       everybody reads what the writer wrote
denied      nobody was told that an entry does not exist which does
deleted     what was deleted stays away, and nothing else goes
client      the client raised nothing but its own errors, and did not hang

After `delete begun` a ledger may be anything, as long as its bytes are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from tests.chaos.history import payload_of

#: In the names of files of the last client, which reads everything when all is healed.
JUDGE: Final = "judge"
_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    ledger: int | None
    what: str

    def __str__(self) -> str:
        where = "" if self.ledger is None else f"ledger {self.ledger}: "
        return f"{self.rule}: {where}{self.what}"


@dataclass(slots=True)
class _Ledger:
    """What is known of one ledger, in the order in which it was read."""

    nonce: str | None = None
    mode: str = "plain"
    digest: str = ""
    confirmed: int = -1
    acked: int = -1  # also what deferred sync may lose
    ends: dict[tuple[int, int | None], str] = field(default_factory=dict)
    lac_seen: int = -1
    lac_by: str = ""
    delete_begun: float | None = None
    deleted: float | None = None
    judged: set[int] = field(default_factory=set)
    gone_at: list[tuple[float, str]] = field(default_factory=list)
    found_at: list[tuple[float, str]] = field(default_factory=list)
    denied: list[tuple[int, str]] = field(default_factory=list)
    crcs: dict[int, int] = field(default_factory=dict)
    is_judged: bool = False


@dataclass(slots=True)
class Counts:
    """What a history amounts to."""

    ledgers: int = 0
    confirmed: int = 0
    acked_deferred: int = 0
    lost: int = 0
    read: int = 0
    deleted: int = 0
    recovered: int = 0
    fenced: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Checker:
    """Feed it all lines, in any order of files; then `finish`."""

    def __init__(self, *, is_rotten: bool = False) -> None:
        """`is_rotten`: bits were flipped in entry logs; ledgers without digests cannot tell."""
        self._is_rotten = is_rotten
        self._ledgers: dict[int, _Ledger] = {}
        self._handles: dict[tuple[str, str], int] = {}
        self._waiting: list[tuple[int, int, list[int], str]] = []
        self._found: list[Violation] = []
        self._said: set[tuple[str, int | None]] = set()
        self._suppressed = 0
        self.counts = Counts()

    def feed(self, lines: Iterable[dict[str, Any]]) -> Checker:
        for line in lines:
            self._take(line)
        return self

    def finish(self) -> list[Violation]:
        for ledger_id, first, crcs, who in self._waiting:
            self._compare(ledger_id, first, crcs, who)
        for ledger_id, ledger in sorted(self._ledgers.items()):
            self._judge(ledger_id, ledger)
        if self._suppressed:
            what = f"and {self._suppressed} others of the same kinds"
            self._found.append(Violation("more", None, what))
        return self._found

    def _say(self, rule: str, ledger: int | None, what: str) -> None:
        """The first of its kind for each ledger; the others are counted."""
        if (rule, ledger) in self._said or len(self._found) >= _SHOWN:
            self._suppressed += 1
            return
        if ledger is not None:
            self._said.add((rule, ledger))
        self._found.append(Violation(rule, ledger, what))

    # ------------------------------------------------------------------ line by line

    def _take(self, line: dict[str, Any]) -> None:
        who, number = line["who"], line["l"]
        if number is None:
            self._take_general(line)
            return
        ledger = self._ledgers.setdefault(number, _Ledger())
        match line["k"]:
            case "created":
                ledger.nonce, ledger.mode = line["nonce"], line["mode"]
                ledger.digest = line["digest"]
            case "acked":
                if line["a"] != ledger.acked + 1:
                    self._say("gap", number, f"{line['a']} confirmed after {ledger.acked}")
                ledger.acked = max(ledger.acked, line["b"])
                if ledger.mode != "deferred":
                    ledger.confirmed = max(ledger.confirmed, line["b"])
            case "forced":
                ledger.confirmed = max(ledger.confirmed, line["b"])
            case "append failed":
                self.counts.errors[line["error"]] += 1
                self.counts.fenced += line["error"] in ("FencedError", "LedgerClosedError")
                ledger.confirmed = max(ledger.confirmed, line["confirmed"])
            case "close failed" | "unreadable":
                self.counts.errors[line["error"]] += 1
            case "closed":
                ledger.ends.setdefault((line["last"], line["length"]), f"its writer {who}")
            case "opened":
                self.counts.recovered += 1
                ledger.ends.setdefault((line["last"], line["length"]), f"{who} {line['h']}")
                ledger.found_at.append((line["t0"], who))
                ledger.is_judged |= who.startswith(JUDGE)
            case "end seen":
                ledger.ends.setdefault((line["last"], None), f"{who} {line['h']}")
            case "lac":
                self._take_lac(ledger, number, line)
            case "read":
                self._take_read(ledger, number, line)
            case "denied":
                self._take_denied(ledger, line)
            case "gone":
                ledger.gone_at.append((line["t"], f"{who} {line['h']}"))
            case "delete begun":
                begun = ledger.delete_begun
                ledger.delete_begun = line["t"] if begun is None else min(begun, line["t"])
            case "deleted":
                self.counts.deleted += 1
                ledger.deleted = line["t"]
            case "exists":
                ledger.found_at.append((line["t0"], who))
            case "scanned":
                self._take_scan(ledger, number, line)
            case "short read":
                what = f"a read ended at {line['next'] - 1} instead of {line['last']} ({who})"
                self._say("gap", number, what)
            case "wrong id":
                self._say("gap", number, f"append got {line['found']}, not {line['wanted']}")
            case other:
                raise AssertionError(f"the history has lines of no known kind: {other}")

    def _take_general(self, line: dict[str, Any]) -> None:
        match line["k"]:
            case "bug":
                self._say("client", None, f"{line['role']} of {line['who']}: {line['text']}")
            case "hung":
                self._say("client", None, f"{line['role']} of {line['who']} hung at {line['t']}")
            case "failed":
                self.counts.errors[line["error"]] += 1
            case _:
                pass

    def _take_lac(self, ledger: _Ledger, number: int, line: dict[str, Any]) -> None:
        lac, key = line["lac"], (line["who"], line["h"])
        before = self._handles.get(key, -1)
        if lac < before:
            self._say("LAC", number, f"went from {before} back to {lac} for {key[0]} {key[1]}")
        self._handles[key] = max(lac, before)
        if lac > ledger.lac_seen:
            ledger.lac_seen, ledger.lac_by = lac, f"{key[0]} {key[1]}"

    def _take_read(self, ledger: _Ledger, number: int, line: dict[str, Any]) -> None:
        crcs = line["crcs"]
        self.counts.read += len(crcs)
        if line["last"] - line["first"] + 1 != len(crcs):
            what = f"{len(crcs)} entries for {line['first']}..{line['last']} ({line['who']})"
            self._say("gap", number, what)
        if ledger.nonce is None:
            self._waiting.append((number, line["first"], crcs, line["who"]))
        else:
            self._compare(number, line["first"], crcs, line["who"])
        if line["who"].startswith(JUDGE):
            ledger.judged.update(range(line["first"], line["first"] + len(crcs)))
        if line["last"] > ledger.lac_seen:  # what was read as confirmed shows a LAC, too
            ledger.lac_seen, ledger.lac_by = line["last"], f"{line['who']} {line['h']}"

    def _compare(self, number: int, first: int, crcs: list[int], who: str) -> None:
        ledger = self._ledgers[number]
        if ledger.digest == "DUMMY" and self._is_rotten:
            return
        for entry_id, found in enumerate(crcs, start=first):
            if ledger.nonce is not None and entry_id not in ledger.crcs:
                ledger.crcs[entry_id] = crc32(payload_of(ledger.nonce, entry_id))
            # Without a nonce its writer died before it could tell: then all must agree.
            wanted = ledger.crcs.setdefault(entry_id, found)
            if found != wanted:
                self._say("bytes", number, f"entry {entry_id} is not what was written ({who})")

    def _take_denied(self, ledger: _Ledger, line: dict[str, Any]) -> None:
        self.counts.errors[line["error"]] += 1
        if line["error"] == "CorruptEntryError" and not line["who"].startswith(JUDGE):
            return  # the other copies were out of reach just then
        entry = line["entry"] if line["entry"] is not None else line["first"]
        if entry is not None:
            ledger.denied.append((entry, f"{line['who']} {line['h']}: {line['text']}"))

    def _take_scan(self, ledger: _Ledger, number: int, line: dict[str, Any]) -> None:
        """Spark adds up what it read of a closed ledger."""
        if ledger.nonce is None or (ledger.digest == "DUMMY" and self._is_rotten):
            return
        payloads = [payload_of(ledger.nonce, entry) for entry in range(line["entries"])]
        wanted = [sum(map(len, payloads)), sum(map(crc32, payloads)) & ((1 << 63) - 1)]
        self.counts.read += len(payloads)
        if [line["nbytes"], line["checksum"]] != wanted:
            self._say("bytes", number, f"Spark read {line['entries']} entries of other content")
        ledger.ends.setdefault((line["entries"] - 1, line["nbytes"]), "Spark")

    # ------------------------------------------------------------------ ledger by ledger

    def _judge(self, number: int, ledger: _Ledger) -> None:
        self.counts.ledgers += 1
        self.counts.confirmed += ledger.confirmed + 1
        self.counts.acked_deferred += max(0, ledger.acked - ledger.confirmed)
        ends = {last for last, _ in ledger.ends}
        lengths = {length for _, length in ledger.ends if length is not None}
        if len(ends) > 1 or len(lengths) > 1:
            told = "; ".join(f"{end} by {who}" for end, who in ledger.ends.items())
            self._say("end", number, f"there are several: {told}")
        end = min(ends, default=None)
        if end is not None:
            self._judge_end(number, ledger, end, lengths)
        for at, who in ledger.gone_at:
            if ledger.delete_begun is None or at < ledger.delete_begun:
                self._say("deleted", number, f"{who} was told that it does not exist")
        if ledger.deleted is not None:
            for began, who in ledger.found_at:
                if began > ledger.deleted:
                    self._say("deleted", number, f"{who} found it again")
        if ledger.delete_begun is None and ledger.confirmed >= 0:
            self._judge_reads(number, ledger)

    def _judge_end(self, number: int, ledger: _Ledger, end: int, lengths: set[int]) -> None:
        if ledger.confirmed > end:
            self.counts.lost += ledger.confirmed - end
            self._say("lost", number, f"{ledger.confirmed} was confirmed, it ends at {end}")
        if ledger.lac_seen > end:
            what = f"{ledger.lac_by} was shown {ledger.lac_seen}, it ends at {end}"
            self._say("LAC", number, what)
        # Where callers choose ids, an entry's length counts what was sent before it, in any order.
        if ledger.nonce is not None and lengths and ledger.mode != "given":
            wanted = sum(len(payload_of(ledger.nonce, entry)) for entry in range(end + 1))
            if lengths != {wanted}:
                self._say("end", number, f"{sorted(map(str, lengths))} bytes, not {wanted}")
        if ledger.delete_begun is None:
            for entry, who in ledger.denied:
                if entry <= end:
                    self._say("denied", number, f"entry {entry} exists, but {who}")

    def _judge_reads(self, number: int, ledger: _Ledger) -> None:
        """At the end, with every bookie back, all of it must be there."""
        wanted = set(range(ledger.confirmed + 1))
        missing = wanted - ledger.judged
        if not missing:
            return
        self.counts.lost += len(missing)
        how = "" if ledger.is_judged else ", which could not even be opened"
        self._say(
            "lost", number, f"{len(missing)} of {len(wanted)} confirmed entries cannot be read{how}"
        )
