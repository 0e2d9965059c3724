"""The admin paths of a running cluster: what they do, and who may have it done."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.local_zookeeper import free_port
from tests.http.conftest import World, quire_daemon
from tests.http.exchanges import ask
from tests.quire.commands import quire, wait_until

TOKEN = "a-token-for-tests-0001"
READ_ONLY = "/api/v1/bookie/state/readonly"
GC = "/api/v1/bookie/gc"


@pytest.fixture(scope="module")
def guarded(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bookie with a token, that was given a password; where it serves."""
    folder = tmp_path_factory.mktemp("guarded")
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    port = free_port()
    settings = world.cluster.conf(1).read_text().replace(str(world.cluster.folder), str(folder))
    for key, value in (("bookiePort", free_port()), ("httpServerPort", port)):
        settings = re.sub(f"(?m)^{key}=.*$", f"{key}={value}", settings)
    conf = folder / "bk_server.conf"
    conf.write_text(f"{settings}\nquire_httpTokenFile={token}\nhttpServerKeyStorePassword=hush\n")
    with quire_daemon("bookie", conf, folder / "bookie.log"):
        yield f"http://127.0.0.1:{port}"


def test_changes_need_the_token_and_looking_does_not(guarded: str) -> None:
    assert ask(guarded, "GET", READ_ONLY).json == {"readOnly": False}
    refused = ask(guarded, "PUT", READ_ONLY, body='{"readOnly":true}')
    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    wrong = {"Authorization": "Bearer something-else-entirely"}
    assert ask(guarded, "PUT", READ_ONLY, body='{"readOnly":true}', headers=wrong).status == 401
    assert ask(guarded, "DELETE", "/api/v1/ledger/delete", query="ledger_id=0").status == 401
    assert ask(guarded, "GET", READ_ONLY).json == {"readOnly": False}
    right = {"Authorization": f"Bearer {TOKEN}"}
    for wanted in ("true", "false"):
        done = ask(guarded, "PUT", READ_ONLY, body=f'{{"readOnly":{wanted}}}', headers=right)
        assert (done.status, done.json) == (200, {"readOnly": wanted == "true"})


def test_pages_of_other_sites_and_other_names_are_refused(world: World, guarded: str) -> None:
    for url in (world.url, guarded):
        for headers in (
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "rebound.evil.example"},
        ):
            assert ask(url, "PUT", GC, headers=headers).status == 403
            assert ask(url, "GET", "/api/v1/ledger/list", headers=headers).status == 403
            assert ask(url, "GET", "/heartbeat", headers=headers).status == 200
            assert ask(url, "GET", "/metrics", headers=headers).status == 200


def test_passwords_are_not_shown(guarded: str, world: World) -> None:
    shown = ask(guarded, "GET", "/api/v1/config/server_config")
    assert shown.json["httpServerKeyStorePassword"] == "***"
    assert "hush" not in shown.text
    assert TOKEN not in shown.text
    record = ask(world.url, "GET", "/api/v1/ledger/metadata", query="ledger_id=0").json["0"]
    assert record["password"] == ""
    raw = ask(world.url, "GET", "/api/v1/ledger/list", query="print_metadata=true&page=1")
    assert "B\x01p" not in raw.json["0"]


def test_level_of_the_log_can_be_changed_and_nothing_else(world: World) -> None:
    path = "/api/v1/config/server_config"
    assert ask(world.url, "PUT", path, body='{"quire_logLevel":"debug"}').status == 200
    assert ask(world.url, "GET", path).json["quire_logLevel"] == "debug"
    for body in ('{"quire_logLevel":"loud"}', '{"bookiePort":"1"}', "{}"):
        assert ask(world.url, "PUT", path, body=body).status == 400
    assert ask(world.url, "PUT", path, body='{"quire_logLevel":"info"}').status == 200


