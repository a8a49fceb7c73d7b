// Thumbs up or down and a correction for one reply.

import { post } from "./api.js";
import { fill, h, icon, toast } from "./dom.js";

const UP = "M7 11v9H4v-9zM7 11l4-8c1.6 0 2.4 1 2.2 2.4L12.6 9H19c1.2 0 2 1 1.8 2.2l-1.3 7A2.2 2.2 0 0 1 17.3 20H7";
const DOWN = "M17 13V4h3v9zM17 13l-4 8c-1.6 0-2.4-1-2.2-2.4l.6-3.6H5c-1.2 0-2-1-1.8-2.2l1.3-7A2.2 2.2 0 0 1 6.7 4H17";

/** Buttons for a turn; `onDone` runs after feedback was sent. */
export function feedback(turnId, onDone = () => {}) {
  const box = h("div", { class: "feedback" });
  const up = h("button", { type: "button", "aria-pressed": "false", "aria-label": "Good reply", onclick: () => rate("up") }, icon(UP));
  const down = h("button", { type: "button", "aria-pressed": "false", "aria-label": "Bad reply", onclick: () => openFix() }, icon(DOWN));
  const form = h("div", { class: "fix-place" });
  const press = (button) => [up, down].forEach((one) => one.setAttribute("aria-pressed", String(one === button)));

  async function rate(rating, text = null) {
    try {
      await post("/v1/feedback", { id: turnId, rating, ...(text ? { text } : {}) });
      press(rating === "up" ? up : down);
      fill(form);
      toast(text ? "Noted. It will learn from your correction." : rating === "up" ? "Noted as a good reply." : "Noted as a bad reply.");
      onDone();
    } catch (error) {
      toast(error.message);
    }
  }

  function openFix() {
    const text = h("textarea", { id: `fix-${turnId}`, rows: "2", placeholder: "Keep it to one sentence." });
    fill(form, h("form", { class: "fix", onsubmit: (event) => { event.preventDefault(); rate("down", text.value.trim()); } },
      h("label", { for: `fix-${turnId}` }, "What should it have done instead? (optional)"), text,
      h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Send"),
        h("button", { class: "plain", type: "button", onclick: () => { fill(form); down.focus(); } }, "Cancel"))));
    text.focus();
    form.scrollIntoView({ block: "nearest" });
  }

  fill(box, h("div", { class: "row" }, up, down), form);
  return box;
}

/** A label for the state of a turn. */
export function fate(turn) {
  const words = { waiting: "waiting", judged: "judged", unjudged: "not judged yet", sampled: "being learned",
    trained: `learned in version ${turn.step}`, excluded: "not used in training" };
  const kind = { trained: "good", sampled: "accent", judged: "accent", excluded: "warn" }[turn.state] ?? "";
  return { text: words[turn.state] ?? turn.state, kind };
}

export const scoreOf = (verdict) => verdict.source === "exclude" ? { text: "excluded", kind: "warn" }
  : verdict.score > 0 ? { text: "good", kind: "good" } : verdict.score < 0 ? { text: "bad", kind: "bad" } : { text: "neutral", kind: "" };
