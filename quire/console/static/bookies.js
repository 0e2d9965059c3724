// The table of bookies, with fault buttons where there are any.

import { drawSparkline, sparkline } from "./charts.js";
import { $, el, keyed, setAttribute, setText } from "./dom.js";
import { bytes, millis, percent, rate } from "./format.js";

const SPARK_LOOKS = 120;
const FAULTS = [
  ["kill", "Kill", "SIGKILL: it is gone at once, as after a power cut"],
  ["pause", "Pause", "SIGSTOP: connections stay open, nothing is answered"],
  ["slow", "Slow", "stopped four fifths of the time: every answer waits"],
  ["fill", "Fill disk", "restarted with a threshold below what is in use: it finds its disk full"],
  ["partition", "Partition", "packets from and to clients are dropped; ZooKeeper still sees it"],
  ["resume", "Resume", "ends a pause or slowness"],
  ["revive", "Revive", "undoes whatever was done to it"],
];
const MARKS = { writable: "●", "read-only": "◐", absent: "○" };

export class BookieTable {
  // onFault(bookie, fault) resolves when done
  constructor(hasFaults, onFault, say) {
    this.hasFaults = hasFaults;
    this.onFault = onFault;
    this.say = say;
    this.histories = new Map();
  }

  draw(bookies) {
    $("bookies-empty").hidden = bookies.length > 0;
    $("bookie-table").hidden = bookies.length === 0;
    for (const id of [...this.histories.keys()]) {
      if (!bookies.some((bookie) => bookie.id === id)) this.histories.delete(id);
    }
    const rows = bookies.flatMap((bookie) =>
      this.hasFaults && bookie.process ? [[bookie, "row"], [bookie, "faults"]] : [[bookie, "row"]]);
    keyed(
      $("bookie-rows"), rows, ([bookie, kind]) => `${bookie.id} ${kind}`,
      ([bookie, kind]) => (kind === "row" ? this.#createRow(bookie) : this.#createFaults(bookie)),
      (row, [bookie, kind]) => (kind === "row" ? this.#updateRow(row, bookie) : this.#updateFaults(row, bookie)),
    );
  }

  #createRow(bookie) {
    const cell = (name, label, ...inner) => el("td", { class: name, role: "cell", "data-label": label }, ...inner);
    const meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span"));
    return el(
      "tr", { class: "bookie", role: "row" },
      el("th", { scope: "row", role: "rowheader", class: "mono", text: bookie.id }),
      cell("state", "State", el("span", { class: "mark", "aria-hidden": "true" }), el("span", { class: "state-text" }), el("span", { class: "problem" })),
      cell("rack mono", "Rack"),
      cell("disk", "Disk", meter, el("span", { class: "disk-text" })),
      cell("num adds", "Adds/s"), cell("num reads", "Reads/s"), cell("num bytes", "Written/s"),
      cell("num p50", "Add p50"), cell("num p99", "Add p99"), cell("num rp99", "Read p99"),
      cell("num lag", "Loop lag"), cell("wide", "Adds, last 2 min", sparkline()),
    );
  }

  #updateRow(row, bookie) {
    const part = (name) => row.querySelector(`.${name}`);
    const process = bookie.process;
    const isFaulty = process && process.state !== "running";
    setAttribute(row, "data-state", bookie.state);
    setText(part("mark"), MARKS[bookie.state] ?? "○");
    setText(part("state-text"), isFaulty ? `${bookie.state}, ${process.state}` : bookie.state);
    let problem = bookie.problem;
    if (bookie.state !== "absent" && !problem && !bookie.hasMetrics) problem = "no metrics: it announces no plain HTTP server";
    setText(part("problem"), problem ?? "");
    setText(part("rack"), bookie.rack ?? "");
    const used = bookie.disk.used;
    part("meter").firstElementChild.style.width = `${Math.round((used ?? 0) * 100)}%`;
    setAttribute(part("meter"), "data-level", used === null ? "none" : used >= 0.95 ? "full" : used >= 0.85 ? "warn" : "fine");
    const free = bookie.disk.free === null ? "" : ` (${bytes(bookie.disk.free)} free)`;
    setText(part("disk-text"), percent(used) + free);
    setText(part("adds"), rate(bookie.rates.adds));
    setText(part("reads"), rate(bookie.rates.reads));
    setText(part("bytes"), bytes(bookie.rates.added_bytes));
    setText(part("p50"), millis(bookie.add.p50));
    setText(part("p99"), millis(bookie.add.p99));
    setText(part("rp99"), millis(bookie.read.p99));
    setText(part("lag"), millis(bookie.lag));
    const history = this.histories.get(bookie.id) ?? [];
    history.push(bookie.rates.adds);
    if (history.length > SPARK_LOOKS) history.shift();
    this.histories.set(bookie.id, history);
    drawSparkline(part("spark"), history);
  }

  #createFaults(bookie) {
    const group = el("div", { class: "faults", role: "group", "aria-label": `Faults for ${bookie.id}` });
    for (const [fault, label, about] of FAULTS) {
      const button = el("button", { type: "button", "data-fault": fault, text: label, title: about });
      button.addEventListener("click", () => this.#press(bookie.id, button));
      group.append(button);
    }
    return el("tr", { class: "faults-row", role: "row" }, el("td", { role: "cell", colspan: "12" }, group));
  }

  #updateFaults(row, bookie) {
    for (const button of row.querySelectorAll("button")) {
      const reason = bookie.process.buttons[button.dataset.fault] ?? null;
      const about = FAULTS.find(([fault]) => fault === button.dataset.fault)[2];
      setAttribute(button, "title", reason ?? about);
      // Not `disabled`: a button that cannot be had now can still be reached, and says why.
      setAttribute(button, "aria-disabled", reason === null && !button.dataset.busy ? null : "true");
      button.dataset.reason = reason ?? "";
    }
  }

  async #press(id, button) {
    if (button.dataset.busy) return;
    if (button.dataset.reason) {
      this.say(`${button.textContent} of ${id}: ${button.dataset.reason}`);
      return;
    }
    button.dataset.busy = "1";
    setAttribute(button, "aria-disabled", "true");
    try {
      await this.onFault(id, button.dataset.fault, button.textContent);
    } finally {
      delete button.dataset.busy;
    }
  }
}
