// Live status updates from the server. Pages listen while they are shown.

let source = null;
let latest = null;
const listeners = new Set();

export function connect(onLost) {
  source?.close();
  source = new EventSource("/v1/events");
  source.addEventListener("status", (event) => {
    latest = JSON.parse(event.data);
    onLost(false);
    for (const listener of [...listeners]) listener(latest);
  });
  source.addEventListener("error", () => onLost(true));
}

export function disconnect() {
  source?.close();
  source = null;
  latest = null;
  listeners.clear();
}

/** Calls the listener now (if a status is known) and on every change; returns a function that stops it. */
export function listen(listener) {
  listeners.add(listener);
  if (latest) listener(latest);
  return () => listeners.delete(listener);
}

export const current = () => latest;

/** Calls the listener when a value that `pick` takes from the status has changed. */
export function onChange(pick, listener) {
  let before = latest ? JSON.stringify(pick(latest)) : null;
  return listen((status) => {
    const now = JSON.stringify(pick(status));
    if (before !== null && now !== before) listener(status);
    before = now;
  });
}
