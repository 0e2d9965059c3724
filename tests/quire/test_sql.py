"""`quire sql`: questions about a live cluster, and what is no question."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
from typing import Any

import pytest

from quire import sql as command
from quire.sql_tables import TABLES
from tests.quire.commands import Cluster, quire
from tests.quire.conftest import ENTRIES, PASSWORD


def rows(cluster: Cluster, query: str) -> list[dict[str, Any]]:
    result = quire("sql", query, "--uri", cluster.uri, "--json")
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.lines]


def test_every_table_is_listed_and_can_be_read(cluster: Cluster, marked: Cluster) -> None:
    listed = [json.loads(line) for line in quire("sql", "--json").lines]
    assert [row["table"] for row in listed] == [table.name for table in TABLES]
    assert quire("sql", ".schema").out == quire("sql").out
    for row in listed:
        found = rows(cluster, f"select * from {row['table']}")
        assert found, row["table"]
        assert list(found[0]) == row["columns"]


def test_ledgers_are_joined_with_their_fragments(cluster: Cluster) -> None:
    query = """
        select l.ledger_id, l.state, l.entries, l.length, f.first_entry_id, f.last_entry_id
        from ledgers l join fragments f using (ledger_id) where ledger_id = 0
    """
    (found,) = rows(cluster, query)
    length = sum(len(f"entry {number}") for number in range(ENTRIES))
    assert list(found.values()) == [0, "CLOSED", ENTRIES, length, 0, ENTRIES - 1]
    shown = quire("sql", query, "--uri", cluster.uri)
    (text,) = (line for line in shown.lines if "CLOSED" in line)
    assert text.split() == list(map(str, found.values()))


def test_bookies_are_counted_over_the_copies_they_hold(cluster: Cluster) -> None:
    query = """
        select bookie_id, state, count(slot) as copies from bookies
        left join copies on copies.bookie_id = bookies.bookie_id and ledger_id = 0
        group by bookies.bookie_id order by state
    """.replace("select bookie_id", "select bookies.bookie_id")
    found = rows(cluster, query)
    assert [row["state"] for row in found] == ["absent"] + ["writable"] * 3
    assert found[0]["bookie_id"] == cluster.bookies[3]["id"]
    assert [row["copies"] for row in found] == [1] * 4


def test_missing_copies_are_tasks(marked: Cluster) -> None:
    dead = marked.bookies[3]["id"]
    assert rows(marked, "select * from under_replicated") == [{"ledger_id": 0, "missing_on": dead}]
    (task,) = rows(marked, "select * from recovery_tasks")
    assert (task["state"], task["worker"], task["marked_ms"]) == ("waiting", None, 1_000)
    assert (task["fragments"], task["verdict"]) == (1, None)
    assert task["bytes_left"] > 0
    assert rows(marked, "select value from cluster where name = 'auditor'") == [{"value": None}]


def test_only_tables_that_are_named_are_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[frozenset[str]] = []

    async def note(source: object, names: frozenset[str], insert: object) -> None:
        asked.append(names)

    monkeypatch.setattr(command, "fill", note)
    rows(cluster, "select count(*) from ledgers")
    rows(cluster, "with w as (select * from bookies) select * from w, cookies")
    assert asked == [frozenset({"ledgers"}), frozenset({"bookies", "cookies"})]
    # Without a table there is nothing to read, so no cluster is needed.
    assert quire("sql", "select 1 as one", "--uri", "zk://127.0.0.1:1/x", "--json").json == {
        "one": 1
    }


def test_passwords_cannot_be_asked_for(cluster: Cluster) -> None:
    for table in TABLES:
        found = json.dumps(rows(cluster, f"select * from {table.name}"))
        assert PASSWORD.decode() not in found
        assert "password" not in found


def test_columns_of_one_name_are_told_apart(cluster: Cluster) -> None:
    (found,) = rows(cluster, "select a.name, b.name from cluster a, cluster b limit 1")
    assert list(found) == ["name", "name:1"]


def test_bytes_that_are_no_text_are_shown_in_hexadecimal(cluster: Cluster) -> None:
    assert rows(cluster, "select x'00ff' as raw") == [{"raw": "00ff"}]


def test_long_answers_are_shown_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_PAGE_ROWS", 10)
    numbers = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 25)"
    lines = [line.strip() for line in quire("sql", f"{numbers} select x from c").lines]
    assert lines.count("x") == 3
    assert [int(line) for line in lines if line.isdigit()] == list(range(1, 26))
    assert quire("sql", "select 1 as gone where 0").lines[1].strip() == "gone"


def test_query_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("select 1 + 1 as two"))
    assert quire("sql", "-", "--json").json == {"two": 2}


@pytest.mark.parametrize(
    "query",
    [
        "delete from ledgers",
        "insert into ledgers (ledger_id) values (1)",
        "update ledgers set state = 'OPEN'",
        "drop table ledgers",
        "create table mine (x)",
        "attach 'elsewhere' as other",
        "pragma query_only = 0",
        "begin",
        "vacuum into 'elsewhere'",
        "select load_extension('x')",
        "with w as (select 1) delete from ledgers",
    ],
)
def test_anything_but_a_question_is_refused(query: str) -> None:
    result = quire("sql", query)
    assert (result.code, result.out) == (1, "")
    assert "only questions can be asked here, nothing was changed" in result.error


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "incomplete input"),
        ("/* nothing */", "incomplete input"),
        ("selec 1", 'near "selec": syntax error'),
        ("select * from nowhere", "no such table: nowhere: `quire sql` without a query lists"),
        ("select x from ledgers", "no such column: x"),
        ("select 1; select 2", "one statement at a time"),
        ("select ?", "bindings"),
    ],
)
def test_wrong_sql_is_one_line(query: str, said: str) -> None:
    result = quire("sql", query)
    assert (result.code, result.out) == (1, "")
    assert said in result.error


def test_endless_question_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while SQLite works, which by itself would never look."""
    seen = 0

    class Impatient(sqlite3.Connection):
        def set_progress_handler(self, handler: Any, steps: int) -> None:
            def interrupted() -> int:
                nonlocal seen
                seen += 1
                signal.raise_signal(signal.SIGINT)
                return int(handler())

            super().set_progress_handler(interrupted if handler else None, steps)

    monkeypatch.setattr("quire.sql.sqlite3.connect", lambda *a, **k: Impatient(*a, **k))
    endless = "with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c"
    assert quire("sql", endless).code == 128 + signal.SIGINT
    assert seen == 1
