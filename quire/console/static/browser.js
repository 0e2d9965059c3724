// The ledger browser: entries as text, JSON or hex. A payload is whatever somebody wrote: it is
// only ever shown as text.

import { $, el, setText } from "./dom.js";
import { ask } from "./feed.js";
import { bytes, grouped, plural } from "./format.js";

const LINE_MAX = 90;

export class Browser {
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.id = null;
    this.entries = [];
    const form = $("browse");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#read(form);
    });
    form.elements.format.addEventListener("change", () => this.#draw(form.elements.format.value));
  }

  choose(id) {
    this.id = id;
    this.entries = [];
    $("browse").reset();
    $("entries").replaceChildren();
    setText($("browse-said"), "");
  }

  async #read(form) {
    const id = this.id;
    const { first, count, password, format } = form.elements;
    setText($("browse-said"), "reading…");
    try {
      const found = await ask(`/console/ledgers/${id}/entries`, {
        first: first.value.trim(), count: Number(count.value), password: password.value,
      });
      if (this.id !== id) return;
      this.entries = found.entries;
      const said = found.entries.length === 0
        ? (found.lastConfirmed === "-1" ? "the ledger has no entries yet" : `no entry from there on: the last one is ${grouped(found.lastConfirmed)}`)
        : `${plural(found.entries.length, "entry", "entries")}, ${found.entries[0].id} to ${found.entries.at(-1).id} of ${grouped(found.lastConfirmed)}`;
      setText($("browse-said"), said);
      this.#draw(format.value);
    } catch (error) {
      if (this.id !== id) return;
      setText($("browse-said"), error.message);
      if (error.status === 401) this.onProblem("entries", error);
    }
  }

  #draw(format) {
    $("entries").replaceChildren(...this.entries.map((entry) => {
      const payload = Uint8Array.from(atob(entry.payload), (char) => char.charCodeAt(0));
      const shown = show(payload, format);
      const cut = entry.bytes > payload.length ? `, the first ${bytes(payload.length)} of them` : "";
      return el("li", {},
        el("span", { class: "mono entry-id", text: entry.id }),
        el("pre", { tabindex: shown.text.length > 400 ? "0" : null, text: shown.text }),
        el("span", { class: "hint", text: `${bytes(entry.bytes)}${cut}, ${shown.as}` }));
    }));
  }
}

export function show(payload, format) {
  const text = decoded(payload);
  if (format === "hex") return { as: "hex", text: hex(payload) };
  const value = text === null || format === "text" ? undefined : parsed(text);
  if (value !== undefined) return { as: "JSON", text: laidOut(value) };
  if (format === "json") return { as: "no JSON, so hex", text: hex(payload) };
  if (format === "text" && text === null) return { as: "no UTF-8, so � for what is not", text: new TextDecoder().decode(payload) };
  if (text === null || (format === "auto" && /[\x00-\x08\x0e-\x1f]/.test(text))) return { as: "hex", text: hex(payload) };
  return { as: "text", text };
}

function decoded(payload) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(payload);
  } catch {
    return null;
  }
}

function parsed(text) {
  if (!/^\s*[[{"]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// On one line if it fits there. Within strings new lines are escaped: all others are ours.
function laidOut(value) {
  const text = JSON.stringify(value, null, 2);
  const line = text.replace(/\n\s*/g, " ");
  return line.length <= LINE_MAX ? line : text;
}

function hex(payload) {
  const lines = [];
  for (let at = 0; at < payload.length; at += 16) {
    const row = [...payload.slice(at, at + 16)];
    const left = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const right = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left.padEnd(47)}  ${right}`);
  }
  return lines.join("\n") || "(empty)";
}
