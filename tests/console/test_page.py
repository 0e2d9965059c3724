"""The page in a real Chromium: every view, with figures that move."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from quire.processes import child_environment
from runtime.local_zookeeper import free_port
from tests.console.conftest import HOSTILE, PASSWORD, PAYLOADS, Site, screenshot
from tests.quire.commands import ROOT

expect.set_options(timeout=90_000)


def opened(page: Page, site: Site, ledger: int | None = None) -> Page:
    page.goto(site.link)
    expect(page.locator("#link-state")).to_have_text("live")
    if ledger is not None:
        show(page, ledger)
    return page


def show(page: Page, ledger: int) -> None:
    page.fill("#ledger-number", str(ledger))
    page.press("#ledger-number", "Enter")
    expect(page.locator("#ledger-title")).to_have_text(f"Ledger {ledger}")
    expect(page.locator("#ledger-body")).to_be_visible()


def lac(page: Page) -> int:
    return int(re.sub(r"\D", "", page.inner_text("#lac")))


# ---------------------------------------------------------------------- views


def test_bookies_and_their_figures_are_shown(page: Page, site: Site) -> None:
    opened(page, site)
    rows = page.locator("tr.bookie")
    expect(rows).to_have_count(4)
    for bookie in site.cluster.bookies:
        row = page.locator("tr.bookie", has_text=bookie["id"])
        expect(row.locator(".state-text")).to_have_text("writable")
        expect(row.locator(".rack")).to_have_text("/default-rack")
        expect(row.locator(".disk-text")).to_have_text(re.compile(r"\d %"))
        expect(row.locator(".lag")).to_have_text(re.compile("ms"))
        expect(row.locator(".problem")).to_have_text("")
    expect(page.locator("#tile-bookies")).to_have_text("4 of 4")
    expect(page.locator("#tile-adds")).to_have_text(re.compile(r"^[1-9][\d.]*/s$"))
    expect(page.locator("#cluster")).to_have_text(site.cluster.uri)
    assert "token" not in page.url


def test_charts_and_totals_move(page: Page, site: Site) -> None:
    opened(page, site)
    for chart in ("#chart-throughput", "#chart-latency"):
        line = page.locator(f"{chart} path.series-a")
        expect(line).to_have_attribute("d", re.compile("^M.*L"))
        expect(page.locator(f"{chart} svg")).to_have_attribute(
            "aria-label", re.compile("now: .*[1-9]")
        )
    before = page.locator("#chart-throughput path.series-a").get_attribute("d") or ""
    expect(page.locator("#chart-throughput path.series-a")).not_to_have_attribute("d", before)


def test_growing_ledger_moves_and_its_writer_goes_on(page: Page, site: Site) -> None:
    opened(page, site, site.growing)
    expect(page.locator("#lac-rate")).to_have_text(re.compile("moving by"))
    before = lac(page)
    expect(page.locator("#lac")).not_to_have_text(page.inner_text("#lac"))
    assert lac(page) > before
    expect(page.locator("#ledger-facts")).to_contain_text("open")
    expect(page.locator(".stripe-lac")).to_have_count(1)
    screenshot(page, "light")


def test_stripes_show_where_each_entry_is(page: Page, site: Site) -> None:
    """Six entries with two copies each over three bookies: entry e is on slots e and e+1."""
    opened(page, site, site.small)
    expect(page.locator("#stripes rect.stripe")).to_have_count(12)
    cells = page.locator("#stripes rect.stripe").evaluate_all(
        "all => all.map(one => [Math.round(one.getAttribute('x')), one.getAttribute('y')])"
    )
    columns = sorted({x for x, _ in cells})
    on = [{y for x, y in cells if x == column} for column in columns]
    assert [len(rows) for rows in on] == [2] * 6
    assert on[:3] == on[3:]
    assert len({frozenset(rows) for rows in on}) == 3
    label = page.locator("#stripes svg").get_attribute("aria-label") or ""
    assert label.startswith("1 fragment: from entry 0 on 127.0.0.1:")


def test_ledgers_are_listed_by_pages(page: Page, site: Site) -> None:
    from ledger_client.sync import LedgerClient

    with LedgerClient(site.cluster.uri) as client:
        for _ in range(22):
            client.create(ensemble_size=1, write_quorum=1, ack_quorum=1).close()
    opened(page, site)
    rows = page.locator("#ledger-rows tr")
    expect(rows).to_have_count(20)
    newest = rows.first.inner_text()
    expect(page.locator("#ledgers-newest")).to_be_disabled()
    page.click("#ledgers-older")
    expect(rows).not_to_have_count(20)
    expect(page.locator("#ledgers-older")).to_be_disabled()
    page.click("#ledgers-newest")
    expect(rows).to_have_count(20)
    assert rows.first.inner_text() == newest
    page.fill("#ledger-number", "987654321")
    page.press("#ledger-number", "Enter")
    expect(page.locator("#ledger-none")).to_have_text("the ledger does not exist")


# ---------------------------------------------------------------------- entries


def test_hostile_payload_is_text_and_nothing_else(page: Page, site: Site) -> None:
    opened(page, site, site.small)
    page.click("#browse button")
    expect(page.locator("#browse-said")).to_contain_text("6 entries, 0 to 5")
    first = page.locator("#entries li").first
    assert first.locator("pre").text_content() == HOSTILE.decode()
    assert page.locator("#entries img, #entries script, #ledger-custom img").count() == 0
    expect(page.locator("#custom-facts")).to_contain_text(HOSTILE.decode())
    texts = page.locator("#entries pre").all_text_contents()
    assert texts[1] == (
        '{ "sensor": 9223372036854775807, "note": "</pre><script>alert(2)</script>", '
        '"a": [], "b": [ 1, {} ] }'
    )
    assert texts[2] == "plain words"
    assert texts[3].startswith("000000  00 01 02 03")
    assert texts[4] == "Grüße"
    assert texts[5].startswith("000000  ff fe 20")
    screenshot(page, "entries")
    page.select_option("#browse [name=format]", "hex")
    hexed = page.locator("#entries pre").first
    assert (hexed.text_content() or "").startswith("000000  3c 69 6d 67")
    page.select_option("#browse [name=format]", "text")
    assert page.locator("#entries pre").nth(1).text_content() == PAYLOADS[1].decode()
    page.select_option("#browse [name=format]", "json")
    assert "no JSON, so hex" in page.inner_text("#entries li >> nth=2")


def test_password_opens_a_locked_ledger(page: Page, site: Site) -> None:
    opened(page, site, site.locked)
    expect(page.locator("#ledger-facts")).to_contain_text("with a password")
    page.click("#browse button")
    expect(page.locator("#browse-said")).to_contain_text("password")
    assert page.locator("#entries li").count() == 0
    page.fill("#browse [name=password]", PASSWORD.decode())
    page.fill("#browse [name=first]", "2")
    page.click("#browse button")
    expect(page.locator("#entries pre").first).to_have_text("plain words")
    assert PASSWORD.decode() not in page.url
    show(page, site.small)
    assert page.input_value("#browse [name=password]") == ""


# ---------------------------------------------------------------------- for everybody


def test_page_is_used_without_a_mouse(page: Page, site: Site) -> None:
    opened(page, site)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.dataset.fault")
    assert first == "kill"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    # A button that cannot be had now can be reached, and says why.
    page.locator("[data-fault=revive]").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("nothing is wrong with it")
    # Focus stays where it is while figures change.
    page.locator("[data-fault=pause]").first.focus()
    number = page.inner_text("#tile-adds")
    expect(page.locator("#tile-adds")).not_to_have_text(number)
    assert page.evaluate("document.activeElement.dataset.fault") == "pause"
    page.locator(f"#ledger-rows button[aria-label='Show ledger {site.growing}']").or_(
        page.locator("#ledger-rows button").first
    ).first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#ledger-body")).to_be_visible()
    assert page.evaluate("document.activeElement.id") == "ledger"


def test_every_control_has_a_name(page: Page, site: Site) -> None:
    opened(page, site, site.small)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, svg[role=img], progress")]
            .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim()
                || (one.labels && one.labels.length)))
            .map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_page_fits_a_phone(page: Page, site: Site) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    opened(page, site, site.small)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    small = page.evaluate(
        """() => [...document.querySelectorAll(".faults button, #browse button")]
            .filter((one) => one.getBoundingClientRect().height < 34).length"""
    )
    assert small == 0
    screenshot(page, "phone")


def test_colours_follow_the_system_or_the_reader(page: Page, site: Site) -> None:
    opened(page, site, site.growing)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    assert dark != light
    expect(page.locator(".stripe-lac")).to_have_count(1)
    screenshot(page, "dark")
    page.click("#theme")
    assert page.evaluate(paper) == light
    page.click("#theme")
    assert page.evaluate(paper) == dark
    page.reload()
    expect(page.locator("#theme")).to_have_text("Dark")
    page.emulate_media(color_scheme="light")
    assert page.evaluate(paper) == dark


# ---------------------------------------------------------------------- token, loss and return


def test_page_asks_for_the_token_when_it_is_needed(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(page.locator("#link-state")).to_have_text("live")
    show(page, site.small)
    page.click("#browse button")
    expect(page.locator("#token-dialog")).to_be_visible()
    page.fill("#token", site.token)
    page.press("#token", "Enter")
    expect(page.locator("#token-dialog")).to_be_hidden()
    page.click("#browse button")
    expect(page.locator("#entries li")).to_have_count(6)


def test_page_says_what_it_lost_and_recovers(page: Page, site: Site) -> None:
    port = free_port()

    def console() -> subprocess.Popen[str]:
        command = ("console", "--metadata-uri", site.cluster.uri, "--port", str(port))
        process = subprocess.Popen(
            [sys.executable, "-m", "quire", *command],
            cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert "console" in process.stdout.readline()
        return process

    process = console()
    try:
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#link-state")).to_have_text("live")
        expect(page.locator("tr.bookie")).to_have_count(4)
        assert page.locator(".faults").count() == 0  # not the parent of these bookies
        show(page, site.growing)
        process.kill()
        expect(page.locator("#link-state")).to_have_text("lost, trying again")
        expect(page.locator("#lost")).to_contain_text("Everything below is as of")
        assert page.locator("tr.bookie").count() == 4
        screenshot(page, "lost")
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        process = console()
        expect(page.locator("#link-state")).to_have_text("live")
        expect(page.locator("#lost")).to_be_hidden()
        expect(page.locator("#event-rows")).to_contain_text("the console is back")
        before = page.inner_text("#lac")
        expect(page.locator("#lac")).not_to_have_text(before)
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_address_may_name_a_ledger(page: Page, site: Site) -> None:
    page.goto(f"{site.url}#ledger={site.small}")
    expect(page.locator("#ledger-title")).to_have_text(f"Ledger {site.small}")
    expect(page.locator("#stripes rect.stripe")).to_have_count(12)


@pytest.mark.parametrize("fragment", ["#ledger=<script>", "#token", "#nonsense=1"])
def test_address_with_nonsense_shows_the_page(page: Page, site: Site, fragment: str) -> None:
    page.goto(site.url + fragment)
    expect(page.locator("#link-state")).to_have_text("live")
    expect(page.locator("#ledger-title")).to_have_text("Choose a ledger")
