// The page: takes snapshots from the feed and gives each view its part.

import { BookieTable } from "./bookies.js";
import { Browser } from "./browser.js";
import { Chart, SPAN_MS } from "./charts.js";
import { $, el, facts, keyed, setAttribute, setText } from "./dom.js";
import { Feed, ask, keepToken, takeToken } from "./feed.js";
import { bytes, clock, grouped, millis, moment, plural, rate, seconds } from "./format.js";
import { LedgerDetail, LedgerList } from "./ledgers.js";

const EVENTS_MAX = 60;
const THEMES = ["auto", "light", "dark"];

let points = [];
let previous = null;
let table = null;
let lostSince = null;
let mostBytes = 0;
let toast = null;
let latest = null;

const throughput = new Chart($("chart-throughput"), "Entries a second, each copy counted", [
  { name: "adds", key: "adds", className: "series-a" },
  { name: "reads", key: "reads", className: "series-b" },
], rate);
const latency = new Chart($("chart-latency"), "Latency of adds, slowest bookie", [
  { name: "p50", key: "addP50", className: "series-a" },
  { name: "p99", key: "addP99", className: "series-c" },
], millis);

const detail = new LedgerDetail();
const browser = new Browser(onProblem);
const list = new LedgerList(choose, onProblem);
const feed = new Feed(onSnapshot, onState);

// ---------------------------------------------------------------- the feed

async function start() {
  let about;
  try {
    about = await ask("/console/about");
  } catch (error) {
    if (error.status === 401) askForToken();
    else {
      onState("lost", error.message);
      setTimeout(start, 1000);
    }
    return;
  }
  setText($("cluster"), about.cluster);
  document.title = `${about.cluster} · Quire`;
  points = about.history;
  table ??= new BookieTable(about.hasFaults, inflict, say);
  $("faults-hint").hidden = !about.hasFaults;
  setText($("faults-hint"), "These bookies are on this machine: do them harm, and watch what happens.");
  const match = /^#ledger=(\d{1,19})$/.exec(location.hash);
  if (match !== null) choose(match[1]);
  feed.start();
  list.load(null);
}

function onSnapshot(snapshot) {
  latest = snapshot;
  points.push({ timeMs: snapshot.timeMs, ...snapshot.totals });
  while (points.length && points[0].timeMs < snapshot.timeMs - SPAN_MS) points.shift();
  drawTiles(snapshot);
  throughput.draw(points, snapshot.timeMs);
  latency.draw(points, snapshot.timeMs);
  table.draw(snapshot.bookies);
  drawRecovery(snapshot.recovery);
  detail.draw(snapshot.ledger, snapshot.timeMs, snapshot.bookies);
  noteChanges(snapshot);
  previous = snapshot;
  drawLost(snapshot.lost);
}

function onState(state, why) {
  const pill = $("link-state");
  setAttribute(pill, "data-state", state);
  list.isLive = state === "live";
  if (state === "live") {
    setText(pill, "live");
    if (lostSince !== null) {
      note(`the console is back after ${seconds((Date.now() - lostSince) / 1000)}`, "good");
      lostSince = null;
      list.load(list.before);
    }
    document.body.classList.remove("stale");
  } else if (state === "token") {
    setText(pill, "token needed");
    askForToken();
  } else {
    if (lostSince === null) {
      lostSince = Date.now();
      note(`the console was lost: ${why}`, "bad");
    }
    setText(pill, "lost, trying again");
    document.body.classList.add("stale");
    const asOf = latest === null ? "Nothing was seen yet." : `Everything below is as of ${clock(latest.timeMs)}.`;
    drawLost([`The console is lost since ${clock(lostSince)}: ${why}. ${asOf} This page goes on by itself when it is back.`]);
  }
}

function drawLost(lines) {
  const box = $("lost");
  const text = lines.join("\n");
  if (box.textContent !== text) box.textContent = text;
  box.hidden = lines.length === 0;
}

// ---------------------------------------------------------------- views

