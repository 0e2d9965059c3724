// The list of ledgers, and one of them in detail: its last confirmed entry and its stripes.

import { $, el, facts, keyed, setAttribute, setText, svg } from "./dom.js";
import { ask } from "./feed.js";
import { NONE, bytes, entriesUpTo, grouped, moment, plural, rate } from "./format.js";

const PAGE = 20;
const REFRESH_MS = 3_000;
//: Listing walks over all ids: with more of them than this, only when asked to.
const REFRESH_TOTAL_MAX = 20_000;

export class LedgerList {
  constructor(onChoose, onProblem) {
    this.onChoose = onChoose;
    this.onProblem = onProblem;
    this.before = null;
    this.next = null;
    this.total = 0;
    this.chosen = null;
    this.busy = false;
    $("ledgers-newest").addEventListener("click", () => this.load(null));
    $("ledgers-older").addEventListener("click", () => this.next !== null && this.load(this.next));
    $("ledgers-refresh").addEventListener("click", () => this.load(this.before));
    $("ledger-find").addEventListener("submit", (event) => {
      event.preventDefault();
      this.onChoose($("ledger-number").value.trim());
    });
    setInterval(() => this.#refresh(), REFRESH_MS);
  }

  #refresh() {
    if (this.isLive && !document.hidden && this.before === null && this.total <= REFRESH_TOTAL_MAX) this.load(null);
  }

  async load(before) {
    if (this.busy) return;
    this.busy = true;
    try {
      const query = before === null ? "" : `&before=${before}`;
      const page = await ask(`/console/ledgers?count=${PAGE}${query}`);
      this.before = before;
      this.next = page.next;
      this.total = page.total;
      this.#draw(page);
    } catch (error) {
      this.onProblem("the list of ledgers", error);
    } finally {
      this.busy = false;
    }
  }

  choose(id) {
    this.chosen = id;
    for (const row of $("ledger-rows").children) setAttribute(row, "aria-current", row.dataset.key === id ? "true" : null);
  }

  #draw(page) {
    $("ledgers-empty").hidden = page.ledgers.length > 0;
    $("ledger-table").hidden = page.ledgers.length === 0;
    setText($("ledger-total"), `${grouped(page.total)} in all`);
    setAttribute($("ledgers-older"), "disabled", page.next === null ? "" : null);
    setAttribute($("ledgers-newest"), "disabled", this.before === null ? "" : null);
    keyed(
      $("ledger-rows"), page.ledgers, (ledger) => ledger.id,
      (ledger) => this.#createRow(ledger), (row, ledger) => this.#updateRow(row, ledger),
    );
    this.choose(this.chosen);
  }

  #createRow(ledger) {
    const button = el("button", { type: "button", class: "link mono", text: ledger.id, "aria-label": `Show ledger ${ledger.id}` });
    button.addEventListener("click", () => this.onChoose(ledger.id));
    const cell = (name, label) => el("td", { class: name, "data-label": label });
    return el("tr", {}, el("th", { scope: "row" }, button), cell("state", "State"), cell("shape mono", "E/Qw/Qa"),
      cell("num count", "Entries"), cell("num size", "Payload"), cell("num pieces", "Fragments"));
  }

  #updateRow(row, ledger) {
    const part = (name) => row.querySelector(`.${name}`);
    setAttribute(row, "data-state", ledger.state ?? "ERROR");
    setText(part("state"), ledger.error ?? words(ledger.state));
    if (ledger.error) return;
    setText(part("shape"), `${ledger.ensembleSize}/${ledger.writeQuorum}/${ledger.ackQuorum}`);
    setText(part("count"), grouped(entriesUpTo(ledger.lastEntryId)));
    setText(part("size"), bytes(ledger.bytes));
    setText(part("pieces"), ledger.fragmentCount);
  }
}

function words(state) {
  return { OPEN: "open", IN_RECOVERY: "in recovery", CLOSED: "closed" }[state] ?? state;
}

// ---------------------------------------------------------------- one ledger

