// Environments: success rates, causes of failures, and single attempts.

import { get } from "../api.js";
import { fill, h, num, pill, plural, toast, versionName, when } from "../dom.js";
import { onChange } from "../live.js";
import { legend, plot } from "../plot.js";
import { replay } from "../replay.js";

const FAULTS = { model: "The model", environment: "The environment", judge: "The judge", server: "The server", "time-out": "Time ran out" };
const PAGE = 20;

export async function render(main, { rest, keep }) {
  const [name, session] = rest;
  if (session) return replay(main, name, session, keep);
  const cards = h("div", { class: "stack" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Environments"),
    h("p", { class: "lead" }, "Tasks that agents try, how often they solve them, and what happened in each attempt.")), cards);
  const shown = new Map();
  const load = async () => {
    const { data } = await get("/v1/environments");
    for (const found of data) {
      const place = shown.get(found.scope) ?? newCard(found.scope);
      if (!shown.has(found.scope)) cards.append(place.card);
      shown.set(found.scope, place);
      facts(place.facts, found);
      await place.attempts.newest();
    }
    if (!data.length) fill(cards, h("div", { class: "card empty" }, h("strong", {}, "No attempts yet"), "openclaw-rl train --env toolcall --quick"));
  };
  await load();
  keep(onChange((status) => [status.funnel?.turns, status.policy_version], () => load().catch(() => null)));
}

function newCard(scope) {
  const name = scope.replace(/^env:/, ""), place = h("div", { class: "stack" }), attempts = attemptList(name);
  const card = h("section", { class: "card stack", "data-environment": name, "aria-label": name },
    h("h2", {}, name), place, h("h3", {}, "Newest attempts"), attempts.element);
  return { card, facts: place, attempts };
}

function facts(place, found) {
  const share = found.of ? found.solved / found.of : null;
  fill(place,
    h("div", { class: "grid tiles" },
      tile("Solved", percent(share), `${num(found.solved)} of ${plural(found.of, "attempt")}, 95 % interval ${percent(found.low)} to ${percent(found.high)}`),
      tile("Agents busy", percent(found.utilisation), found.utilisation === null ? "known once a run has ended" : "of the time, over all runs"),
      tile("Steps without a verdict", num(found.unjudged_steps), "the judge failed on these; they have no process reward")),
    h("div", { class: "grid two" }, curve(found), faults(found)));
}

const percent = (value) => value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`;

const tile = (label, value, sub) => h("div", { class: "tile sunken" }, h("div", { class: "label" }, label),
  h("div", { class: "value num" }, value), h("div", { class: "sub" }, sub));

/** Results on held-out tasks if there are any, otherwise attempts by version; with confidence intervals. */
function curve(found) {
  const held = found.evaluations.length > 0, points = held ? found.evaluations : found.versions;
  if (!points.length) return h("p", { class: "muted" }, "No attempt has finished yet.");
  const share = (one) => one.of ? one.solved / one.of : null, last = points.at(-1);
  const title = held ? "Held-out tasks solved" : "Attempts solved, by version";
  return h("figure", {}, h("h3", {}, title), legend([["Share", "--series-1"], ["95 % interval", "--series-3"]]),
    plot({
      x: points.map((one) => held ? one.groups : one.version), xLabel: held ? "groups of attempts" : "version", height: 200, yRange: [0, 1],
      series: [{ label: title, values: points.map(share), color: "--series-1" },
        ...["low", "high"].map((end) => ({ label: end, values: points.map((one) => one[end]), color: "--series-3", dash: [4, 4], points: false }))],
      description: `${title}: from ${percent(share(points[0]))} to ${percent(share(last))}, ${num(last.solved)} of ${num(last.of)} by ${versionName(last.version)}.`,
    }));
}

function faults({ failures, attempts }) {
  const rows = Object.entries(failures).sort((a, b) => b[1] - a[1]);
  return h("div", {}, h("h3", {}, "Why attempts failed"), rows.length
    ? h("ul", { class: "faults" }, rows.map(([kind, count]) => h("li", {}, h("span", {}, FAULTS[kind] ?? kind),
      h("div", { class: "bar", "aria-hidden": "true" }, h("div", { class: "bar-fill", "--share": count / attempts })), h("span", { class: "num" }, num(count)))))
    : h("p", { class: "muted" }, "Nothing has failed."),
  h("p", { class: "small muted" }, "Only the model's own failures count against it."));
}

function attemptList(name) {
  const list = h("ul", { class: "list" });
  const more = h("button", { type: "button", class: "hidden", onclick: () => older().catch((error) => toast(error.message)) }, "Show older");
  let last = null;
  const page = (before) => get(`/v1/environments/${encodeURIComponent(name)}/attempts`, { limit: PAGE, before });
  const keepLast = (data) => { last = data.at(-1)?.at ?? last; more.classList.toggle("hidden", data.length < PAGE); };
  async function newest() {
    if (list.childElementCount > PAGE) return;
    const { data } = await page();
    fill(list, data.map((one) => item(name, one)));
    keepLast(data);
  }
  async function older() {
    const { data } = await page(last);
    list.append(...data.map((one) => item(name, one)));
    keepLast(data);
  }
  return { element: h("div", { class: "stack" }, list, more), newest };
}

function item(name, attempt) {
  const [text, kind] = !attempt.failure ? ["solved", "good"] : attempt.failure === "model" ? ["not solved", "bad"] : [FAULTS[attempt.failure] ?? attempt.failure, "warn"];
  return h("li", {}, h("a", { class: "item", href: `#/environments/${encodeURIComponent(name)}/${encodeURIComponent(attempt.session_id)}` },
    h("span", { class: "row" }, h("span", { class: "title" }, attempt.group.replace(/\/[0-9a-f]{12}$/, "")), pill(text, kind)),
    h("span", { class: "small muted" }, when(attempt.at), ` · ${versionName(attempt.policy_version)}`,
      attempt.reward !== null && ` · reward ${num(attempt.reward)}`)));
}
