// Evaluations in evals/ of the data folder: a plot if there are series, otherwise the plain values.
// Format: {title, note, x_label, x: [...], series: [{name, values: [...]}]}.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { legend, plot } from "../plot.js";

const COLORS = ["--series-1", "--series-2", "--series-3"];

export async function render(main) {
  const { data } = await get("/v1/results");
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Results"), h("p", { class: "lead" }, "Evaluations that were run on this server.")),
    h("div", { class: "stack" }, data.map(card)));
}

function card({ name, result }) {
  const curves = Array.isArray(result?.x) && Array.isArray(result?.series);
  return h("section", { class: "card" }, h("h2", {}, String(result?.title ?? name)), result?.note && h("p", { class: "note" }, String(result.note)),
    curves ? [
      legend(result.series.map((one, index) => [String(one.name), COLORS[index % 3]])),
      plot({ x: result.x, xLabel: result.x_label, description: String(result.title ?? name),
        series: result.series.map((one, index) => ({ label: one.name, values: one.values, color: COLORS[index % 3] })) }),
    ] : h("pre", { class: "scroll small", tabindex: "0" }, JSON.stringify(result, null, 2)));
}