def test_entries_are_read_by_range_by_page_and_as_they_are(world: World) -> None:
    def read(query: str) -> dict[str, str]:
        found = ask(world.url, "GET", "/api/v1/ledger/read", query=f"ledger_id=0&{query}")
        assert found.status == 200, found.text
        return dict(found.json)

    assert list(read("")) == [str(number) for number in range(300)]
    assert read("start_entry_id=298") == {"298": "entry-298", "299": "entry-299"}
    assert read("page=1&start_entry_id=299") == {"299": "entry-299", "Entries for page: ": "1"}
    encoded = read("end_entry_id=0&encoding=base64")
    assert base64.b64decode(encoded["0"]) == b"entry-0"
    assert read("start_entry_id=300") == {}


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("ledger/read", "ledger_id=0&encoding=hex"),
        ("ledger/read", "ledger_id=0&page=-1"),
        ("ledger/read", "ledger_id=99999999999999999999999"),
        ("ledger/read", "ledger_id=9223372036854775808"),
        ("ledger/read", "ledger_id=%00"),
        ("ledger/list", "print_metadata=true&page=-1"),
        ("ledger/metadata", "ledger_id=0%0a"),
    ],
)
def test_parameters_that_cannot_be_are_one_line(world: World, path: str, query: str) -> None:
    answer = ask(world.url, "GET", f"/api/v1/{path}", query=query)
    assert answer.status == 400
    assert len(answer.text.splitlines()) == 1


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'{"readOnly":1}', b"null", b'"x"'])
def test_bodies_that_cannot_be_are_one_line(world: World, body: bytes) -> None:
    answer = ask(world.url, "PUT", READ_ONLY, body=body)
    assert answer.status == 400
    assert len(answer.text.splitlines()) == 1


def test_garbage_is_collected_when_told_to(world: World) -> None:
    before = ask(world.url, "GET", "/api/v1/bookie/gc_details").json[0]
    assert ask(world.url, "PUT", GC, body='{"forceMajor":true,"forceMinor":false}').status == 200
    wait_until(lambda: ask(world.url, "GET", GC).json == {"is_in_force_gc": "false"})
    after = ask(world.url, "GET", "/api/v1/bookie/gc_details").json[0]
    assert after["majorCompactionCounter"] == before["majorCompactionCounter"] + 1
    assert after["minorCompactionCounter"] == before["minorCompactionCounter"]


def test_index_is_compacted_when_told_to(world: World) -> None:
    path = "/api/v1/bookie/entry_location_compact"
    before = ask(world.url, "GET", "/api/v1/bookie/gc_details").json[0]
    assert ask(world.url, "PUT", path, body='{"entryLocationRocksDBCompact":true}').status == 200
    wait_until(lambda: not any(ask(world.url, "GET", path).json.values()))
    after = ask(world.url, "GET", "/api/v1/bookie/gc_details").json[0]
    name = "entryLocationCompactionCounter"
    assert after[name] == before[name] + 1


def test_heartbeat_does_not_wait_for_others(world: World) -> None:
    """A sanity check, and a read of everything, are under way meanwhile."""
    paths = ("/api/v1/bookie/sanity", "/api/v1/ledger/read?ledger_id=0")
    others = [threading.Thread(target=ask, args=(world.url, "GET", path)) for path in paths]
    for other in others:
        other.start()
    assert ask(world.url, "GET", "/heartbeat").text == "OK\n"
    for other in others:
        other.join()


def test_address_is_announced_to_the_cluster(world: World) -> None:
    shown = quire(
        "shell", "--uri", world.cluster.uri, "endpointinfo", "-b", world.bookie_ids[0], "--json"
    ).json
    (found,) = [endpoint for endpoint in shown["endpoints"] if endpoint["id"] == "httpserver"]
    assert f"{found['protocol']}://{found['host']}:{found['port']}" == world.url


def test_metrics_have_a_port_of_their_own_when_the_admin_paths_are_off(
    world: World, tmp_path: Path
) -> None:
    port = free_port()
    settings = world.cluster.conf(1).read_text().replace(str(world.cluster.folder), str(tmp_path))
    settings = re.sub("(?m)^bookiePort=.*$", f"bookiePort={free_port()}", settings)
    settings = re.sub("(?m)^httpServer.*$", "", settings)
    conf = tmp_path / "bk_server.conf"
    conf.write_text(f"{settings}\nprometheusStatsHttpPort={port}\n")
    with quire_daemon("bookie", conf, tmp_path / "bookie.log"):
        url = f"http://127.0.0.1:{port}"
        assert "bookie_SERVER_STATUS 1" in ask(url, "GET", "/metrics").text
        assert ask(url, "GET", "/heartbeat").status == 404


def test_busy_port_stops_the_start_with_one_line(world: World, tmp_path: Path) -> None:
    text = world.cluster.conf(1).read_text().replace(str(world.cluster.folder), str(tmp_path))
    conf = tmp_path / "bk_server.conf"
    conf.write_text(re.sub("(?m)^bookiePort=.*$", f"bookiePort={free_port()}", text))
    failed = quire("bookie", "--conf", conf)
    assert failed.code == 2
    assert "cannot serve HTTP on 127.0.0.1" in failed.err.splitlines()[-1]
    assert "Traceback" not in failed.err
