// The ledger browser: entries as text, JSON or hex. A payload is whatever somebody wrote: it is
// only ever shown as text.

import { $, el, setText } from "./dom.js";
import { ask } from "./feed.js";
import { bytes, grouped, plural } from "./format.js";

const LINE_MAX = 110;
// Deeper is not indented further: a payload of brackets alone would become megabytes of blanks.
const DEPTH_MAX = 12;

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
  if (text !== null && format !== "text" && isJson(text)) return { as: "JSON", text: laidOut(text) };
  if (format === "json") return { as: "no JSON, so hex", text: hex(payload) };
  if (format === "text" && text === null) return { as: "no UTF-8, so � for what is not", text: new TextDecoder().decode(payload) };
  if (text === null || (format === "auto" && /[\x00-\x08\x0e-\x1f]/.test(text))) return { as: "hex", text: hex(payload) };
  return { as: "text", text };
}

function decoded(payload) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload);
  } catch {
    return null;
  }
}

function isJson(text) {
  if (!/^\s*[[{"]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// Laid out for reading, on one line if it fits there. What is written is only moved, never made
// anew: numbers keep digits that a browser's numbers cannot hold, and keys that occur twice stay.
function laidOut(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  const lines = lay(tokens, "\n", "  ");
  const line = lay(tokens, " ", "");
  return line.length <= LINE_MAX ? line : lines;
}

function lay(tokens, end, step) {
  let depth = 0;
  let laid = "";
  tokens.forEach((token, index) => {
    const before = tokens[index - 1];
    const isEmpty = (before === "{" && token === "}") || (before === "[" && token === "]");
    if (token === "}" || token === "]") {
      depth -= 1;
      if (!isEmpty) laid += end + step.repeat(Math.min(depth, DEPTH_MAX));
    } else if (before === "{" || before === "[" || before === ",") {
      laid += end + step.repeat(Math.min(depth, DEPTH_MAX));
    }
    laid += token === ":" ? ": " : token;
    if (token === "{" || token === "[") depth += 1;
  });
  return laid;
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
