"""The fault buttons in a real Chromium, on a cluster that suffers and heals."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import Site, screenshot
from tests.console.requests import request
from tests.console.test_page import lac, opened, show


def button(page: Page, bookie: str, fault: str) -> Locator:
    return page.locator(f"[aria-label='Faults for {bookie}'] [data-fault={fault}]")


def state(page: Page, bookie: str) -> Locator:
    return page.locator("tr.bookie", has_text=bookie).locator(".state-text")


def in_common(site: Site) -> str:
    """A bookie that holds entries of the large ledger and takes those of the growing one."""
    ensembles = [
        set(request("GET", f"{site.url}console/ledgers/{ledger}").json["ensemble"])
        for ledger in (site.large, site.growing)
    ]
    return str(min(set.intersection(*ensembles)))


def test_killed_bookie_is_replaced_and_healed_before_our_eyes(page: Page, site: Site) -> None:
    opened(page, site, site.growing)
    expect(page.locator("#recovery-facts")).to_contain_text("autorecovery")
    expect(page.locator(".stripe-name")).to_have_count(3)
    bookie = in_common(site)
    before = lac(page)
    button(page, bookie, "kill").focus()
    page.keyboard.press("Enter")
    expect(state(page, bookie)).to_have_text(re.compile("ended"))
    # The writer goes on with another bookie.
    events = page.locator("#event-rows")
    expect(events).to_contain_text(f"ledger {site.growing}: new ensemble from entry")
    expect(page.locator("#stripes-hint")).to_contain_text(re.compile("^[2-9] fragments"))
    # The loss is noticed, and what was lost is copied.
    expect(state(page, bookie)).to_have_text("absent, ended")
    expect(page.locator("#tile-bookies")).to_have_text("3 of 4")
    expect(page.locator("#recovery-line")).to_contain_text("to copy")
    expect(page.locator("#mark-rows")).to_contain_text(bookie)
    expect(events).to_contain_text(re.compile("lacks? copies"))
    screenshot(page, "killed")
    expect(page.locator("#recovery-line")).to_have_text("Every ledger has all of its copies.")
    expect(events).to_contain_text("every ledger has all of its copies again")
    expect(page.locator("#tile-marked")).to_have_text("0")
    show(page, site.large)
    expect(page.locator(".stripe-name")).to_have_count(3)
    expect(page.locator(".stripe-name.absent")).to_have_count(0)
    show(page, site.growing)
    expect(page.locator("#lac")).to_have_text(re.compile(r"\d"))
    assert lac(page) > before
    button(page, bookie, "revive").click()
    expect(state(page, bookie)).to_have_text("writable")
    expect(page.locator("#tile-bookies")).to_have_text("4 of 4")
    screenshot(page, "healed")
    record = json.loads((site.cluster.folder / "cluster.json").read_text())
    pids = {row["id"]: row["pid"] for row in record["bookies"]}
    first = {row["id"]: row["pid"] for row in site.cluster.bookies}
    assert pids[bookie] != first[bookie]
    assert {name for name in pids if pids[name] == first[name]} == set(first) - {bookie}


def test_every_other_fault_is_inflicted_and_undone(page: Page, site: Site) -> None:
    opened(page, site)
    bookie = site.cluster.bookies[3]["id"]
    shown = state(page, bookie)
    expect(shown).to_have_text("writable")
    button(page, bookie, "pause").click()
    expect(shown).to_have_text(re.compile("paused"))
    expect(button(page, bookie, "slow")).to_have_attribute("aria-disabled", "true")
    button(page, bookie, "resume").click()
    expect(shown).to_have_text("writable")

    button(page, bookie, "slow").click()
    expect(shown).to_have_text(re.compile("slow"))
    button(page, bookie, "revive").click()
    expect(shown).to_have_text("writable")

    if can(page, bookie, "fill", unless="too empty"):
        expect(shown).to_have_text("read-only, disk full")
        screenshot(page, "disk-full")
        button(page, bookie, "revive").click()
        expect(shown).to_have_text("writable")

    if can(page, bookie, "partition", unless="iptables"):
        expect(shown).to_have_text("writable, cut off")
        button(page, bookie, "revive").click()
        expect(shown).to_have_text("writable")


def can(page: Page, bookie: str, fault: str, *, unless: str) -> bool:
    """Press a button; where the machine stands in the way, see that it says so."""
    wanted = button(page, bookie, fault)
    reason = wanted.get_attribute("data-reason")
    if not reason:
        wanted.click()
        return True
    assert unless in reason
    wanted.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text(reason)
    return False
