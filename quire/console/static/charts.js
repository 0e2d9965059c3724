// Charts by hand: a few lines over the last minutes, drawn as SVG so that styles decide colours.

import { clock } from "./format.js";
import { el, setAttribute, setText, svg } from "./dom.js";

const WIDTH = 560;
const HEIGHT = 150;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
export const SPAN_MS = 300_000;
const GAP_MS = 3_500;

export class Chart {
  // series: [{ name, key, className }]
  constructor(figure, title, series, show) {
    this.series = series;
    this.show = show;
    this.title = title;
    this.legend = series.map((one) => el("b"));
    const legend = el("span", { class: "legend" });
    series.forEach((one, index) => {
      legend.append(el("span", { class: `key ${one.className}`, text: one.name }), this.legend[index]);
    });
    figure.append(el("figcaption", {}, el("span", { class: "chart-title", text: title }), legend));
    this.root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart" });
    this.grid = svg("g", { class: "chart-grid" });
    this.lines = series.map((one) => svg("path", { class: `line ${one.className}` }));
    this.root.append(this.grid, ...this.lines);
    this.cursor = svg("line", { class: "chart-cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.root.append(this.cursor);
    figure.append(this.root);
    this.points = [];
    this.hovered = null;
    this.root.addEventListener("pointermove", (event) => this.#hover(event));
    this.root.addEventListener("pointerleave", () => { this.hovered = null; this.#showLegend(); });
  }

  draw(points, now) {
    this.points = points;
    this.now = now;
    const largest = Math.max(0, ...points.flatMap((point) => this.series.map((one) => point[one.key] ?? 0)));
    this.top = ceiling(largest);
    this.#drawGrid();
    this.series.forEach((one, index) => setAttribute(this.lines[index], "d", this.#path(one.key)));
    this.#showLegend();
    const last = points.at(-1);
    const said = this.series.map((one) => `${one.name} ${this.show(last?.[one.key])}`).join(", ");
    setAttribute(this.root, "aria-label", `${this.title}, now: ${said}`);
  }

  #x(ms) {
    return LEFT + (1 - (this.now - ms) / SPAN_MS) * (WIDTH - LEFT - RIGHT);
  }

  #y(value) {
    return TOP + (1 - value / this.top) * (HEIGHT - TOP - BOTTOM);
  }

  #path(key) {
    let path = "";
    let before = null;
    for (const point of this.points) {
      const value = point[key];
      if (value === null || value === undefined) { before = null; continue; }
      const move = before === null || point.timeMs - before > GAP_MS;
      path += `${move ? "M" : "L"}${this.#x(point.timeMs).toFixed(1)} ${this.#y(value).toFixed(1)}`;
      before = point.timeMs;
    }
    return path;
  }

  #drawGrid() {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const y = this.#y(this.top * share);
      parts.push(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
      parts.push(svg("text", { x: LEFT - 6, y: y + 3.5, "text-anchor": "end", text: this.show(this.top * share) }));
    }
    for (const minutes of [5, 4, 3, 2, 1, 0]) {
      const x = this.#x(this.now - minutes * 60_000);
      const anchor = minutes === 0 ? "end" : minutes === 5 ? "start" : "middle";
      parts.push(svg("text", { x, y: HEIGHT - 5, "text-anchor": anchor, text: minutes === 0 ? "now" : `−${minutes} min` }));
    }
    this.grid.replaceChildren(...parts);
  }

  #hover(event) {
    const box = this.root.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const ms = this.now - (1 - (x - LEFT) / (WIDTH - LEFT - RIGHT)) * SPAN_MS;
    this.hovered = ms;
    this.#showLegend();
  }

  #showLegend() {
    let point = this.points.at(-1);
    if (this.hovered !== null && this.points.length) {
      point = this.points.reduce((best, one) =>
        Math.abs(one.timeMs - this.hovered) < Math.abs(best.timeMs - this.hovered) ? one : best);
      setAttribute(this.cursor, "x1", this.#x(point.timeMs));
      setAttribute(this.cursor, "x2", this.#x(point.timeMs));
    }
    setAttribute(this.cursor, "visibility", this.hovered === null ? "hidden" : "visible");
    this.series.forEach((one, index) => {
      const at = this.hovered === null || !point ? "" : ` at ${clock(point.timeMs)}`;
      setText(this.legend[index], this.show(point?.[one.key]) + (index === this.series.length - 1 ? at : ""));
    });
  }
}

// The next round number: 1, 2 or 5 and zeros.
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

export function sparkline() {
  return svg("svg", { viewBox: "0 0 120 20", class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("path", { class: "line series-a" }));
}

export function drawSparkline(root, values) {
  const largest = Math.max(1, ...values.map((value) => value ?? 0));
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null || value === undefined) { pen = "M"; return; }
    path += `${pen}${120 - (values.length - 1 - index)} ${(18.5 - (value / largest) * 17).toFixed(1)}`;
    pen = "L";
  });
  setAttribute(root.firstElementChild, "d", path);
}
