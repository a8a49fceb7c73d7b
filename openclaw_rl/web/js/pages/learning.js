// Is it learning, and can I trust it?

import { get } from "../api.js";
import { fill, h, limitOf, num, pill, plural } from "../dom.js";
import { onChange } from "../live.js";
import { legend, plot } from "../plot.js";
import { comparison } from "../compare.js";

const STEPS = [["loss", "Loss", 3], ["grad_norm", "Gradient norm", 2], ["mismatch", "Difference between trainer and server, nats", 3],
  ["num_samples", "Samples", 0], ["total_s", "Seconds per step", 1]];

export async function render(main, { keep }) {
  const rewards = h("section", { class: "card", "aria-labelledby": "reward-title" });
  const probes = h("section", { class: "card", "aria-labelledby": "probe-title" });
  const steps = h("section", { class: "card", "aria-labelledby": "steps-title" });
  const compare = h("section", { class: "card", "aria-labelledby": "compare-title" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Learning"),
    h("p", { class: "lead" }, "How people react to the replies, and what each new version changed.")),
  h("div", { class: "stack" }, rewards, compare, probes, h("details", {}, h("summary", {}, "Numbers of each training step"), steps)));
  const versions = comparison(compare);
  const load = async () => {
    const [learning, policies] = await Promise.all([get("/v1/learning"), get("/v1/policies")]);
    const made = policies.data.filter((policy) => policy.version > 0 && policy.gate?.checks?.length).reverse();
    showRewards(rewards, learning);
    showProbes(probes, made);
    showSteps(steps, policies.data.filter((policy) => policy.metrics?.total_s !== undefined).reverse());
    versions(policies.data);
  };
  await load();
  keep(onChange((status) => [status.policy_version, status.last_step?.version, status.last_step?.gate, status.funnel?.by_state.trained, status.funnel?.by_state.sampled],
    () => load().catch(() => null)));
}

function showRewards(card, { rewards, swaps }) {
  const points = rewards.points;
  const head = [h("h2", { id: "reward-title" }, "How people reacted"),
    h("p", { class: "note" }, "Reward is the mean verdict on judged turns, from −1 to 1. Satisfaction is the share of good ones among clear verdicts."
      + (rewards.turns_per_point > 1 ? ` Each point stands for ${plural(rewards.turns_per_point, "turn")}.` : ""))];
  if (!points.length) return fill(card, head, h("div", { class: "empty" }, h("strong", {}, "No verdicts yet"), "The first one appears when somebody reacts to a reply."));
  const x = points.map((point) => point.first + point.turns);
  const window = 7;
  const smooth = (pick) => points.map((_, index) => mean(points.slice(Math.max(0, index - window + 1), index + 1).map(pick).filter((v) => v !== null)));
  const reward = smooth((point) => point.reward), satisfied = smooth((point) => point.satisfaction);
  const marks = swaps.map((swap) => ({ x: placeOf(points, swap.at), label: `v${swap.version}` }));
  fill(card, head, legend([["Reward", "--series-1"], ["Satisfaction", "--series-2"], ["New version", "--series-3", true]]),
    plot({
      x, marks, yRange: [-1.05, 1.05], xLabel: "judged turns",
      series: [{ label: "Reward", values: reward, color: "--series-1" }, { label: "Satisfaction", values: satisfied, color: "--series-2" }],
      description: `Over ${rewards.turns} judged turns, reward went from ${num(reward[0], 2)} to ${num(reward.at(-1), 2)}; another version took over ${plural(swaps.length, "time")}.`,
    }),
    points.length > 1 && h("p", { class: "small muted" }, `Each point is averaged with up to ${window - 1} points before it.`));
}

const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;

/** The number of judged turns at a time. */
function placeOf(points, at) {
  const next = points.findIndex((point) => point.to_at >= at);
  if (next < 0) return points.at(-1).first + points.at(-1).turns;
  const { first, turns, from_at: from, to_at: to } = points[next];
  return first + (at <= from ? 0 : turns * (at - from) / Math.max(1e-9, to - from));
}

function showProbes(card, made) {
  const head = [h("h2", { id: "probe-title" }, "Checks of each version"),
    h("p", { class: "note" }, "Before a version may answer, it is asked questions that it was never trained on.")];
  if (!made.length) return fill(card, head, h("div", { class: "empty" }, h("strong", {}, "No version has been checked yet"), "The first check follows the first training step."));
  fill(card, head, newest(made.at(-1)), made.length > 1 && h("details", {}, h("summary", {}, "All versions"), overVersions(made)));
}

/** One dot in a plot says less than a word. */
function newest({ version, gate }) {
  const checks = gate.checks.filter(({ name }) => name !== "finite");
  return [h("h3", {}, `Version ${version}`), h("ul", { class: "lines checks" }, checks.map((check) => h("li", {}, h("span", {}, titled(check.name)),
    h("span", { class: "row" }, h("span", { class: "small num muted" }, outcome(check)),
      check.passed ? pill("passed", "good") : pill("failed", "warn")))))];
}

const outcome = (check) => `${num(check.value, 2)}, ${limitOf(check, 2)}`;

const titled = (name) => name[0].toUpperCase() + name.slice(1);

function overVersions(made) {
  const names = [...new Set(made.flatMap((policy) => policy.gate.checks.map((check) => check.name)))].filter((name) => name !== "finite");
  return h("div", { class: "grid smalls" }, names.map((name) => {
    const found = made.map((policy) => ({ version: policy.version, check: policy.gate.checks.find((check) => check.name === name) })).filter((one) => one.check);
    const last = found.at(-1);
    return small(titled(name), found.map((one) => one.version), found.map((one) => one.check.value), 2,
      found.map((one) => one.check.bound), outcome(last.check));
  }));
}

function showSteps(card, made) {
  const head = [h("h2", { id: "steps-title" }, "Training steps"), h("p", { class: "note" }, "Each step makes one version.")];
  if (!made.length) return fill(card, head, h("div", { class: "empty" }, h("strong", {}, "No training step yet"), "Samples are being collected."));
  const known = STEPS.filter(([name]) => made.some((policy) => typeof policy.metrics[name] === "number"));
  fill(card, head, h("div", { class: "grid smalls" }, known.map(([name, title, digits]) => {
    const values = made.map((policy) => policy.metrics[name] ?? null);
    return small(title, made.map((policy) => policy.version), values, digits, null, num(values.at(-1), digits));
  })));
}

function small(title, x, values, digits, bounds, now) {
  const series = [{ label: title, values, color: "--series-1" }];
  if (bounds) series.push({ label: "limit", values: bounds, color: "--series-3", dash: [4, 4], points: false });
  return h("figure", {}, h("div", { class: "spread" }, h("h3", {}, title), h("span", { class: "small num muted" }, now)),
    plot({ x, series, height: 130, digits: Math.min(digits, 2), description: `${title} by version; newest: ${now}` }));
}
