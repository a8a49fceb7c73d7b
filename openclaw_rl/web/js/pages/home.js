// The first screen: is it learning, what, can I trust it, what does it know about me, how do I undo it?

import { get, post } from "../api.js";
import { answerPair, stateOf } from "../answers.js";
import { confirm, fill, h, pill, plural, toast, versionName, when } from "../dom.js";
import { current, listen, onChange } from "../live.js";

export async function render(main, { me, keep }) {
  const headline = h("p", { class: "headline", "data-answer": "learning" });
  const cards = h("div", { class: "grid two answers-first" });
  const replies = h("section", { class: "card", "aria-labelledby": "first-title" });
  const pairs = h("section", { class: "card", "aria-labelledby": "pairs-title" });
  const notice = h("div", {});
  fill(main, h("h1", { class: "visually-hidden" }, "Home"), h("div", { class: "stack" }, headline, notice, cards, replies, pairs));

  async function load() {
    const status = current() ?? await get("/v1/status");
    const [learning, wishes, policies, waves] = await Promise.all(
      [get("/v1/learning", { user: me.user }), get("/v1/wishes"), get("/v1/policies", { scope: status.scope }), me.owner && me.keys ? get("/v1/waves") : { data: [] }]);
    const held = waves.data.filter((wave) => wave.state === "held").length, all = wishes.data.filter((wish) => wish.state !== "over");
    // The owner is told of everybody's wishes and versions; what stands here is their own.
    const facts = { me, status, learning, first: learning.first_replies, all, wishes: all.filter((wish) => wish.user === me.user), policies: policies.data };
    fill(headline, ...sentence(facts));
    notice.classList.toggle("hidden", !held);
    fill(notice, held > 0 && h("p", { class: "card" }, h("a", { href: "#/people" }, plural(held, "wave of complaints", "waves of complaints")), held > 1 ? " wait" : " waits", " for your decision."));
    fill(cards, what(facts), trust(facts), known(facts), undo(facts, load));
    showFirst(replies, facts.first);
    showPairs(pairs, facts.wishes);
  }
  await load();
  keep(onChange((status) => [status.policy_version, status.last_step, status.funnel?.by_state, status.wishes, status.learn?.running, status.stage, status.take_over], () => load().catch(() => null)));
}

/** The server's sentence, with wishes marked and a way to the chat. */
function sentence({ learning, status }) {
  const over = status.take_over ? ` ${Math.round(100 * status.take_over.share)} % of conversations are answered here instead of by the other model: ${status.take_over.why}.` : "";
  return learning.headline.split(/(“[^”]*”|^Learning:|Talk to it)/).map((part) =>
    part.startsWith("“") ? h("em", {}, part.slice(1, -1)) : part === "Learning:" ? h("b", {}, part) : part === "Talk to it" ? h("a", { href: "#/try" }, part) : part).concat(over);
}

const card = (question, answer, ...body) => h("section", { class: "card", "data-answer": answer, "aria-label": question }, h("h2", {}, question), h("div", { class: "stack" }, ...body));

function what({ wishes, all }) {
  const shown = wishes.slice(0, 4), others = all.length - wishes.length;
  return card("What is it learning?", "what",
    shown.length ? h("ul", { class: "lines" }, shown.map((wish) => h("li", {}, h("span", {}, wish.text), pill(...stateOf(wish)))))
      : h("p", { class: "muted" }, "It learns how you want its replies to be: shorter, in French, with an example. You have not asked for anything yet."),
    h("p", {}, h("a", { href: "#/wishes" }, all.length > 4 ? `All ${all.length} wishes` : "All wishes"), others > 0 && `, including ${others} from other people`));
}

