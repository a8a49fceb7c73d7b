// Sends one prompt to two versions and streams both replies side by side.

import { stream } from "./api.js";
import { fill, h, num, plural } from "./dom.js";

const PROMPTS = ["What is the capital of France?", "Write two sentences about the sea.", "How do I boil an egg?",
  "Explain what a list comprehension is in Python.", "Give me three names for a small bakery."];

/** Builds the form; returns a function that sets the list of versions. */
export function comparison(card) {
  const before = h("select", { id: "compare-a", name: "before" });
  const after = h("select", { id: "compare-b", name: "after" });
  const fixed = h("select", { id: "compare-fixed", onchange: () => { if (fixed.value) prompt.value = fixed.value; } },
    h("option", { value: "" }, "Your own question"), PROMPTS.map((text) => h("option", { value: text }, text)));
  const prompt = h("textarea", { id: "compare-prompt", rows: "2", required: true, placeholder: "What would you ask?",
    oninput: () => { fixed.value = PROMPTS.includes(prompt.value) ? prompt.value : ""; } });
  const button = h("button", { class: "primary", type: "submit" }, "Ask both");
  const answers = h("div", { class: "answers", "aria-live": "polite" });
  const form = h("form", { class: "compare-form", onsubmit: (event) => { event.preventDefault(); ask(); } },
    field("Before", before), field("After", after), field("Prompt", fixed),
    h("div", { class: "field wide" }, h("label", { for: "compare-prompt" }, "Question"), prompt),
    h("div", { class: "wide" }, button));
  fill(card, h("h2", { id: "compare-title" }, "Before and after"),
    h("p", { class: "note" }, "Two versions answer the same question. Nothing here is stored or learned from."), form, answers);
  prompt.value = fixed.value = PROMPTS[0];

  async function ask() {
    const versions = [Number(before.value), Number(after.value)];
    button.disabled = true;
    const panels = versions.map((version) => {
      const said = h("div", { class: "said" }), note = h("span", { class: "small muted" }, "…");
      return { version, said, note, element: h("div", { class: "answer", "data-version": version },
        h("div", { class: "spread" }, h("b", {}, nameOf(version)), note), said) };
    });
    fill(answers, panels.map((panel) => panel.element));
    const mine = (version) => panels.filter((panel) => panel.version === version);
    try {
      await stream("/v1/compare", { prompt: prompt.value, versions }, (event) => {
        for (const panel of mine(event.version)) {
          if (event.text) panel.said.append(event.text);
          if (event.done) fill(panel.note, event.error ?? `${plural(event.num_tokens, "token")} · ${num(words(panel.said.textContent))} words`);
        }
      });
    } catch (error) {
      fill(answers, h("p", { role: "alert" }, error.message));
    } finally {
      button.disabled = false;
    }
  }

  return (policies) => {
    const usable = policies.filter((policy) => policy.status !== "training");
    const serving = policies.find((policy) => policy.status === "serving")?.version ?? 0;
    const chosen = [before.value, after.value];
    const shown = [chosen[0] || "0", chosen[1] && form.dataset.touched ? chosen[1] : String(serving)];
    [before, after].forEach((select, index) => {
      fill(select, usable.map((policy) => h("option", { value: policy.version }, nameOf(policy.version) + (policy.status === "serving" ? " · serving" : policy.status === "rejected" ? " · rejected" : ""))));
      select.value = shown[index];
    });
    after.onchange = () => { form.dataset.touched = "yes"; };
  };
}

const nameOf = (version) => version === 0 ? "Base" : `Version ${version}`;
const words = (text) => text.split(/\s+/).filter(Boolean).length;
const field = (text, control) => h("div", { class: "field" }, h("label", { for: control.id }, text), control);
