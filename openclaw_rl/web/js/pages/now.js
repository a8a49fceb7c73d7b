// Is it serving, what is it doing, and where do turns go?

import { post } from "../api.js";
import { fill, h, num, pill, plural, toast, when } from "../dom.js";
import { listen } from "../live.js";

const STAGES = { seen: "Given", paired: "Answered", judged: "Judged", usable: "Usable", trained: "Trained" };

export async function render(main, { keep }) {
  const health = h("span", { class: "row" });
  const tiles = h("div", { class: "grid tiles" });
  const funnel = h("ol", { class: "funnel" });
  const step = h("div", { class: "stack" });
  const swap = h("div", { class: "stack" });
  fill(main,
    h("div", { class: "page-head" }, h("h1", {}, "Now"), health),
    h("div", { class: "stack" }, tiles,
      h("section", { class: "card", "aria-labelledby": "funnel-title" },
        h("h2", { id: "funnel-title" }, "From reply to training"),
        h("p", { class: "note" }, "All replies, how many of them somebody answered, and why the others were not learned from."), funnel),
      h("div", { class: "grid two" },
        h("section", { class: "card", "aria-labelledby": "step-title" }, h("h2", { id: "step-title" }, "Next step"), step),
        h("section", { class: "card", "aria-labelledby": "swap-title" }, h("h2", { id: "swap-title" }, "Last change of version"), swap))));
  keep(listen((status) => {
    fill(health, status.status === "ok" ? pill("healthy", "good", true) : pill(status.status, "warn", true),
      status.busy && pill("learning", "accent", true));
    fill(tiles, ...allTiles(status));
    fill(funnel, status.funnel ? stages(status.funnel.stages) : h("li", {}, "The database cannot be read at the moment."));
    fill(step, ...nextStep(status));
    fill(swap, ...lastSwap(status.last_swap));
  }));
}

function tile(label, value, unit, sub) {
  return h("div", { class: "card tile" }, h("div", { class: "label" }, label),
    h("div", { class: "value num" }, value, unit && h("span", { class: "unit" }, unit)), h("div", { class: "sub" }, sub));
}

function allTiles({ policy_version: version, model, traffic, queues, funnel, ledger }) {
  return [
    tile("Current version", version === 0 ? "base" : `v${version}`, null, model),
    tile("Requests", num(traffic?.requests_per_s ?? null, 2), "/ s", "over the last minute"),
    tile("Tokens", num(traffic?.tokens_per_s ?? null, 1), "/ s", "over the last minute"),
    tile("Queue", num(queues.running), "running", `${num(queues.waiting)} waiting · ${num(queues.judge)} to judge`),
    tile("Replies stored", num(funnel?.turns ?? null), null,
      ledger.num_lost ? `${num(ledger.num_lost)} lost` : funnel ? `${plural(funnel.sessions, "session")} · 0 lost` : ""),
  ];
}

function stages(all) {
  const most = Math.max(1, all[0].turns);
  return all.map((stage) => h("li", {},
    h("span", { class: "name" }, STAGES[stage.name]),
    h("div", { class: "bar", "aria-hidden": "true" }, h("div", { class: "bar-fill", "--share": stage.turns / most })),
    h("span", { class: "count num" }, num(stage.turns)),
    Object.keys(stage.lost).length > 0 && h("div", { class: "lost" },
      Object.entries(stage.lost).sort((a, b) => b[1] - a[1]).map(([reason, count]) => h("span", {}, h("b", {}, `−${num(count)}`), " ", reason)))));
}

function nextStep({ queues, stage, last_step: last, learn }) {
  const { samples, samples_per_step: needed } = queues;
  const doing = { training: "A training step is running.", candidate: "A new version is being checked." }[stage];
  return [
    h("div", {}, h("div", { class: "spread" }, h("span", {}, doing ?? "Replies collected for the next version"),
      h("b", { class: "num" }, samples > needed ? `${num(samples)}, enough for more than one version` : `${num(samples)} of ${num(needed)}`)),
    h("div", { class: "bar", "aria-hidden": "true" }, h("div", { class: "bar-fill", "--share": Math.min(1, (samples ?? 0) / needed) }))),
    last && h("p", { class: "small muted" }, `The last step made version ${last.version}, `, when(last.created_at),
      `, from ${plural(last.num_samples, "reply", "replies")} in ${num(last.metrics.total_s, 1)} s: `,
      last.gate.passed === undefined ? "it is being checked." : last.gate.passed ? "it passed its checks." : `it was rejected (${last.gate.reason}).`),
    learn && !learn.running && h("p", {}, pill("the learning process has stopped; replies continue", "warn", true)),
    h("div", { class: "row" }, h("button", { type: "button", onclick: flush }, "Learn now"),
      h("span", { class: "small muted" }, "without waiting for more replies")),
  ];
}

async function flush() {
  await post("/v1/flush").then(() => toast("Everything that is waiting is judged and learned from now."), (error) => toast(error.message));
}

function lastSwap(swap) {
  if (!swap) return [h("p", { class: "muted" }, "No new version has taken over yet. When one does, this shows whether any reply was interrupted.")];
  const calm = swap.failed === 0 && !swap.delayed;
  return [
    h("p", {}, h("b", {}, swap.version === 0 ? "The base" : `Version ${swap.version}`), " took over ", when(swap.at), ` (${swap.why}).`),
    h("p", { class: "row" }, swap.replies === 0 ? pill("no replies at the time", "", true) : calm ? pill("no reply affected", "good", true) : pill("some replies affected", "warn", true)),
    swap.replies > 0 && h("p", { class: "small muted" }, `${plural(swap.replies, "reply", "replies")} began within ${num(swap.around_s)} s of the change: ${num(swap.failed)} cut off`,
      swap.delayed === null ? "." : `, ${num(swap.delayed)} waited longer than ${num(swap.delayed_above_s)} s for the first word.`),
  ];
}
