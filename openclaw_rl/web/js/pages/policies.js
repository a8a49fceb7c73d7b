// Versions of the weights: each one's origin and checks, and which one serves.

import { get, post } from "../api.js";
import { confirm, fill, h, limitOf, num, pill, plural, toast, versionName, when } from "../dom.js";
import { current, onChange } from "../live.js";

export async function render(main, { me, keep }) {
  const tree = h("ol", { class: "tree" });
  const back = h("button", { type: "button", onclick: rollback }, "Roll back");
  const own = (current() ?? await get("/v1/status")).scope;
  const choice = h("select", { id: "whose", onchange: () => load().catch((error) => toast(error.message)) }, h("option", { value: own }, "Yours"));
  const chooser = h("div", { class: "field hidden" }, h("label", { for: choice.id }, "Whose versions"), choice);
  let policies = [];
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Versions"),
    me.owner && h("div", { class: "actions" }, back),
    h("p", { class: "lead" }, "Each training step makes a version. A version that fails its checks answers only if the owner chooses it.")),
  h("div", { class: "stack" }, chooser, h("div", { class: "card" }, tree)));

  async function load() {
    const open = new Set([...tree.querySelectorAll("details[open]")].map((one) => one.dataset.version));
    if (me.owner) offerScopes((await get("/v1/policies")).data);
    policies = (await get("/v1/policies", { scope: choice.value })).data;
    const lanes = lanesOf(policies);
    fill(tree, policies.slice(0, 200).map((policy) => row(policy, lanes.get(policy.version), me, open, load)));
    const serving = policies.find((policy) => policy.status === "serving");
    back.disabled = !serving || serving.version === 0;
  }
  /** The owner sees everybody's versions, one person's or group's at a time. */
  function offerScopes(all) {
    const known = new Set([...choice.options].map((option) => option.value));
    for (const scope of new Set(all.map((policy) => policy.scope))) if (!known.has(scope)) choice.append(h("option", { value: scope }, scopeName(scope)));
    chooser.classList.toggle("hidden", choice.options.length < 2);
  }
  async function rollback() {
    const serving = policies.find((policy) => policy.status === "serving");
    const sure = await confirm({ title: `Go back to ${versionName(serving.parent)}?`, action: "Roll back",
      text: `${cap(versionName(serving.version))} stops answering at once. Replies in progress are finished by the version that began them, and training continues from ${versionName(serving.parent)}.` });
    if (sure) await act(post(`/v1/policies/rollback?scope=${encodeURIComponent(choice.value)}`), (done) => `${cap(versionName(done.version))} is serving now.`, load);
  }
  await load();
  keep(onChange((status) => [status.policy_version, status.stage, status.last_step], () => load().catch(() => null)));
}

const SCOPES = { everyone: () => "The shared policy", user: (name) => `Of ${name}`, group: (name) => `Of the group ${name}`, env: (name) => `Of the environment ${name}` };
const scopeName = (scope) => SCOPES[scope.split(":")[0]](scope.split(":")[1]);

const cap = (text) => text[0].toUpperCase() + text.slice(1);

async function act(work, say, then) {
  try {
    toast(say(await work));
    await then();
  } catch (error) {
    toast(error.message);
  }
}

/** The serving version and its ancestors are in lane 0, branches in lane 1. */
function lanesOf(policies) {
  const known = new Map(policies.map((policy) => [policy.version, policy]));
  const main = new Set([0]);
  let at = policies.find((policy) => policy.status === "serving");
  while (at && at.version !== 0) { main.add(at.version); at = known.get(at.parent); }
  return new Map(policies.map((policy) => [policy.version, main.has(policy.version) ? 0 : 1]));
}