function drawTiles(snapshot) {
  const { bookies, totals, recovery } = snapshot;
  const writable = bookies.filter((bookie) => bookie.state === "writable").length;
  setText($("tile-bookies"), `${writable} of ${bookies.length}`);
  setAttribute($("tile-bookies"), "data-alarm", writable < bookies.length ? "true" : null);
  setText($("tile-adds"), `${rate(totals.adds)}/s`);
  setText($("tile-reads"), `${rate(totals.reads)}/s`);
  setText($("tile-bytes"), `${bytes(totals.added_bytes)}/s`);
  setText($("tile-p99"), millis(totals.addP99));
  setText($("tile-marked"), recovery === null ? "–" : grouped(recovery.forecast.ledgers));
  setAttribute($("tile-marked"), "data-alarm", recovery?.forecast.ledgers ? "true" : null);
}

function drawRecovery(recovery) {
  if (recovery === null) return;
  const { forecast } = recovery;
  let line = "Every ledger has all of its copies.";
  if (forecast.ledgers > 0) {
    line = `${plural(forecast.ledgers, "ledger lacks", "ledgers lack")} copies: ${plural(forecast.fragments, "fragment", "fragments")}, ${forecast.bytesLeft ? `${bytes(forecast.bytesLeft)} to copy` : "as long as they get until they are closed"}`;
    const left = seconds(forecast.secondsLeft);
    if (forecast.parked) line += `; ${forecast.parked} stuck`;
    if (!recovery.enabled) line += "; re-replication is switched off";
    else if (recovery.auditor === null) line += "; nobody restores them: autorecovery is not running";
    else if (left !== null && forecast.ledgers > forecast.parked) line += `; done in about ${left}, by what is finished so far`;
  }
  setText($("recovery-line"), line);
  mostBytes = forecast.ledgers ? Math.max(mostBytes, forecast.bytesLeft) : 0;
  $("recovery-progress").hidden = forecast.ledgers === 0 || mostBytes === 0;
  $("recovery-progress").value = mostBytes ? 1 - forecast.bytesLeft / mostBytes : 0;
  facts($("recovery-facts"), [
    ["Auditor", recovery.auditor ?? "nobody"],
    ["Allowed", recovery.enabled ? "yes" : "no, it is switched off"],
    ["Waits after a loss", `${recovery.delaySeconds ?? 0} s`],
    ["Rate", forecast.ledgers === 0 ? "nothing to copy" : forecast.bytesPerSecond === null ? "not known yet" : `${bytes(forecast.bytesPerSecond)}/s`],
    ...Object.entries(recovery.lastChecks).map(([name, ms]) => [`Last check of ${name}`, ms === null ? "never" : moment(ms)]),
  ]);
  $("mark-table").hidden = recovery.marks.length === 0;
  keyed(
    $("mark-rows"), recovery.marks, (mark) => mark.ledgerId,
    (mark) => {
      const button = el("button", { type: "button", class: "link mono", text: mark.ledgerId, "aria-label": `Show ledger ${mark.ledgerId}` });
      button.addEventListener("click", () => choose(mark.ledgerId));
      return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, button),
        el("td", { class: "mono", role: "cell", "data-label": "Missing on" }), el("td", { role: "cell", "data-label": "State" }));
    },
    (row, mark) => {
      setText(row.children[1], mark.missing.join(", "));
      setText(row.children[2], mark.reason);
    },
  );
  const more = forecast.ledgers - recovery.marks.length;
  $("mark-more").hidden = more <= 0;
  setText($("mark-more"), `and ${grouped(more)} more`);
}

// ---------------------------------------------------------------- what happened

