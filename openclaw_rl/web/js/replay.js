// One attempt, step by step: each action, and the resulting screen, picture or diff.

import { get } from "./api.js";
import { fill, h, num, pill, plural } from "./dom.js";

const SHELL = new Set(["run", "bash"]);
const PLAY_MS = 1200;

export async function replay(main, name, session, keep) {
  const back = h("p", { class: "lead small" }, h("a", { href: "#/environments" }, "Environments"), ` / ${name} / `,
    h("a", { href: `#/sessions/${encodeURIComponent(session)}` }, "the stored session"));
  let found = null;
  try {
    found = await get(`/v1/environments/${encodeURIComponent(name)}/attempts/${encodeURIComponent(session)}`);
  } catch (error) {
    if (error.status !== 404) throw error;
    return fill(main, h("div", { class: "page-head" }, h("h1", {}, "Attempt"), back), h("div", { class: "card empty" }, h("strong", {}, "No replay was kept"), error.message));
  }
  const stage = h("div", { class: "stack", "aria-live": "polite" }), last = found.steps.length - 1;
  const range = h("input", { type: "range", min: "0", max: String(last), value: "0", "aria-label": "Step", oninput: () => show(Number(range.value)) });
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  const before = button("Previous", () => show(at - 1)), after = button("Next", () => show(at + 1));
  const play = button("Play", () => (timer ? stop() : start()));
  let at = 0, timer = null;
  fill(main, h("div", { class: "page-head" }, h("h1", {}, `Attempt at ${found.task.id}`), back),
    h("div", { class: "stack" },
      h("section", { class: "card", "aria-label": "Outcome" }, h("div", { class: "row" }, ended(found), pill(plural(last, "step")),
        found.task.template && pill(found.task.template), facts(found.outcome?.facts ?? {}).map((text) => pill(text))),
        found.reason && h("p", { class: "small muted" }, found.reason)),
      h("section", { class: "card stack", "aria-label": "Steps" }, h("div", { class: "row steps" }, before, after, play, range), stage)));
  show(0);
  addEventListener("keydown", onKey);
  keep(() => { stop(); removeEventListener("keydown", onKey); });

  function show(number) {
    at = Math.min(last, Math.max(0, number));
    range.value = String(at);
    before.disabled = at === 0;
    after.disabled = at === last;
    fill(stage, view(found.steps, at, last));
    const screen = stage.querySelector(".screen");
    if (screen) screen.scrollTop = screen.scrollHeight;
    if (at === last) stop();
  }
  function start() {
    if (at === last) show(0);
    timer = setInterval(() => show(at + 1), PLAY_MS);
    fill(play, "Pause");
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    fill(play, "Play");
  }
  function onKey(event) {
    if (event.target.closest("input, textarea, select, button, a")) return;
    if (event.key === "ArrowRight") show(at + 1);
    if (event.key === "ArrowLeft") show(at - 1);
  }
}

/** The parts of the score; the number of steps is shown elsewhere. */
function facts({ steps, passed, of, ...others }) {
  const checks = passed === undefined ? [] : [`${num(passed)} of ${plural(of, "check")} passed`];
  return [...checks, ...Object.entries(others).map(([key, value]) => `${key.replaceAll("_", " ")}: ${value}`)];
}

function ended({ outcome, failure }) {
  if (!outcome) return pill(`unknown: ${failure}`, "warn", true);
  return outcome.solved ? pill("solved", "good", true) : pill(`not solved, score ${num(outcome.score)}`, "bad", true);
}

function view(steps, at, last) {
  const { action, seen, picture } = steps[at];
  const shells = steps.slice(0, at + 1).some((step) => calls(step.action).some((call) => SHELL.has(call.name)));
  return [
    h("h2", {}, at === 0 ? "The task" : `Step ${at} of ${last}`),
    action && h("div", {}, h("div", { class: "who" }, "The agent"), h("div", { class: "bubble assistant mono" }, said(action))),
    picture && h("img", { class: "shot", src: `data:image/jpeg;base64,${picture}`, alt: `The page after step ${at}` }),
    shells ? terminal(steps.slice(0, at + 1)) : told(seen, at),
  ];
}

const calls = (action) => action?.tool_calls ?? [];

function said(action) {
  return [action.content, ...calls(action).map((call) => `${call.name}(${call.arguments})`)].filter(Boolean).join("\n") || "(nothing)";
}

/** The shell session so far, as a terminal would show it. */
function terminal(steps) {
  const lines = steps.slice(1).flatMap((step) => [
    ...calls(step.action).map((call) => h("span", { class: "typed" }, `$ ${command(call)}\n`)),
    ...step.seen.flatMap((message) => coloured(message.content)),
  ]);
  return [h("div", { class: "who" }, "Terminal"), h("pre", { class: "screen", tabindex: "0" }, lines)];
}

function command(call) {
  try { return JSON.parse(call.arguments).command ?? call.name; } catch { return call.name; }
}

function told(seen, at) {
  return seen.filter((message) => message.content).map((message) => [
    h("div", { class: "who" }, message.role === "system" ? "Instructions" : at === 0 ? "Given to the agent" : "The environment"),
    h("pre", { class: message.role === "tool" ? "screen" : "told", tabindex: "0" }, coloured(message.content))]);
}

/** Highlights added and removed lines of diffs, also of a page's diff. */
function coloured(text) {
  const lines = text.split("\n"), isDiff = lines.some((line) => /^(diff:|@@|[+-] )/.test(line));
  return lines.map((line) => {
    const kind = !isDiff ? null : /^\+(?!\+\+)/.test(line) ? "came" : /^-(?!--)/.test(line) ? "went" : null;
    return h("span", { class: kind }, `${line}\n`);
  });
}