function row(policy, lane, me, open, load) {
  const { version, status, gate } = policy;
  const kinds = { serving: "accent", rejected: "bad", candidate: "warn", training: "warn", retired: "" };
  const names = { serving: "serving", rejected: "rejected", candidate: "being checked", training: "in training", retired: version === 0 ? "base model" : "retired" };
  return h("li", { class: status, "--lane": lane, "data-version": version },
    lane > 0 && h("span", { class: "branch" }),
    h("div", { class: "head" }, h("span", { class: "name" }, version === 0 ? "Base" : `Version ${version}`), pill(names[status] ?? status, kinds[status], true),
      gate?.checks?.length > 0 && pill(gate.passed ? `${gate.checks.length} checks passed` : "failed a check", gate.passed ? "good" : "bad"),
      version > 0 && h("span", { class: "small muted" }, `from ${versionName(policy.parent)} · ${plural(policy.num_samples, "sample")} · `, when(policy.created_at))),
    gate?.reason && h("p", { class: "small muted" }, gate.reason),
    (gate?.history ?? []).map((line) => h("p", { class: "small muted" }, line)),
    version > 0 && details(policy, open),
    me.owner && h("div", { class: "turn-actions" },
      !["serving", "training", "candidate"].includes(status) && h("button", { type: "button", onclick: () => promote(policy, load) }, "Serve this"),
      version > 0 && !["training", "candidate"].includes(status) && h("button", { type: "button", onclick: () => exportIt(version) }, "Export")));
}

function details(policy, open) {
  const body = h("div", {});
  const element = h("details", { "data-version": policy.version, ontoggle: () => element.open && !body.childElementCount && fillDetails(body, policy) }, h("summary", {}, "Checks, metrics and turns"), body);
  if (open.has(String(policy.version))) element.open = true;
  return element;
}

async function fillDetails(body, policy) {
  const checks = policy.gate?.checks ?? [], metrics = Object.entries(policy.metrics ?? {}).filter(([, value]) => !Array.isArray(value));
  const found = await get(`/v1/policies/${policy.version}`).catch(() => ({ turns: [] }));
  fill(body, h("div", { class: "grid two" },
    checks.length > 0 && h("div", { class: "scroll" }, table(["Check", "Value", "Limit", ""], checks.map((check) => [check.name, num(check.value, 3), limitOf(check, 3), pill(check.passed ? "ok" : "failed", check.passed ? "good" : "bad")]))),
    metrics.length > 0 && h("div", { class: "scroll" }, table(["Metric", "Value"], metrics.map(([name, value]) => [name.replaceAll("_", " "), typeof value === "number" ? num(value, Number.isInteger(value) ? 0 : 4) : value === null ? "–" : String(value)])))),
  found.turns.length > 0 && h("p", { class: "small muted" }, "Learned from: ", found.turns.slice(0, 40).map((turn, index) => [index ? ", " : "", h("button", { type: "button", class: "plain mono", onclick: () => openTurn(turn.turn_id) }, turn.turn_id.slice(-8))])));
}

function table(heads, rows) {
  const isNumber = (index) => index > 0 && index < 3 ? "num" : null;
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((head, index) => head ? h("th", { scope: "col", class: isNumber(index) }, head) : h("td", {})))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, index) => h("td", { class: isNumber(index) }, cell))))));
}

async function openTurn(id) {
  const turn = await get(`/v1/turns/${encodeURIComponent(id)}`).catch((error) => toast(error.message));
  if (turn) location.hash = `#/sessions/${encodeURIComponent(turn.session_id)}`;
}

async function promote({ version, scope, gate }, load) {
  const doubt = gate && gate.passed === false ? " It did not pass its checks." : "";
  const sure = await confirm({ title: `Serve ${versionName(version)}?`, text: `It answers all new requests, and training continues from it.${doubt}`, action: "Serve it" });
  if (sure) await act(post(`/v1/policies/${version}/promote?scope=${encodeURIComponent(scope)}`), () => `${cap(versionName(version))} is serving now.`, load);
}

async function exportIt(version) {
  const choice = h("select", { name: "format", id: "export-format" },
    h("option", { value: "peft" }, "LoRA adapter (PEFT)"), h("option", { value: "merged" }, "Whole model (safetensors)"), h("option", { value: "gguf" }, "Whole model (GGUF, for llama.cpp)"));
  const sure = await confirm({ title: `Export version ${version}`, text: "It is written to the exports folder inside the server's data folder.", action: "Export",
    fields: [h("div", { class: "field" }, h("label", { for: "export-format" }, "Format"), choice)] });
  if (!sure) return;
  toast("Exporting…");
  await act(post(`/v1/policies/${version}/export`, { format: sure.format }), (done) => `${num(done.bytes / 1e6, 1)} MB in ${done.path}`, async () => {});
}
