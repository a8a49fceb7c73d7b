// Each user's wishes and their state; reword, pause or forget them.

import { get, patch, remove, turnPath, wishPath } from "../api.js";
import { answerPair, STATES } from "../answers.js";
import { confirm, fill, h, pill, plural, toast, when } from "../dom.js";
import { onChange } from "../live.js";

export async function render(main, { me, keep }) {
  const list = h("div", { class: "stack" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Wishes"),
    h("p", { class: "lead" }, `What ${me.owner ? "people" : "you"} asked for in their own words. It is taught to the model from its own replies when told, and checked before anybody gets it.`)), list);
  async function load() {
    const wishes = (await get("/v1/wishes")).data;
    const [now, over] = [wishes.filter((wish) => wish.state !== "over"), wishes.filter((wish) => wish.state === "over")];
    fill(list, now.length ? now.map((wish) => card(wish, me, load)) : h("div", { class: "card empty" }, h("strong", {}, "No wishes yet"),
      "Say what is missing in a reply, such as “shorter, please”, and it appears here."),
    over.length > 0 && h("details", { class: "card" }, h("summary", {}, `${plural(over.length, "wish", "wishes")} replaced or taken back`),
      h("ul", { class: "lines" }, over.map((wish) => h("li", {}, wish.text)))));
  }
  await load();
  keep(onChange((status) => [status.wishes, status.policy_version], () => { if (!list.querySelector("form")) load().catch(() => null); }));
}

function card(wish, me, load) {
  const title = `wish-${wish.id}`;
  const place = h("section", { class: "card", "aria-labelledby": title, "data-wish": wish.id });
  const turns = wish.turns.slice(0, 8);
  const draw = () => fill(place,
    h("div", { class: "spread" }, h("h2", { id: title }, wish.text || "(its words were pruned)"), pill(...STATES[wish.state], true)),
    h("p", { class: "small muted" }, me.owner && wish.user !== "default" && `${wish.user} · `, `asked for ${times(wish.times)}, first `, when(wish.created_at),
      wish.state === "learned" && [` · works since version ${wish.learned_in}, `, when(wish.learned_at)], wish.said && ` · first said as “${wish.said}”`),
    wish.reason && h("p", {}, wish.state === "not possible" ? "The model does not manage this even when told, so it is not taught." : cap(wish.reason)),
    NOTES[wish.note] && h("p", { class: "small" }, NOTES[wish.note], " ", wish.note !== "withdrawn" && h("button", { type: "button", class: "link",
      onclick: () => change({ noted: wish.note !== "given" }, wish.note === "given" ? "It is not told any more." : "It is told from the next message on.") }, wish.note === "given" ? "Do not tell it" : "Tell it")),
    (wish.before || wish.after) && answerPair(wish),
    turns.length > 0 && h("p", { class: "small" }, "Asked for in: ", turns.map((id, index) => [index ? ", " : "", h("button", { type: "button", class: "link", onclick: () => open(id) }, `reply ${index + 1}`)])),
    h("div", { class: "turn-actions" },
      h("button", { type: "button", onclick: edit }, "Edit"),
      wish.state === "paused" || wish.state === "not possible"
        ? h("button", { type: "button", onclick: () => change({ paused: false }, "It is taught again.") }, "Try again")
        : h("button", { type: "button", onclick: () => change({ paused: true }, "Paused; what was learned for it is taken back.") }, "Pause"),
      h("button", { type: "button", class: "danger", onclick: forget }, "Forget")));
  function edit() {
    const text = h("input", { id: `edit-${wish.id}`, value: wish.text, maxlength: "500", required: true });
    fill(place, h("form", { class: "fix", onsubmit: (event) => { event.preventDefault(); change({ text: text.value.trim() }, "Noted; it is taught in the new words."); } },
      h("label", { for: text.id }, "What should replies be like?"), text,
      h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Save"), h("button", { type: "button", class: "plain", onclick: draw }, "Cancel"))));
    text.focus();
  }
  async function change(values, said) {
    await patch(wishPath(wish.id), values).then(() => toast(said), (error) => toast(error.message));
    await load();
  }
  async function forget() {
    const sure = await confirm({ title: "Forget this wish?", action: "Forget", danger: true,
      text: "It goes for good, with the turns it was taught from and those after them. What was learned from them is unlearned." });
    if (!sure) return;
    await remove(wishPath(wish.id)).then(() => toast("Forgotten."), (error) => toast(error.message));
    await load();
  }
  draw();
  return place;
}

const NOTES = { given: "Told to the model with each of your messages until it is learned.", proposed: "Shall it be told with each message until it is learned?",
  withdrawn: "No longer told: the weights hold it.", refused: "Not told with your messages." };
const times = (count) => count === 1 ? "once" : `${count} times`;
const cap = (text) => text[0].toUpperCase() + text.slice(1);

async function open(id) {
  const turn = await get(turnPath(id)).catch((error) => toast(error.message));
  if (turn) location.hash = `#/sessions/${encodeURIComponent(turn.session_id)}`;
}
