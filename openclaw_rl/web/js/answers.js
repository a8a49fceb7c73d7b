// The state of a wish, and real replies from before and after it was learned.

import { h } from "./dom.js";

/** The state's label and colour. */
const STATES = { learned: ["works now", "good"], "not yet": ["being learned", "accent"], "not possible": ["not possible with this model", "warn"],
  paused: ["paused", ""], over: ["over", ""] };

/** A wish whose last version was rejected waits for the next complaint. */
export const stateOf = (wish) => wish.state === "not yet" && wish.reason ? ["not learned yet", "warn"] : STATES[wish.state];

export const answerPair = (wish) => h("div", { class: "answers" },
  [["Before", wish.before], ["After", wish.after]].map(([when, answer]) => answer && h("div", { class: "answer" },
    h("div", { class: "spread" }, h("b", {}, when), h("span", { class: "small muted" }, cut(answer.request))), h("div", { class: "said" }, answer.reply))));

const cut = (text) => text.length > 80 ? `${text.slice(0, 79)}…` : text;
