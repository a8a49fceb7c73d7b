// Each user's wishes and their state; reword, pause or forget them.

import { get, patch, remove, turnPath, wishPath } from "../api.js";
import { answerPair, stateOf } from "../answers.js";
import { confirm, fill, h, pill, plural, toast, when } from "../dom.js";
import { onChange } from "../live.js";

export async function render(main, { me, keep }) {
  const list = h("div", { class: "stack" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Wishes"),
    h("p", { class: "lead" }, `What ${me.owner ? "people asked for, in their" : "you asked for, in your"} own words. The model learns to do it without being told, and each new version is checked before it answers anybody.`)), list);
  async function load() {
    const wishes = (await get("/v1/wishes")).data, skill = await get("/v1/wishes/skill");
    const [now, over] = [wishes.filter((wish) => wish.state !== "over"), wishes.filter((wish) => wish.state === "over")];
    fill(list, now.length ? now.map((wish) => card(wish, me, load)) : h("div", { class: "card empty" }, h("strong", {}, "No wishes yet"),
      "Tell the model how to answer, for example “shorter, please”, and it appears here."),
    skill.text && skillCard(skill),
    over.length > 0 && h("details", { class: "card" }, h("summary", {}, `${plural(over.length, "wish", "wishes")} replaced or withdrawn`),
      h("ul", { class: "lines" }, over.map((wish) => h("li", {}, wish.text)))));
  }
  await load();
  keep(onChange((status) => [status.wishes, status.policy_version, status.stage], () => { if (!list.querySelector("form")) load().catch(() => null); }));
}

function card(wish, me, load) {
  const title = `wish-${wish.id}`;
  const place = h("section", { class: "card", "aria-labelledby": title, "data-wish": wish.id });
  const turns = wish.turns.slice(0, 8);
  const draw = () => fill(place,
    h("div", { class: "spread" }, h("h2", { id: title }, wish.text || "(its text was deleted)"), pill(...stateOf(wish), true)),
    h("p", { class: "small muted" }, me.owner && wish.user !== "default" && `${wish.user} · `, wish.times === 1 ? "asked for once, " : `asked for ${wish.times} times, first `, when(wish.created_at),
      wish.state === "learned" && [` · works since version ${wish.learned_in} (`, when(wish.learned_at), ")"], wish.said && ` · originally “${wish.said}”`),
    wish.reason && h("p", {}, wish.state === "not possible" ? "The model cannot do this even when told to, so it is not trained for it." : cap(wish.reason)),
    NOTES[wish.note] && h("p", { class: "small" }, NOTES[wish.note], " ", wish.note !== "withdrawn" && h("button", { type: "button", class: "link",
      onclick: () => change({ noted: wish.note !== "given" }, wish.note === "given" ? "The model is no longer reminded." : "The model is reminded from the next message on.") }, wish.note === "given" ? "Stop reminding it" : "Remind it")),
    (wish.before || wish.after) && answerPair(wish),
    turns.length > 0 && h("p", { class: "small" }, "Asked for in: ", turns.map((id, index) => [index ? ", " : "", h("button", { type: "button", class: "link", onclick: () => open(id) }, `reply ${index + 1}`)])),
    h("div", { class: "turn-actions" },
      h("button", { type: "button", onclick: edit }, "Edit"),
      wish.state === "paused" || wish.state === "not possible"
        ? h("button", { type: "button", onclick: () => change({ paused: false }, "It is being learned again.") }, "Try again")
        : h("button", { type: "button", onclick: () => change({ paused: true }, "Paused. What was learned for it is undone.") }, "Pause"),
      h("button", { type: "button", class: "danger", onclick: forget }, "Forget")));
  function edit() {
    const text = h("input", { id: `edit-${wish.id}`, value: wish.text, maxlength: "500", required: true });
    fill(place, h("form", { class: "fix", onsubmit: (event) => { event.preventDefault(); change({ text: text.value.trim() }, "Saved. It is learned again in the new words."); } },
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
      text: "It is deleted for good, with the turns it was learned from and the turns after them. What was learned from them is undone." });
    if (!sure) return;
    await remove(wishPath(wish.id)).then(() => toast("Forgotten."), (error) => toast(error.message));
    await load();
  }
  draw();
  return place;
}

function skillCard({ text, wishes }) {
  return h("section", { class: "card", "aria-labelledby": "skill-title" }, h("h2", { id: "skill-title" }, "A skill for your other agents"),
    h("p", { class: "small muted" }, `Made from ${plural(wishes.length, "wish", "wishes")} that you repeated, in your own words. Edit a wish to change its line. Nothing is written anywhere until you download it.`),
    h("pre", { class: "skill" }, text),
    h("a", { class: "button", download: "SKILL.md", href: `data:text/markdown;charset=utf-8,${encodeURIComponent(text)}` }, "Download SKILL.md"));
}

const NOTES = { given: "The model is reminded of this with every message until it has learned it.", proposed: "Remind the model of this with every message until it has learned it?",
  withdrawn: "The model is no longer reminded of this: it has learned it.", refused: "The model is not reminded of this." };
const cap = (text) => text[0].toUpperCase() + text.slice(1);

async function open(id) {
  const turn = await get(turnPath(id)).catch((error) => toast(error.message));
  if (turn) location.hash = `#/sessions/${encodeURIComponent(turn.session_id)}`;
}