function noteChanges(now) {
  if (previous === null) return;
  const before = new Map(previous.bookies.map((bookie) => [bookie.id, bookie]));
  for (const bookie of now.bookies) {
    const old = before.get(bookie.id);
    if (old === undefined) note(`${bookie.id} joined: ${bookie.state}`, "good");
    else if (old.state !== bookie.state) note(`${bookie.id} is ${bookie.state}, was ${old.state}`, bookie.state === "writable" ? "good" : "bad");
  }
  const short = now.recovery?.forecast.ledgers ?? 0;
  const shortBefore = previous.recovery?.forecast.ledgers ?? short;
  if (short > shortBefore) note(`${plural(short, "ledger lacks", "ledgers lack")} copies`, "bad");
  else if (short === 0 && shortBefore > 0) note("every ledger has all of its copies again", "good");
  if (now.recovery?.auditor !== previous.recovery?.auditor && previous.recovery) note(`the auditor is ${now.recovery?.auditor ?? "nobody"}`, "");
  const [ledger, old] = [now.ledger, previous.ledger];
  if (ledger && old && ledger.id === old.id && !ledger.error && !old.error) {
    if (ledger.fragmentCount > old.fragmentCount) {
      const fragment = ledger.fragments.at(-1);
      note(`ledger ${ledger.id}: new ensemble from entry ${fragment.first} on: ${fragment.ensemble.join(", ")}`, "");
    }
    noteReplaced(ledger, old);
    if (ledger.state !== old.state) note(`ledger ${ledger.id} is ${ledger.state.toLowerCase().replace("_", " ")}`, "");
  }
}

// Copies that were restored elsewhere.
function noteReplaced(ledger, old) {
  const before = new Map(old.fragments.map((fragment) => [fragment.first, fragment.ensemble]));
  for (const { first, ensemble } of ledger.fragments) {
    (before.get(first) ?? []).forEach((name, slot) => {
      if (ensemble[slot] !== name) note(`ledger ${ledger.id}: entries from ${first} on are on ${ensemble[slot]} in the place of ${name}`, "good");
    });
  }
}

function note(text, kind) {
  $("events-empty").hidden = true;
  const rows = $("event-rows");
  rows.prepend(el("li", { class: kind }, el("time", { class: "mono", text: clock(Date.now()) }), el("span", { text })));
  while (rows.children.length > EVENTS_MAX) rows.lastElementChild.remove();
}

// ---------------------------------------------------------------- orders

function choose(id) {
  const wanted = String(id);
  if (!/^\d{1,19}$/.test(wanted)) return;
  history.replaceState(null, "", `#ledger=${wanted}`);
  detail.choose(wanted);
  browser.choose(wanted);
  list.choose(wanted);
  feed.follow(wanted);
  $("ledger").focus({ preventScroll: false });
}

async function inflict(bookie, fault, label) {
  try {
    const { state } = await ask(`/console/bookies/${encodeURIComponent(bookie)}/faults`, { fault });
    note(`${label.toLowerCase()}: ${bookie} is ${state}`, fault === "revive" || fault === "resume" ? "good" : "bad");
  } catch (error) {
    onProblem(`${label} of ${bookie}`, error);
  }
}

function onProblem(what, error) {
  if (error.status === 401) askForToken();
  else if (error.status !== 0) say(`${what}: ${error.message}`);
}

function say(text) {
  const box = $("said");
  box.hidden = false;
  setText(box, text);
  clearTimeout(toast);
  toast = setTimeout(() => { box.hidden = true; }, 8000);
}

// ---------------------------------------------------------------- token and colours

function askForToken() {
  const dialog = $("token-dialog");
  if (!dialog.open) dialog.showModal();
}

$("token-form").addEventListener("submit", () => {
  keepToken($("token").value.trim());
  $("token").value = "";
  start();
});
$("token-cancel").addEventListener("click", () => $("token-dialog").close());

function useTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("quire-theme", theme);
  const name = theme[0].toUpperCase() + theme.slice(1);
  setText($("theme"), name);
  setAttribute($("theme"), "aria-label", `Colours: ${theme}`);
}

$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  useTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});

useTheme(THEMES.includes(localStorage.getItem("quire-theme")) ? localStorage.getItem("quire-theme") : "auto");
takeToken();
start();
