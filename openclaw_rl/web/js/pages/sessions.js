// Find a conversation.

import { get } from "../api.js";
import { fill, h, plural, when } from "../dom.js";
import { onChange } from "../live.js";

const PAGE = 30;

export async function render(main, { me, params, keep }) {
  const user = params.get("user");
  const list = h("ul", { class: "list" });
  const more = h("button", { type: "button", class: "hidden", onclick: () => load(true) }, "Show older");
  const note = h("p", { class: "small muted", role: "status" });
  const search = h("input", { type: "search", id: "search", placeholder: "Words in the conversation", autocomplete: "off" });
  const rated = h("select", { id: "rated", onchange: () => load() }, [["", "All"], ["good", "With a good reply"], ["bad", "With a bad reply"]].map(([value, text]) => h("option", { value }, text)));
  rated.value = params.get("rated") ?? "";
  let last = null, timer = null, asked = 0;
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => load(), 250); });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Sessions"),
    h("p", { class: "lead" }, user ? [`Conversations of ${user}, newest first. `, h("a", { href: "#/sessions" }, "Show everybody's")]
      : me.owner ? "All conversations, newest first." : "Your conversations, newest first.")),
  h("div", { class: "stack" }, h("div", { class: "filters" }, h("div", { class: "field" }, h("label", { for: "search" }, "Search"), search),
    h("div", { class: "field" }, h("label", { for: "rated" }, "Show"), rated)), note,
    h("div", { class: "card" }, list), more));

  async function load(older = false) {
    const mine = ++asked;
    const page = await get("/v1/sessions", { limit: PAGE, after: older ? last : null, query: search.value.trim(), rated: rated.value, user });
    if (mine !== asked) return;
    last = page.data.at(-1)?.id ?? last;
    const items = page.data.map((session) => item(session, me));
    if (older) list.append(...items);
    else fill(list, items.length ? items : h("li", { class: "empty" }, h("strong", {}, search.value || rated.value ? "Nothing found" : "No conversations yet"),
      search.value || rated.value ? "Try other words, or show all." : "Point an agent at this server, or use “Try it”."));
    more.classList.toggle("hidden", !page.has_more);
    fill(note, search.value.trim() ? `${items.length}${page.has_more ? "+" : ""} found` : "");
  }
  await load();
  keep(onChange((status) => [status.funnel?.turns, status.funnel?.by_state], () => { if (!search.value && list.childElementCount <= PAGE) load().catch(() => null); }));
}

function item(session, me) {
  return h("li", {}, h("a", { class: "item", href: `#/sessions/${encodeURIComponent(session.id)}` },
    h("span", { class: "title" }, session.title || session.id),
    dots(session.scores),
    h("span", { class: "small muted" }, when(session.opened_at), ` · ${plural(session.num_turns, "turn")}`,
      me.owner && session.user !== "default" ? ` · ${session.user}` : "", session.closed_at ? " · closed" : "")));
}

/** One mark for each reply: good, bad, neutral, or not judged. */
function dots(scores) {
  const count = (test) => scores.filter(test).length;
  const [good, bad] = [count((score) => score > 0), count((score) => score < 0)];
  return h("span", { class: "dots", role: "img", "aria-label": `${plural(good, "good reply", "good replies")}, ${plural(bad, "bad reply", "bad replies")}` },
    scores.slice(-24).map((score) => h("span", { class: score > 0 ? "up" : score < 0 ? "down" : score === 0 ? "even" : "" })));
}