export class LedgerDetail {
  constructor() {
    this.id = null;
    this.before = null;
  }

  choose(id) {
    this.id = id;
    this.before = null;
    setText($("ledger-title"), id === null ? "Choose a ledger" : `Ledger ${id}`);
    $("ledger-none").hidden = id !== null;
    $("ledger-body").hidden = true;
    setText($("lac"), NONE);
    setText($("lac-rate"), "");
  }

  draw(ledger, timeMs, bookies) {
    if (this.id === null || ledger === null || ledger.id !== this.id) return;
    if (ledger.error) {
      $("ledger-body").hidden = true;
      $("ledger-none").hidden = false;
      setText($("ledger-none"), ledger.error);
      return;
    }
    $("ledger-none").hidden = true;
    $("ledger-body").hidden = false;
    this.#drawLac(ledger, timeMs);
    facts($("ledger-facts"), [
      ["State", words(ledger.state)],
      ["Copies", `${ledger.writeQuorum} of each entry, ${ledger.ackQuorum} waited for, over ${plural(ledger.ensembleSize, "bookie", "bookies")}`],
      ["Payload", ledger.bytes === null ? "known when it is closed" : bytes(ledger.bytes)],
      ["Created", moment(ledger.createdMs)],
      ["Digest", `${ledger.digest ?? "not recorded"}${ledger.hasPassword ? ", with a password" : ""}`],
    ]);
    $("ledger-custom").hidden = ledger.custom.length === 0;
    const more = ledger.customCount - ledger.custom.length;
    facts($("custom-facts"), more > 0 ? [...ledger.custom, ["…", `${more} more`]] : ledger.custom);
    const states = new Map(bookies.map((bookie) => [bookie.id, bookie.state]));
    const isSampled = drawStripes($("stripes"), ledger, states);
    const shown = ledger.fragments.length;
    const hidden = ledger.fragmentCount - shown;
    setText($("stripes-hint"), `${plural(ledger.fragmentCount, "fragment", "fragments")}${hidden > 0 ? `, the last ${shown} are shown` : ""}. ` +
      `A bookie's row is filled where it holds an entry${isSampled ? "; there are too many to draw, so one in every few is" : ""}.`);
  }

  #drawLac(ledger, timeMs) {
    if (ledger.lacProblem) {
      setText($("lac-rate"), ledger.lacProblem);
      return;
    }
    setText($("lac"), ledger.lac === "-1" ? "no entry yet" : grouped(ledger.lac));
    if (ledger.state === "CLOSED") setText($("lac-rate"), "closed: it stays so");
    else if (this.before !== null && timeMs > this.before.timeMs) {
      const moved = Number(BigInt(ledger.lac) - BigInt(this.before.lac)) / ((timeMs - this.before.timeMs) / 1000);
      setText($("lac-rate"), moved > 0 ? `moving by ${rate(moved)} entries a second` : "not moving");
    }
    this.before = { lac: ledger.lac, timeMs };
  }
}

// ---------------------------------------------------------------- stripes

const ROW = 20;
const LABEL = 150;
const PLOT = 520;
const AXIS = 22;
const CELL_MIN = 5;
const FRAGMENT_MIN = 26;

