// One conversation, turn by turn, with each turn's verdict and training state.

import { get, post, remove, sessionPath, turnPath } from "../api.js";
import { confirm, fill, h, num, pill, plural, toast, versionName, when } from "../dom.js";
import { fate, feedback, scoreOf } from "../feedback.js";
import { onChange } from "../live.js";
import { tokenView } from "../tokens.js";

const PAGE = 20;

export async function render(main, { rest, keep }) {
  const id = rest[0];
  const turns = h("div", { class: "stack" });
  const more = h("button", { type: "button", class: "hidden", onclick: () => load().catch((error) => toast(error.message)) }, "Show later turns");
  const shown = new Map();
  const first = await get(sessionPath(id), { limit: PAGE, text: true });
  const whole = h("button", { type: "button", onclick: () => (whole.dataset.excluded ? include() : exclude()) });
  const title = first.turns[0]?.input?.findLast((message) => message.role === "user")?.content ?? id;
  fill(main, h("div", { class: "page-head" },
    h("h1", {}, title.length > 70 ? `${title.slice(0, 69)}…` : title),
    h("div", { class: "actions" }, whole, h("button", { type: "button", onclick: forget }, "Forget session")),
    h("p", { class: "lead small" }, h("a", { href: "#/sessions" }, "Sessions"), " / ", h("span", { class: "mono" }, id), ` · ${plural(first.num_turns, "turn")} · opened `, when(first.opened_at))),
  h("div", { class: "stack" }, turns, more));
  offer(first.excluded);
  add(first);

  /** Labels the button with the opposite of the current decision. */
  function offer(excluded) {
    whole.dataset.excluded = excluded ? "yes" : "";
    fill(whole, excluded ? "Include session" : "Exclude session");
  }
  function add(page) {
    for (const turn of page.turns) {
      const place = h("article", { class: "card turn", "data-turn": turn.id, "aria-label": "Turn" });
      shown.set(turn.id, { turn, place });
      draw(place, turn, () => refresh([turn.id]));
      turns.append(place);
    }
    more.classList.toggle("hidden", !page.has_more);
  }
  async function load() {
    add(await get(sessionPath(id), { limit: PAGE, after: [...shown.keys()].at(-1), text: true }));
  }
  async function refresh(ids) {
    for (const turnId of ids) {
      const { turn, place } = shown.get(turnId);
      const now = { ...turn, ...(await get(turnPath(turnId))) };
      if (facts(now) === facts(turn)) continue;
      shown.set(turnId, { turn: now, place });
      if (!place.querySelector(".fix, .tokens")) draw(place, now, () => refresh([turnId]));
    }
  }
  async function forget() {
    const sure = await confirm({ title: "Forget this session?", action: "Forget",
      text: "It is deleted for good, and what was learned from it is undone. An earlier version answers until the rest has been learned again." });
    if (!sure) return;
    const receipt = await remove(sessionPath(id)).catch((error) => toast(error.message));
    if (!receipt) return;
    toast(receipt.versions.length ? `Forgotten; ${plural(receipt.versions.length, "version")} undone.` : "Forgotten.");
    location.hash = "#/sessions";
  }
  async function exclude() {
    const sure = await confirm({ title: "Exclude this session?", action: "Exclude",
      text: "Nothing in it will be learned from, including later turns, unless you include it again. What was already learned stays; roll back to undo it." });
    if (!sure) return;
    const done = await post(`${sessionPath(id)}/exclude`).catch((error) => toast(error.message));
    if (!done) return;
    offer(true);
    toast(done.learned_already.length ? `Excluded. ${plural(done.learned_already.length, "turn")} had already been learned from.` : "Excluded from training.");
    await refresh([...shown.keys()]).catch(() => null);
  }
  async function include() {
    const done = await post(`${sessionPath(id)}/include`).catch((error) => toast(error.message));
    if (!done) return;
    offer(false);
    toast("Included again.");
    await refresh([...shown.keys()]).catch(() => null);
  }
  keep(onChange((status) => [status.funnel?.by_state, status.policy_version, status.funnel?.turns], async (status) => {
    await refresh([...shown.keys()].slice(-PAGE)).catch(() => null);
    if (more.classList.contains("hidden")) await load().catch(() => null);
  }));
}

