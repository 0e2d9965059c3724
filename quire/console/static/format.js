// Numbers for people.

export const NONE = "–";

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return short(value);
}

export function short(value) {
  if (value >= 1e6) return `${fixed(value / 1e6)} M`;
  if (value >= 1e4) return `${fixed(value / 1e3)} k`;
  return value >= 100 ? String(Math.round(value)) : fixed(value);
}

function fixed(value) {
  if (value === 0) return "0";
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(value < 1 ? 2 : 1);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(value) : fixed(value)} ${units[unit]}`;
}

export function millis(value) {
  if (value === null || value === undefined) return NONE;
  return value >= 1000 ? `${fixed(value / 1000)} s` : `${fixed(value)} ms`;
}

export function percent(value) {
  return value === null || value === undefined ? NONE : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return null;
  if (value < 90) return `${Math.max(1, Math.round(value))} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

// Numbers of entries have up to 63 bits and come as text.
export function grouped(text) {
  return text === null || text === undefined ? NONE : String(text).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export function entriesUpTo(last) {
  return last === null || last === undefined ? null : (BigInt(last) + 1n).toString();
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

export function moment(ms) {
  return ms ? new Date(ms).toLocaleString([], { hour12: false }) : NONE;
}

export function plural(count, one, many) {
  return `${count} ${count === 1 ? one : many}`;
}
