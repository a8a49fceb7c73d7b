// A chat with the served model, with feedback buttons.

import { get, sessionPath, stream, turnPath } from "../api.js";
import { markdown } from "../markdown.js";
import { fill, h, pill, plural, toast, versionName, when } from "../dom.js";
import { fate, feedback } from "../feedback.js";
import { listen, onChange } from "../live.js";

const EXAMPLES = ["What is photosynthesis?", "How do I boil an egg?", "Why is the sky blue?"];
let history = [];
let sessionId = newSession();
const turns = new Map();
let offTheRecord = false;
let instructions = "";
let running = null;
let serving = 0;
const COMPARED = "To compare them, now and then a conversation stays with the previous version for some minutes.";

function newSession() {
  return `try-${[...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export async function render(main, { keep }) {
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation" });
  const version = h("span", {});
  const text = h("textarea", { id: "say", rows: "1", placeholder: "Write a message…", onkeydown: (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit(); }
  } });
  const send = h("button", { class: "primary", type: "submit" }, "Send");
  const stop = h("button", { type: "button", class: "hidden", onclick: () => running?.abort() }, "Stop");
  const system = h("textarea", { id: "system", rows: "2", value: instructions, placeholder: "You are a patient teacher.", oninput: () => { instructions = system.value; } });
  const earlier = h("ul", { class: "lines" });
  const past = h("details", { ontoggle: () => past.open && list().catch((error) => toast(error.message)) }, h("summary", {}, "Earlier conversations"), earlier);
  const form = h("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); ask(); } },
    h("div", { class: "field" }, h("label", { for: "say", class: "visually-hidden" }, "Your message"), text), send, stop);
  const hint = h("div", { class: "empty" }, h("strong", {}, "Ask something. If you do not like the answer, say how you want it."),
    h("p", { class: "row" }, EXAMPLES.map((words) => h("button", { type: "button", onclick: () => { text.value = words; form.requestSubmit(); } }, words))));
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Try it"), version,
    h("div", { class: "actions" }, h("label", { class: "row", title: "Nothing is kept and nothing is learned from it." }, h("input", { type: "checkbox", id: "off-the-record", checked: offTheRecord || null,
      onchange: (event) => { offTheRecord = event.target.checked; startAnew(); } }), " Off the record"), h("button", { type: "button", onclick: startAnew }, "New conversation")),
    h("p", { class: "lead" }, "Talk to the model. It learns from what you say next, from your thumbs and from your corrections.")),
  h("div", { class: "row chat-more" }, past, h("details", { open: instructions ? true : null }, h("summary", {}, "System prompt"), h("label", { for: "system", class: "visually-hidden" }, "System prompt"), system)),
  h("div", { class: "chat" }, log, form));
  fill(log, history.length ? history.map((entry) => entry.element) : hint);
  keep(listen((status) => {
    serving = status.policy_version;
    fill(version, pill(serving === 0 ? "base" : `version ${serving}`, "accent", true));
  }));
  keep(onChange((status) => [status.funnel?.by_state, status.funnel?.judge_queue, status.policy_version], refresh));
  text.focus();

  function startAnew() {
    history = [];
    turns.clear();
    sessionId = newSession();
    fill(log, hint);
    text.focus();
  }

  async function list() {
    const mine = (await newestChats()).slice(0, 12);
    fill(earlier, mine.length ? mine.map((one) => h("li", {}, h("button", { type: "button", class: "link", onclick: () => resume(one.id).catch((error) => toast(error.message)) }, one.title || one.id),
      h("span", { class: "small muted" }, plural(one.num_turns, "turn"), " · ", when(one.opened_at)))) : h("li", {}, "None yet."));
  }

  /** Continues an earlier conversation. */
  async function resume(id) {
    const found = await get(sessionPath(id), { text: true });
    startAnew();
    sessionId = id;
    past.open = false;
    instructions = found.turns[0]?.input?.find((one) => one.role === "system")?.content ?? "";
    system.value = instructions;
    for (const turn of found.turns) {
      for (const message of (turn.input ?? []).filter((one) => one.role === "user")) add({ role: "user", content: message.content, element: h("div", { class: "msg user" }, message.content) });
      const state = h("span", {}), content = turn.reply?.content ?? "";
      add({ role: "assistant", content, element: h("div", { class: "msg assistant" }, h("div", { class: "said" }, markdown(content)),
        h("div", { class: "under" }, pill(versionName(turn.policy_version)), state), feedback(turn.id, refresh)) });
      turns.set(turn.id, state);
    }
    await refresh();
  }

  async function ask() {
    const words = text.value.trim();
    if (!words || send.disabled) return;
    text.value = "";
    send.disabled = true;
    add({ role: "user", content: words, element: h("div", { class: "msg user" }, words) });
    const said = h("div", { class: "said" }), under = h("div", { class: "under" });
    const entry = { role: "assistant", content: "", element: h("div", { class: "msg assistant" }, said, under) };
    const messages = [...(instructions.trim() ? [{ role: "system", content: instructions.trim() }] : []), ...history.map(({ role, content }) => ({ role, content }))];
    running = new AbortController();
    stop.classList.remove("hidden");
    add(entry);
    let id = null, answered = null;
    try {
      await stream("/v1/chat/completions", { model: "default", messages, stream: true, max_tokens: 300, temperature: 0.7 }, (event) => {
        id ??= event.id;
        const piece = event.choices?.[0]?.delta?.content ?? "";
        entry.content += piece;
        said.append(piece);
        if (nearEnd()) entry.element.scrollIntoView({ block: "end" });
        if (event.error) throw new Error(event.error.message);
      }, { signal: running.signal, headers: { "x-session-id": sessionId, ...(offTheRecord ? { "x-off-the-record": "1" } : {}) }, onOpen: (headers) => { answered = headers.get("x-policy-version"); } });
      fill(said, markdown(entry.content));
      const state = h("span", {});
      fill(under, pill(answered === "0" ? "base" : versionName(Number(answered))), state, isCompared(Number(answered)) && h("p", { class: "small muted" }, COMPARED));
      if (offTheRecord) {
        fill(state, pill("off the record"));
      } else {
        entry.element.append(feedback(id, refresh));
        turns.set(id, state);
      }
      entry.element.scrollIntoView({ block: "end" });
    } catch (error) {
      fill(under, error.name === "AbortError" ? pill("stopped") : pill(error.message, "bad"));
      if (!entry.content) forgetUnanswered(words);
    }
    stop.classList.add("hidden");
    send.disabled = false;
    text.focus();
  }

  /** Whether an earlier version than the serving one, not another server, answered a plain question in a new conversation. */
  const isCompared = (answered) => answered >= 0 && answered < serving && history.length === 2 && !instructions.trim();

  /** Removes the unanswered message, since two in a row would be sent next time; its text goes back to the input. */
  function forgetUnanswered(words) {
    history.splice(-2);
    text.value ||= words;
  }

  function add(entry) {
    history.push(entry);
    hint.remove();
    log.append(entry.element);
    entry.element.scrollIntoView({ block: "end" });
  }
}

/** Searches a few pages, since other clients may have had many conversations since. */
async function newestChats() {
  const found = [];
  let after = null;
  for (let page = 0; page < 5 && found.length < 12; page += 1) {
    const { data, has_more: more } = await get("/v1/sessions", { limit: 100, ...(after ? { after } : {}) });
    found.push(...data.filter((one) => one.id.startsWith("try-")));
    if (!more) break;
    after = data.at(-1).id;
  }
  return found;
}

/** Whether to scroll along: not if the user has scrolled up to read. */
const nearEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 160;

/** Updates the state of the replies; only the newest ones still change. */
async function refresh() {
  for (const [id, place] of [...turns].slice(-12)) {
    try {
      const turn = await get(turnPath(id));
      const { text, kind } = fate(turn);
      fill(place, pill(text, kind, true));
      place.title = turn.reason ?? "";
    } catch {
      fill(place);
    }
  }
}