function trust({ policies, status }) {
  const checked = policies.filter((policy) => policy.version > 0 && policy.gate?.checks?.length);
  const away = checked.filter((policy) => policy.gate.passed === false).length;
  const serving = policies.find((policy) => policy.status === "serving");
  const swap = status.last_swap;
  return card("Can I trust it?", "trust",
    h("p", {}, serving && serving.version > 0 && serving.gate?.checks?.length
      ? `Version ${serving.version} answers you. It first passed ${plural(serving.gate.checks.length, "check")}: facts, arithmetic, tool calls, fluency and your own earlier requests.`
      : "The unchanged base model answers you. A new version must first pass checks of facts, arithmetic, tool calls, fluency and your own earlier requests."),
    away > 0 && h("p", { class: "small muted" }, `${plural(away, "version failed its checks", "versions failed their checks")} and never answered anybody.`),
    swap && swap.replies > 0 && h("p", { class: "small muted" }, `${swap.failed ? plural(swap.failed, "reply was", "replies were") : "No reply was"} cut off when it took over.`),
    h("p", {}, h("a", { href: "#/policies" }, "Versions and their checks")));
}

function known({ me, status, all }) {
  const funnel = status.funnel;
  return card(me.owner ? "What does it know?" : "What does it know about me?", "known",
    h("p", {}, funnel ? `It keeps ${plural(funnel.turns, "reply", "replies")} in ${plural(funnel.sessions, "conversation")} and ${plural(all.length, "wish", "wishes")}${me.owner ? ", from everybody who uses it" : ""}, on this server only.` : "The database cannot be read at the moment."),
    h("p", {}, h("a", { href: "#/sessions" }, "Read or forget conversations"), ", ", h("a", { href: "#/wishes" }, "read or forget wishes"), "."));
}

function undo({ me, status, policies }, load) {
  const serving = policies.find((policy) => policy.status === "serving");
  const can = me.owner && serving && serving.version > 0;
  return card("How do I undo it?", "undo",
    h("p", {}, "Pause or forget a ", h("a", { href: "#/wishes" }, "wish"), " or forget a ", h("a", { href: "#/sessions" }, "conversation"), ": what was learned from it is undone."),
    can && h("p", {}, h("button", { type: "button", onclick: () => back(serving, status.scope, load) }, `Go back to ${versionName(serving.parent)}`), " ",
      h("span", { class: "small muted" }, "made ", when(serving.created_at))),
    !can && h("p", { class: "small muted" }, me.owner ? "The base model answers, so there is nothing to go back to." : "Only the owner of the server can go back to an earlier version."));
}

async function back(serving, scope, load) {
  const sure = await confirm({ title: `Go back to ${versionName(serving.parent)}?`, action: "Go back",
    text: "It answers all new requests. Replies in progress are finished by the version that began them." });
  if (!sure) return;
  await post(`/v1/policies/rollback?scope=${encodeURIComponent(scope)}`).then(() => toast(`Back to ${versionName(serving.parent)}.`), (error) => toast(error.message));
  await load();
}

function showFirst(place, { versions, with_note: noted }) {
  const head = [h("h2", { id: "first-title" }, "First replies to you that were right"),
    h("p", { class: "note" }, "By the version that answered. Only the first reply of a conversation counts, because after that the model has been told what was missing.")];
  if (!versions.length && !noted.of) return fill(place, head, h("p", { class: "muted" }, "You have not reacted to a first reply yet."));
  const shown = versions.slice(-8).map((row) => ({ ...row, name: row.version === 0 ? "Base" : `Version ${row.version}` }));
  if (noted.of) shown.push({ ...noted, name: "With a note" });
  fill(place, head, h("ol", { class: "funnel" }, shown.map(({ name, good, of }) => h("li", {}, h("span", { class: "name" }, name),
    h("div", { class: "bar", "aria-hidden": "true" }, h("div", { class: "bar-fill", "--share": good / of })), h("span", { class: "count num" }, `${good} of ${of}`)))),
  h("p", { class: "small" }, h("a", { href: "#/learning" }, "More numbers")));
}

function showPairs(place, wishes) {
  const pairs = wishes.filter((wish) => wish.before && wish.after).slice(0, 3);
  const head = h("h2", { id: "pairs-title" }, "Your own questions, before and after");
  fill(place, head, pairs.length ? pairs.map((wish) => [h("p", { class: "note" }, h("em", {}, wish.text)), answerPair(wish)])
    : h("p", { class: "muted" }, "Once a wish has been learned, replies from before and after appear here."));
}
