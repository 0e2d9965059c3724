// The live feed and all other requests: reconnects by itself, says what it lost.

const SILENCE_MS = 12_000;
const PAUSES_MS = [500, 1000, 2000, 4000];
const HIDDEN_MS = 30_000;
const TOKEN_KEY = "quire-token";

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// ---------------------------------------------------------------- the token

// It comes behind the # of the address, which browsers send to nobody, and leaves it at once.
export function takeToken() {
  const match = /^#token=([^&]+)$/.exec(location.hash);
  if (match === null) return;
  keepToken(decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname);
}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token === null ? more : { ...more, Authorization: `Bearer ${token}` };
}

// ---------------------------------------------------------------- requests

export async function ask(path, body) {
  const options = body === undefined
    ? { headers: headers() }
    : { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { ...options, cache: "no-store" });
  } catch {
    throw new ApiError(0, "the console does not answer");
  }
  if (!response.ok) throw new ApiError(response.status, await reason(response));
  return response.json();
}

async function reason(response) {
  const text = (await response.text()).trim();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `the answer is ${response.status}`;
  }
}

// ---------------------------------------------------------------- the feed

export class Feed {
  #stream = null;
  #ledger = null;
  #failures = 0;
  #timer = null;
  #hidden = null;

  // onSnapshot(snapshot); onState(state, why) with live, connecting, lost, token
  constructor(onSnapshot, onState) {
    this.onSnapshot = onSnapshot;
    this.onState = onState;
    document.addEventListener("visibilitychange", () => this.#onVisibility());
  }

  start() {
    this.#connect();
  }

  follow(ledger) {
    if (this.#ledger === ledger) return;
    this.#ledger = ledger;
    this.#connect();
  }

  // Nobody looks: let the cluster be left alone, too.
  #onVisibility() {
    clearTimeout(this.#hidden);
    if (document.hidden) this.#hidden = setTimeout(() => this.#drop(), HIDDEN_MS);
    else if (this.#stream === null) this.#connect();
  }

  #drop() {
    clearTimeout(this.#timer);
    this.#stream?.abort();
    this.#stream = null;
  }

  async #connect() {
    this.#drop();
    const stream = new AbortController();
    this.#stream = stream;
    const query = this.#ledger === null ? "" : `?ledger=${this.#ledger}`;
    let watch = null;
    const alive = () => {
      clearTimeout(watch);
      watch = setTimeout(() => stream.abort(), SILENCE_MS);
    };
    let why = "it ended the connection";
    try {
      alive();
      const response = await fetch(`/console/events${query}`, { headers: headers(), signal: stream.signal, cache: "no-store" });
      if (!response.ok) throw new ApiError(response.status, await reason(response));
      await this.#read(response.body, stream, alive);
    } catch (error) {
      if (error instanceof ApiError) why = error.message;
      else if (error.name === "AbortError") why = "it said nothing for a while";
      else why = "it does not answer";
      if (error.status === 401) {
        clearTimeout(watch);
        if (this.#stream === stream) this.#stream = null;
        this.onState("token", why);
        return;
      }
    }
    clearTimeout(watch);
    if (this.#stream !== stream) return; // replaced by another one, on purpose
    this.onState("lost", why);
    const pause = PAUSES_MS[Math.min(this.#failures, PAUSES_MS.length - 1)];
    this.#failures += 1;
    this.#timer = setTimeout(() => this.#connect(), pause);
  }

  async #read(body, stream, alive) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this.#stream !== stream) return;
      alive();
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        this.#failures = 0;
        this.onState("live", null);
        this.onSnapshot(JSON.parse(part.slice(6)));
      }
    }
  }
}
