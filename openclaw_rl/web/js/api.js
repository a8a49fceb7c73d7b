// Client of the public JSON API; the browser sends the session cookie by itself.

const GUARD = { "x-requested-with": "openclaw-rl" };

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function failed(answer) {
  const body = await answer.json().catch(() => null);
  return new ApiError(answer.status, body?.error?.message ?? `The server answered ${answer.status}.`, body?.error?.code ?? null);
}

export async function get(path, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const answer = await fetch(query.size ? `${path}?${query}` : path, { headers: GUARD });
  if (!answer.ok) throw await failed(answer);
  return answer.json();
}

export async function post(path, body = null, headers = {}) {
  const answer = await send(path, body, headers);
  return answer.json();
}

/** Deletes something permanently; resolves to the receipt. */
export async function remove(path) {
  const answer = await fetch(path, { method: "DELETE", headers: GUARD });
  if (!answer.ok) throw await failed(answer);
  return answer.json();
}

/** Changes something; resolves to its new state. */
export async function patch(path, body) {
  const answer = await fetch(path, { method: "PATCH", headers: { ...GUARD, "content-type": "application/json" }, body: JSON.stringify(body) });
  if (!answer.ok) throw await failed(answer);
  return answer.json();
}

async function send(path, body, headers, signal) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { ...GUARD, ...headers, ...(body === null ? {} : { "content-type": "application/json" }) },
    body: body === null ? undefined : JSON.stringify(body),
    signal,
  });
  if (!answer.ok) throw await failed(answer);
  return answer;
}

/** Posts, then calls `onEvent` with every event of the response; resolves to its headers. */
export async function stream(path, body, onEvent, { headers = {}, onOpen = () => {}, signal } = {}) {
  const answer = await send(path, body, headers, signal);
  onOpen(answer.headers);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return answer.headers;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") onEvent(JSON.parse(line.slice(6)));
    }
  }
}

const path = (id) => encodeURIComponent(id);
export const turnPath = (id) => `/v1/turns/${path(id)}`;
export const wishPath = (id) => `/v1/wishes/${path(id)}`;
export const userPath = (name) => `/v1/users/${path(name)}`;
export const sessionPath = (id) => `/v1/sessions/${path(id)}`;
