"""Cookies: bytes against captured ones, and the decision whether a bookie may start."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.cookie import (
    Cookie,
    CookieAction,
    DirectoryFacts,
    InvalidCookieError,
    StartDecision,
    StoredCookie,
    check_not_pre_v3,
    decide_start,
    decode_cookie,
    encode_cookie,
    verify_cookie,
)
from metadata.model import InvalidMetadataError, check_bookie_id
from wire.types import BookieId

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)

VECTORS = Path(__file__).parent.parent / "vectors"
CAPTURED: list[dict[str, Any]] = json.loads((VECTORS / "cookies.json").read_text())
COOKIES = [vector for vector in CAPTURED if vector["kind"] == "cookie"]
STARTS = {vector["name"]: vector for vector in CAPTURED if vector["kind"] == "start"}

OWN = Cookie.of(
    bookie_id=BookieId("bk1:3181"),
    journal_dirs=["/j"],
    ledger_dirs=["/l1", "/l2"],
    instance_id="uuid",
)


def with_dirs(*ledger_dirs: str, index_dirs: list[str] | None = None) -> Cookie:
    return Cookie.of(
        bookie_id=BookieId("bk1:3181"),
        journal_dirs=["/j"],
        ledger_dirs=ledger_dirs,
        index_dirs=index_dirs,
        instance_id="uuid",
    )


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("vector", COOKIES, ids=lambda vector: vector["name"])
def test_captured_cookie_decodes_and_encodes_to_the_same_bytes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["data_hex"])
    cookie = decode_cookie(data, source=vector["path"])
    fields = vector["fields"]
    assert cookie.version == vector["layout_version"]
    assert cookie.bookie_id == fields["bookieHost"]
    assert cookie.journal_dirs == fields["journalDir"]
    assert cookie.ledger_dirs == fields["ledgerDirs"]
    assert cookie.index_dirs == fields.get("indexDirs")
    assert cookie.instance_id == fields.get("instanceId")
    assert encode_cookie(cookie) == data
    rebuilt = Cookie.of(
        bookie_id=cookie.bookie_id,
        journal_dirs=cookie.journal_dirs.split(","),
        ledger_dirs=cookie.ledger_paths,
        index_dirs=cookie.index_paths if "indexDirs" in fields else None,
        instance_id=cookie.instance_id,
    )
    assert rebuilt == cookie


def test_golden_cookie() -> None:
    cookie = Cookie.of(
        bookie_id=BookieId("bk1.example.com:3181"),
        journal_dirs=["/bk/journal"],
        ledger_dirs=["/bk/ledgers1", "/bk/ledgers2"],
        index_dirs=["/bk/index"],
        instance_id="5b1cf3a2-9d0e-4c57-8a41-3f0f6a1f2c77",
    )
    data = encode_cookie(cookie)
    assert len(data) == 184
    assert b'ledgerDirs: "2\\t/bk/ledgers1\\t/bk/ledgers2"\n' in data
    assert data.startswith(b"5\n")


def test_cookie_of_version_3_is_four_lines() -> None:
    cookie = decode_cookie(b"3\nbk1:3181\n/j\n2\t/l1\t/l2\n", source="x")
    assert cookie == replace(OWN, instance_id=None, version=3)
    assert cookie.ledger_paths == ("/l1", "/l2")
    assert decode_cookie(b"3\nbk1:3181\n/j\n2\t/l1\t/l2", source="x") == cookie


@pytest.mark.parametrize("version", [4, 5, 6, 17])
def test_cookie_of_any_version_from_4_on_is_read_alike(version: int) -> None:
    data = encode_cookie(OWN).replace(b"5\n", f"{version}\n".encode(), 1)
    assert decode_cookie(data, source="x") == replace(OWN, version=version)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"garbage", "Invalid string 'garbage', cannot parse cookie"),
        (b"\xff\xfe", "Invalid string"),
        (b"1\nx\n", "too old version 1"),
        (b"2\nx\n", "too old version 2"),
        (b"3\nbk1\n/j", "is cut off"),
        (b"3\n\xff\n/j\n1\t/l\n", "not UTF-8"),
        (b"5", "required fields are missing: bookieHost, journalDir, ledgerDirs"),
        (b'5\nbookieHost: "bk1', "line 1"),
        (b'5\nbookieHost: "bk1"\n', "required fields are missing: journalDir, ledgerDirs"),
    ],
)
def test_unreadable_cookie_is_explained_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(InvalidCookieError, match=message) as caught:
        decode_cookie(data, source="/disk/current/VERSION")
    assert "/disk/current/VERSION" in str(caught.value)
    assert "\n" not in str(caught.value)


@steady
@given(st.binary(max_size=60), st.sampled_from([b"", b"3\n", b"4\n", b"5\nbookieHost: "]))
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    try:
        decode_cookie(start + data, source="x")
    except InvalidCookieError as caught:
        message = str(caught)
    else:
        return
    assert "\n" not in message


def test_every_prefix_of_a_cookie_is_refused_or_lacks_only_the_instance() -> None:
    data = encode_cookie(OWN)
    for size in range(len(data)):
        try:
            cookie = decode_cookie(data[:size], source="x")
        except InvalidCookieError:
            continue
        assert replace(cookie, instance_id="uuid") == OWN


# ---------------------------------------------------------------------- verification


def matches(own: Cookie, found: Cookie, *, allow_expansion: bool = False) -> bool:
    try:
        verify_cookie(own, found, source="somewhere", allow_expansion=allow_expansion)
    except InvalidCookieError:
        return False
    return True


@pytest.mark.parametrize("allow_expansion", [False, True])
def test_cookie_must_agree_in_identity_journal_and_cluster(allow_expansion: bool) -> None:
    for changed in (
        replace(OWN, bookie_id=BookieId("bk2:3181")),
        replace(OWN, journal_dirs="/other"),
        replace(OWN, journal_dirs="/j,/j2"),
        replace(OWN, instance_id="other"),
        replace(OWN, instance_id=None),
    ):
        assert not matches(OWN, changed, allow_expansion=allow_expansion)
        assert not matches(changed, OWN, allow_expansion=allow_expansion)
    for version in (3, 4, 5, 6):
        assert matches(OWN, replace(OWN, version=version), allow_expansion=allow_expansion)
    anonymous = replace(OWN, instance_id=None)
    assert matches(anonymous, anonymous, allow_expansion=allow_expansion)


def test_directories_must_agree_literally_unless_expansion_is_allowed() -> None:
    one, two, swapped = with_dirs("/l1"), with_dirs("/l1", "/l2"), with_dirs("/l2", "/l1")
    outcomes = {
        (own.ledger_dirs, found.ledger_dirs): (
            matches(own, found),
            matches(own, found, allow_expansion=True),
        )
        for own, found in itertools.product((one, two, swapped), repeat=2)
    }
    assert [outcomes[cookie.ledger_dirs, cookie.ledger_dirs] for cookie in (one, two, swapped)] == [
        (True, True)
    ] * 3
    assert outcomes[two.ledger_dirs, one.ledger_dirs] == (False, True)
    assert outcomes[one.ledger_dirs, two.ledger_dirs] == (False, False)
    assert outcomes[two.ledger_dirs, swapped.ledger_dirs] == (False, True)


def test_absent_index_directories_are_the_ledger_directories() -> None:
    implicit, explicit = with_dirs("/l1", "/l2"), with_dirs("/l1", "/l2", index_dirs=["/l1", "/l2"])
    assert matches(implicit, explicit)
    assert matches(explicit, implicit)
    assert not matches(implicit, with_dirs("/l1", "/l2", index_dirs=["/i"]))
    assert not matches(with_dirs("/l1", "/l2", index_dirs=["/i"]), implicit, allow_expansion=True)
    assert matches(
        with_dirs("/l1", index_dirs=["/i", "/l1"]), with_dirs("/l1"), allow_expansion=True
    )


def test_mismatch_is_reported_with_both_texts_on_one_line() -> None:
    with pytest.raises(InvalidCookieError) as caught:
        verify_cookie(OWN, with_dirs("/l1"), source="/l1")
    assert str(caught.value) == (
        'Cookie [5; bookieHost: "bk1:3181"; journalDir: "/j"; ledgerDirs: "2\\t/l1\\t/l2"; '
        'instanceId: "uuid"] is not matching with [5; bookieHost: "bk1:3181"; journalDir: "/j"; '
        'ledgerDirs: "1\\t/l1"; instanceId: "uuid"] in /l1'
    )


# ---------------------------------------------------------------------- start-up, captured


@dataclass
class Machine:
    """A host with its disks and the cookies in the metadata store; obeys each decision."""

    instance_id: str | None
    stored: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    disks: dict[str, tuple[bytes | None, bool]] = field(default_factory=dict)

    def start(self, own: Cookie, probes: list[str], *, allow_expansion: bool) -> StartDecision:
        paths = list(
            dict.fromkeys((*own.journal_dirs.split(","), *own.ledger_paths, *own.index_paths))
        )
        decision = decide_start(
            own,
            stored=[
                StoredCookie(BookieId(name), decode_cookie(data, source=name), version)
                for name, (data, version) in self.stored.items()
                if name in probes
            ],
            directories=[self._facts(path) for path in paths],
            allow_expansion=allow_expansion,
        )
        if decision.action is not CookieAction.NOTHING:
            version = 0 if decision.version is None else decision.version + 1
            self.stored[own.bookie_id] = (encode_cookie(own), version)
            for path in paths:
                self.disks[path] = (encode_cookie(own), False)
        return decision

    def _facts(self, path: str) -> DirectoryFacts:
        data, empty = self.disks.get(path, (None, True))
        cookie = None if data is None else decode_cookie(data, source=path)
        return DirectoryFacts(path, cookie, empty)


BASE = "/data/quire-vectors/"
IP, NAME = "127.0.0.1", "localhost"
INSTANCE = COOKIES[0]["fields"]["instanceId"]
Q1 = f"{IP}:33811"

#: What each captured start was: bookie id, directory below BASE, ids probed besides.
PLACES: dict[str, tuple[str, str, list[str]]] = {
    "bookieId": ("bk-alpha", "q2", []),
    "hostname": (f"{NAME}:33813", "q3", [f"{IP}:33813"]),
    "hostname-short": (f"{NAME}:33813", "q3s", [f"{IP}:33813"]),
    "ip-noadv": (f"{IP}:33814", "q4", [f"{NAME}:33814"]),
    "advertised-name": (f"{NAME}:33812", "q5", [f"{IP}:33812"]),
    "bookieId+adv": ("bk_2.site-a:7", "q6", []),
    "two-dirs-index": (f"{NAME}:33814", "q7", [f"{IP}:33814"]),
    "readonly-id-rejected": ("ReadOnly", "q8", []),
    "slash-id-rejected": ("a/b", "q8", []),
    "id-changed-ip-to-name": (f"{NAME}:33811", "q1", [Q1]),
    "id-changed-to-bookieId": ("other", "q1", []),
}
#: The root of the cluster was missing: that fails before any cookie is looked at.
BEFORE_COOKIES = {"root-missing"}


def disturb(machine: Machine, name: str) -> None:
    """What was done to the bookie before this start."""
    ledgers, ledgers2, journal = BASE + "q1/ledgers", BASE + "q1/ledgers2", BASE + "q1/journal"
    if name.startswith("wiped-all"):
        machine.disks.update(dict.fromkeys((ledgers, ledgers2, journal), (None, True)))
    elif name == "wiped-journal":
        machine.disks[journal] = (None, True)
    elif name == "instanceid-differs":
        machine.instance_id = "00000000-1111-2222-3333-444444444444"
    elif name == "instanceid-missing":
        machine.instance_id = None
    elif name == "cookie-deleted-in-zk":
        del machine.stored[Q1]
    elif name == "cookie-garbage":
        machine.stored[Q1] = (b"garbage", 2)
    elif name in ("cookie-v4-header", "cookie-v6-header"):
        data, version = machine.stored[Q1]
        machine.stored[Q1] = (name[8:9].encode() + data[1:], version)


@cache
def replayed() -> dict[str, StartDecision | str]:
    """Every captured start in file order; a failed one leaves no trace."""
    outcomes: dict[str, StartDecision | str] = {}
    machine = Machine(INSTANCE)
    for name, vector in STARTS.items():
        if name in BEFORE_COOKIES:
            continue
        saved = (dict(machine.stored), dict(machine.disks), machine.instance_id)
        disturb(machine, name)
        conf = vector["conf"]
        bookie_id, place, probes = PLACES.get(name, (Q1, "q1", [f"{NAME}:33811"]))

        def dirs(key: str, default: str | None, conf: dict[str, str] = conf) -> list[str] | None:
            value = conf.get(key, default)
            return None if value is None else value.split(",")

        try:
            own = Cookie.of(
                bookie_id=check_bookie_id(bookie_id),
                journal_dirs=dirs("journalDirectories", f"{BASE}{place}/journal") or [],
                ledger_dirs=dirs("ledgerDirectories", f"{BASE}{place}/ledgers") or [],
                index_dirs=dirs("indexDirectories", None),
                instance_id=machine.instance_id,
            )
            outcome: StartDecision | str = machine.start(
                own, [*probes, bookie_id], allow_expansion="allowStorageExpansion" in conf
            )
        except (InvalidCookieError, InvalidMetadataError) as error:
            outcome = str(error)
            machine.stored, machine.disks, machine.instance_id = saved
        outcomes[name] = outcome
    return outcomes


@pytest.mark.parametrize("name", [name for name in STARTS if name not in BEFORE_COOKIES])
def test_captured_start_ends_as_it_did_with_java(name: str) -> None:
    vector, outcome = STARTS[name], replayed()[name]
    if not vector["started"]:
        assert isinstance(outcome, str)
        assert vector["exit_code"] == 2
        for phrase in (
            "is not matching with",
            "There are directories without a cookie, and this is neither a new environment, nor "
            "is storage expansion enabled",
            "Cookie for this bookie is not stored in metadata store. Bookie failing to come up",
            "Either not all local directories have cookies or directories being added newly are "
            "not empty",
            "Invalid string 'garbage', cannot parse cookie",
            "is not valid",
        ):
            assert (phrase in outcome) == (phrase in vector["error"])
        return
    assert isinstance(outcome, StartDecision), outcome
    writes = [write for write in vector["zookeeper_cookie_writes"] if write["path"].count("/") > 2]
    expected = {"create": CookieAction.CREATE, "set": CookieAction.UPDATE}
    assert [outcome.action] == (
        [expected[write["op"]] for write in writes] or [CookieAction.NOTHING]
    )
    if outcome.action is CookieAction.UPDATE:
        assert outcome.version == writes[0]["version"] - 1


# ---------------------------------------------------------------------- start-up, all rows


def facts(path: str, cookie: Cookie | None = None, *, empty: bool = True) -> DirectoryFacts:
    return DirectoryFacts(path, cookie, empty)


STORED = [StoredCookie(OWN.bookie_id, OWN, 4)]


def test_new_bookie_stamps_and_creates() -> None:
    decision = decide_start(OWN, stored=[], directories=[facts("/j"), facts("/l1"), facts("/l2")])
    assert decision == StartDecision(CookieAction.CREATE)


def test_start_that_crashed_while_stamping_is_taken_up_again() -> None:
    directories = [facts("/j", OWN), facts("/l1", OWN), facts("/l2")]
    assert decide_start(OWN, stored=[], directories=directories).action is CookieAction.CREATE


@pytest.mark.parametrize(
    "directories",
    [
        [facts("/j"), facts("/l1", empty=False), facts("/l2")],
        [facts("/j", OWN, empty=False), facts("/l1", OWN), facts("/l2")],
    ],
    ids=["data without a cookie", "data beside an exchanged disk"],
)
def test_data_anywhere_means_that_the_bookie_is_not_new(
    directories: list[DirectoryFacts],
) -> None:
    with pytest.raises(InvalidCookieError, match="Not all the new directories are empty"):
        decide_start(OWN, stored=[], directories=directories)


def test_wiped_bookie_may_return_only_where_a_loss_is_allowed_and_nothing_is_left() -> None:
    stored = [StoredCookie(OWN.bookie_id, OWN, 3)]
    wiped = [facts("/j"), facts("/l1"), facts("/l2")]
    decision = decide_start(OWN, stored=stored, directories=wiped, allow_loss=True)
    assert decision.action is CookieAction.RETURN
    with pytest.raises(InvalidCookieError):
        decide_start(OWN, stored=stored, directories=wiped)
    partly = [facts("/j"), facts("/l1", OWN), facts("/l2", OWN)]
    with pytest.raises(InvalidCookieError):
        decide_start(OWN, stored=stored, directories=partly, allow_loss=True)


def test_wiped_journal_is_refused_even_with_expansion() -> None:
    """Apache lets it pass and loses what was confirmed but not flushed."""
    directories = [facts("/j"), facts("/l1", OWN), facts("/l2", OWN)]
    with pytest.raises(InvalidCookieError, match=r"not all local directories .*: /j$"):
        decide_start(OWN, stored=STORED, directories=directories, allow_expansion=True)


@pytest.mark.parametrize("path", ["/l1", "/l1/", "/./l1", "/x/../l1"])
def test_wiped_ledger_directory_is_known_however_it_is_spelled(path: str) -> None:
    old = with_dirs("/l1")
    with pytest.raises(InvalidCookieError, match="Either not all local"):
        decide_start(
            with_dirs("/l1", path, "/l2"),
            stored=[StoredCookie(OWN.bookie_id, old, 0)],
            directories=[facts("/j", old), facts(path), facts("/l2")],
            allow_expansion=True,
        )


def test_added_directory_must_be_empty() -> None:
    old = with_dirs("/l1")
    stored = [StoredCookie(OWN.bookie_id, old, 4)]
    known = [facts("/j", old, empty=False), facts("/l1", old, empty=False)]
    decision = decide_start(
        OWN, stored=stored, directories=[*known, facts("/l2")], allow_expansion=True
    )
    assert decision == StartDecision(CookieAction.UPDATE, 4)
    with pytest.raises(InvalidCookieError, match="not empty: /l2"):
        decide_start(
            OWN,
            stored=stored,
            directories=[*known, facts("/l2", empty=False)],
            allow_expansion=True,
        )


def test_cookie_stored_under_another_id_is_refused_even_if_its_text_agrees() -> None:
    with pytest.raises(InvalidCookieError, match="is stored under host:3181"):
        decide_start(
            OWN,
            stored=[StoredCookie(BookieId("host:3181"), OWN, 0)],
            directories=[facts("/j", OWN), facts("/l1", OWN), facts("/l2", OWN)],
        )


def test_no_facts_ever_end_in_a_start_that_lost_data() -> None:
    """Every combination of stored cookie and directory states, with and without expansion.

    If any directory once stamped (or named by the stored cookie) comes without its cookie while
    another one holds data, the bookie lost something and must not start.
    """
    states = [facts("?", OWN), facts("?", OWN, empty=False), facts("?"), facts("?", empty=False)]
    started = 0
    for stored, allow_expansion in itertools.product(([], STORED), (False, True)):
        for combination in itertools.product(states, repeat=3):
            directories = [
                replace(state, path=path)
                for state, path in zip(combination, ("/j", "/l1", "/l2"), strict=True)
            ]
            bare = [one for one in directories if one.cookie is None]
            data = [one for one in directories if not one.empty]
            try:
                decision = decide_start(
                    OWN, stored=stored, directories=directories, allow_expansion=allow_expansion
                )
            except InvalidCookieError:
                continue
            started += 1
            assert not (bare and (data or stored))
            assert (decision.action is CookieAction.NOTHING) == (bool(stored) and not bare)
    assert started == 2 * (8 + 7)


@pytest.mark.parametrize("name", ["VERSION", "1.txn", "0.log", "a.idx"])
def test_directory_of_the_oldest_release_is_refused(name: str) -> None:
    with pytest.raises(InvalidCookieError, match="/l1 holds data of a release before layout 3"):
        check_not_pre_v3("/l1", ["lost+found", name])
    check_not_pre_v3("/l1", ["lost+found"])