export function drawStripes(container, ledger, states) {
  const lac = ledger.lac === null ? -1 : Number(ledger.lac);
  const pieces = ledger.fragments.map((fragment) => {
    const first = Number(fragment.first);
    const last = fragment.last === null ? Math.max(first - 1, lac) : Number(fragment.last);
    return { ...fragment, start: first, count: Math.max(0, last - first + 1), grows: fragment.last === null };
  });
  const names = [];
  for (const piece of pieces) for (const name of piece.ensemble) if (!names.includes(name)) names.push(name);
  names.sort();
  const widths = shareOut(pieces.map((piece) => piece.count));
  const height = names.length * ROW + AXIS;
  const width = LABEL + PLOT;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "stripe-plot", role: "img", "aria-label": describe(ledger, pieces, states) });
  names.forEach((name, row) => {
    const state = states.get(name) ?? "absent";
    root.append(
      svg("text", { x: LABEL - 10, y: row * ROW + 14, "text-anchor": "end", class: `stripe-name ${state}`, text: name.length > 22 ? `${name.slice(0, 21)}…` : name }),
      svg("rect", { x: LABEL, y: row * ROW + 2, width: PLOT, height: ROW - 4, class: "stripe-lane" }),
    );
  });
  let x = LABEL;
  let isSampled = false;
  pieces.forEach((piece, index) => {
    isSampled = drawPiece(root, piece, x, widths[index], names, ledger, states) || isSampled;
    // The end has a label of its own.
    const hasRoom = index === 0 || (widths[index] > 34 && x < width - 90);
    const label = hasRoom ? piece.first : "";
    root.append(
      svg("line", { x1: x, x2: x, y1: 0, y2: height - 8, class: "stripe-edge" }),
      svg("text", { x: x + 3, y: names.length * ROW + 14, class: "stripe-axis", text: label }),
    );
    x += widths[index];
  });
  if (pieces.at(-1)?.grows) root.append(svg("line", { x1: x, x2: x, y1: 0, y2: names.length * ROW, class: "stripe-lac" }));
  const end = pieces.at(-1);
  if (end) root.append(svg("text", { x: width - 2, y: names.length * ROW + 14, "text-anchor": "end", class: "stripe-axis", text: end.count ? String(end.start + end.count - 1) : "" }));
  container.replaceChildren(root);
  return isSampled;
}

function drawPiece(root, piece, x, width, names, ledger, states) {
  const size = ledger.ensembleSize;
  const copies = ledger.writeQuorum;
  const step = stepOf(piece.count, Math.floor(width / CELL_MIN), size);
  const cells = Math.ceil(piece.count / step);
  const cellWidth = cells ? width / cells : 0;
  piece.ensemble.forEach((name, slot) => {
    const y = names.indexOf(name) * ROW + 2;
    const state = states.get(name) ?? "absent";
    const className = `stripe ${state}`;
    if (copies === size || cells === 0) {
      const opacity = cells === 0 ? "0.15" : "1";
      root.append(svg("rect", { x: x + 1, y, width: Math.max(1, width - 2), height: ROW - 4, rx: 2, class: className, "fill-opacity": opacity }));
      return;
    }
    for (let cell = 0; cell < cells; cell += 1) {
      // An entry is on the write quorum's bookies from its own slot on, round the ensemble.
      const own = (piece.start + cell * step) % size;
      if ((slot - own + size) % size >= copies) continue;
      root.append(svg("rect", { x: x + cell * cellWidth + 0.6, y, width: Math.max(1, cellWidth - 1.2), height: ROW - 4, rx: 1.5, class: className }));
    }
  });
  return step > 1 && copies < size;
}

// Every how manyth entry is drawn: few enough to be seen, and such that neighbours differ as entries
// do, so that the stripes keep their pattern.
function stepOf(count, cellsMax, size) {
  let step = Math.max(1, Math.ceil(count / Math.max(1, cellsMax)));
  while (step > 1 && step % size !== 1 % size) step += 1;
  return step;
}

// In proportion to the entries, but every fragment wide enough to be seen.
function shareOut(counts) {
  const floor = Math.min(FRAGMENT_MIN, PLOT / Math.max(1, counts.length));
  const total = counts.reduce((sum, count) => sum + count, 0);
  const room = PLOT - floor * counts.length;
  return counts.map((count) => floor + (total ? (count / total) * room : room / counts.length));
}

function describe(ledger, pieces, states) {
  const parts = pieces.slice(-5).map((piece) => {
    const where = piece.ensemble.map((name) => (states.get(name) === "writable" ? name : `${name} (${states.get(name) ?? "absent"})`));
    return `from entry ${piece.first} on ${where.join(", ")}`;
  });
  return `${plural(ledger.fragmentCount, "fragment", "fragments")}: ${parts.join("; ")}`;
}