const facts = (turn) => JSON.stringify([turn.state, turn.reason, turn.excluded, turn.verdict, turn.step]);

function draw(place, turn, refresh) {
  const { text, kind } = fate(turn);
  const said = h("div", { class: "bubble assistant" }, reply(turn.reply)), details = h("div", {});
  fill(place,
    (turn.input ?? []).map((message) => [h("div", { class: "who" }, { user: "Person", system: "Instructions", tool: "Tool" }[message.role] ?? message.role),
      h("div", { class: `bubble ${message.role}`, ...(message.role === "user" ? {} : { tabindex: "0" }) }, message.content)]),
    h("div", { class: "who" }, `Reply by ${versionName(turn.policy_version)}`),
    said, details,
    h("div", { class: "facts" }, pill(text, kind, true), turn.kind !== "main" && pill(turn.kind === "side" ? "side request" : "not continued yet"),
      pill(plural(turn.completion_tokens, "token")), h("span", { class: "pill" }, when(turn.created_at)),
      turn.finish_reason !== "stop" && pill(turn.finish_reason, "warn")),
    turn.reason && h("p", { class: "small muted", "data-reason": "" }, turn.reason),
    turn.verdict && verdict(turn.verdict),
    h("div", { class: "turn-actions" }, feedback(turn.id, refresh),
      h("button", { type: "button", class: "plain", onclick: () => showTokens(said, details, turn.id) }, "What training changed"),
      decision(turn, refresh)));
}

function reply(message) {
  if (!message) return "";
  const calls = (message.tool_calls ?? []).map((call) => `→ ${call.name ?? call.function?.name}(${call.arguments ?? call.function?.arguments ?? ""})`);
  return [message.content, ...calls].filter(Boolean).join("\n") || "(empty)";
}

function verdict(found) {
  const { text, kind } = scoreOf(found);
  const votes = found.votes.length ? `votes ${found.votes.map((vote) => vote === null ? "none" : vote > 0 ? "+1" : String(vote).replace("-", "−")).join(", ")}` : null;
  const source = found.source === "feedback" ? "explicit feedback" : found.source.startsWith("rule:") ? `rule “${found.source.slice(5)}”` : found.source === "exclude" ? "excluded by a person" : "the judge";
  return h("div", { class: "verdict", "data-verdict": "" },
    h("div", { class: "row" }, h("b", {}, "Verdict"), pill(text, kind), h("span", { class: "muted small" },
      [source, votes, `confidence ${num(found.confidence, 2)}`].filter(Boolean).join(" · "))),
    found.reason && h("div", { class: "small muted" }, found.reason),
    found.hints.map((hint) => h("div", { class: "hint" }, hint)));
}

/** Toggles between the plain reply and its tokens. */
async function showTokens(said, place, id) {
  if (place.childElementCount) {
    said.classList.remove("hidden");
    return fill(place);
  }
  try {
    const turn = await get(`${turnPath(id)}/tokens`);
    said.classList.add("hidden");
    fill(place, turn.hint && h("p", { class: "small" }, h("b", {}, "Hint used in training: "), turn.hint), tokenView(turn));
  } catch (error) {
    toast(error.message);
  }
}

/** The button to exclude or include a turn; none if it would change nothing. */
function decision(turn, refresh) {
  if (turn.state === "trained") return null;
  if (turn.excluded) return h("button", { type: "button", class: "plain", onclick: () => includeTurn(turn.id, refresh) }, "Include turn");
  return turn.state !== "excluded" && h("button", { type: "button", class: "plain", onclick: () => excludeTurn(turn.id, refresh) }, "Exclude turn");
}

async function includeTurn(id, refresh) {
  await post(`${turnPath(id)}/include`).then(() => toast("Included again."), (error) => toast(error.message));
  await refresh();
}

async function excludeTurn(id, refresh) {
  const sure = await confirm({ title: "Exclude this turn?", text: "It will not be learned from, whatever is said about it later, unless you include it again.", action: "Exclude" });
  if (!sure) return;
  await post(`${turnPath(id)}/exclude`).then(() => toast("Excluded from training."), (error) => toast(error.message));
  await refresh();
}
