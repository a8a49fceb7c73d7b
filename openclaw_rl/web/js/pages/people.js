// For the owner: who has a key, whose policy answers them, what they may use, and complaints that wait for a decision.

import { get, patch, post, remove, userPath } from "../api.js";
import { confirm, fill, h, num, pill, plural, toast, when } from "../dom.js";
import { onChange } from "../live.js";

/** With more people than this, a field finds them by name. */
const MANY = 12;

export async function render(main, { keep }) {
  const waves = waveCards();
  const key = h("div", {});
  const list = h("ul", { class: "list people" });
  const find = h("input", { type: "search", id: "find-person", autocomplete: "off", oninput: () => show() });
  const finder = h("div", { class: "field hidden" }, h("label", { for: find.id }, "Find by name or group"), find);
  const name = h("input", { id: "new-person", required: true, maxlength: "64", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { class: "inline-form", onsubmit: (event) => { event.preventDefault(); add(name.value.trim()); } },
    h("div", { class: "field" }, h("label", { for: name.id }, "Name"), name), h("button", { class: "primary", type: "submit" }, "Add"));
  let people = [];
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "People"),
    h("p", { class: "lead" }, "Everybody who has a key, what they share, and how much they may use.")),
  h("div", { class: "stack" }, waves.held,
    h("section", { class: "card", "aria-labelledby": "add-title" }, h("h2", { id: "add-title" }, "Add a person"),
      h("p", { class: "note" }, "Each person gets their own key and, from the second key on, their own policy. ", h("code", {}, "--policy-scope"), " changes that."), form, key),
    h("section", { class: "card", "aria-label": "Everybody who has a key" }, finder, list), waves.decided));

  async function load() {
    const [users, held] = await Promise.all([get("/v1/users"), get("/v1/waves")]);
    people = users.data;
    finder.classList.toggle("hidden", people.length <= MANY);
    waves.show(held.data, load);
    show();
  }
  function show() {
    const words = find.value.trim().toLowerCase();
    const found = people.filter((one) => `${one.name} ${one.group ?? ""}`.toLowerCase().includes(words));
    fill(list, found.length ? found.map((one) => row(one, people, load)) : h("li", { class: "empty" }, "Nobody found."));
  }
  async function add(person, samePerson = false) {
    try {
      const made = await post("/v1/users", { name: person, same_person: samePerson });
      name.value = "";
      showKey(key, made);
      await load();
    } catch (error) {
      if (error.code !== "former_user") return toast(error.message);
      const sure = await confirm({ title: `${person} had a key before`, action: "Same person",
        text: "Whoever gets this name sees the earlier conversations under it. For somebody else, cancel and choose another name." });
      if (sure) await add(person, true);
    }
  }
  await load();
  keep(onChange((status) => [status.funnel?.sessions, status.funnel?.by_state], () => { if (!main.querySelector(".people form")) load().catch(() => null); }));
}

/** The only time the key can be seen here. */
function showKey(place, { name, key }) {
  const text = h("input", { id: "made-key", class: "mono", readonly: true, value: key, onfocus: () => text.select() });
  const copy = async () => {
    text.select();
    // Browsers offer the clipboard to pages from this machine and over HTTPS only.
    await navigator.clipboard?.writeText(key).then(() => toast("Copied."), () => toast("Press Ctrl-C to copy the key."));
    if (!navigator.clipboard) toast("Press Ctrl-C to copy the key.");
  };
  fill(place, h("div", { class: "made-key", role: "group", "aria-label": `Key of ${name}` },
    h("div", { class: "inline-form" }, h("div", { class: "field" }, h("label", { for: text.id }, `Key of ${name}`), text),
      h("button", { type: "button", onclick: copy }, "Copy"), h("button", { type: "button", class: "plain", onclick: () => fill(place) }, "Done")),
    h("p", { class: "small muted" }, `Copy it now: it is not shown here again. ${name} uses it as the API key in clients, and to sign in here.`)));
  text.focus();
}

// --- people ---------------------------------------------------------------------------------

const SCOPES = { user: () => "own policy", group: (name) => `policy of the group ${name}`, env: (name) => `policy of the environment ${name}`, everyone: () => "shared policy" };

function policyOf(person, people) {
  const [kind, name] = person.scope.split(":");
  const alone = people.filter((one) => one.scope === person.scope).length === 1;
  return kind === "everyone" && alone ? "own policy" : SCOPES[kind](name);
}

function limits({ requests_per_minute: requests, tokens_per_day: tokens }) {
  const all = [requests && plural(requests, "request") + " a minute", tokens && plural(tokens, "token") + " a day"].filter(Boolean);
  return all.length ? `at most ${all.join(" and ")}` : "no limits";
}

function row(person, people, load) {
  const owner = person.name === "default";
  const place = h("li", { "data-person": person.name });
  const sessions = h("a", { href: `#/sessions?user=${encodeURIComponent(person.name)}` }, plural(person.num_sessions, "conversation"));
  const draw = () => fill(place,
    h("div", { class: "spread" },
      h("div", { class: "row" }, h("h2", {}, person.name), owner && pill("owner", "accent"), person.group && pill(`group ${person.group}`),
        person.environment && pill(`agent in ${person.environment}`), person.off_the_record && pill("off the record", "warn")),
      h("div", { class: "row" }, h("button", { type: "button", "aria-label": `Change ${person.name}`, onclick: edit }, "Change"),
        !owner && h("button", { type: "button", class: "danger", "aria-label": `Remove ${person.name}`, onclick: () => take(person, load) }, "Remove"))),
    h("p", { class: "small muted" }, sessions, ` · ${policyOf(person, people)} · ${limits(person)}`));
  const edit = () => fill(place, changeForm(person, draw, load));
  draw();
  return place;
}

function changeForm(person, cancel, load) {
  const field = (name, label, props) => h("div", { class: "field" }, h("label", { for: `${name}-${person.name}` }, label),
    h("input", { id: `${name}-${person.name}`, name, autocomplete: "off", value: person[name] ?? "", ...props }));
  const limit = { type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: "no limit" };
  const group = field("group", "Group (its members share one policy)", { maxlength: "64", placeholder: "none" });
  const record = h("input", { type: "checkbox", name: "off_the_record", id: `record-${person.name}`, checked: person.off_the_record });
  const form = h("form", { class: "stack", "aria-label": `Change ${person.name}`, onsubmit: (event) => { event.preventDefault(); save(new FormData(form)); } },
    h("h2", {}, person.name),
    h("div", { class: "grid three" }, group, field("requests_per_minute", "Requests a minute", limit), field("tokens_per_day", "Tokens a day", limit)),
    h("label", { for: record.id, class: "check" }, record, " Off the record: nothing they say is kept or learned from"),
    h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Save"), h("button", { type: "button", class: "plain", onclick: cancel }, "Cancel")));
  async function save(values) {
    const number = (name) => values.get(name) ? Number(values.get(name)) : null;
    const changes = { group: values.get("group").trim() || null, off_the_record: values.has("off_the_record"),
      requests_per_minute: number("requests_per_minute"), tokens_per_day: number("tokens_per_day") };
    const done = await patch(userPath(person.name), changes).catch((error) => toast(error.message));
    if (!done) return;
    toast("Saved.");
    await load();
  }
  setTimeout(() => group.querySelector("input").focus());
  return form;
}

async function take({ name, num_sessions: sessions }, load) {
  const box = h("input", { type: "checkbox", name: "forget", id: "forget-person" });
  const sure = await confirm({ title: `Remove ${name}?`, action: "Remove", danger: true,
    text: "Their key stops working at once. Their conversations are kept unless you forget them.",
    fields: sessions > 0 ? [h("label", { for: box.id, class: "check" }, box, ` Also forget ${sessions === 1 ? "their conversation" : `all ${num(sessions)} conversations`}, and what was learned from ${sessions === 1 ? "it" : "them"}`)] : [] });
  if (!sure) return;
  try {
    await remove(`${userPath(name)}/key`);
    if (sure.forget) await remove(userPath(name));
    toast(sure.forget ? `${name} is removed and forgotten.` : `${name} is removed.`);
  } catch (error) {
    toast(error.message);
  }
  await load();
}

// --- waves of complaints --------------------------------------------------------------------

const SHARED = { everyone: () => "the shared policy", group: (name) => `the policy of the group ${name}` };
const shared = (scope) => (SHARED[scope.split(":")[0]] ?? (() => scope))(scope.split(":")[1]);

function waveCards() {
  const waiting = h("ul", { class: "list" }), past = h("ul", { class: "lines" });
  const held = h("section", { class: "card hidden", "aria-labelledby": "waves-title" }, h("h2", { id: "waves-title" }, "Complaints waiting for your decision"),
    h("p", { class: "note" }, "Somebody suddenly complained much more than before, and much more than others do. A shared policy does not learn from these complaints until you decide."), waiting);
  const decided = h("details", { class: "card hidden" }, h("summary", {}, "Earlier decisions about complaints"), past);
  function show(all, load) {
    const [now, before] = [all.filter((wave) => wave.state === "held"), all.filter((wave) => wave.state !== "held").slice(0, 10)];
    held.classList.toggle("hidden", !now.length);
    decided.classList.toggle("hidden", !before.length);
    fill(waiting, now.map((wave) => heldWave(wave, load)));
    fill(past, before.map((wave) => h("li", {}, `${wave.user}, ${plural(wave.number, "complaint")}: ${wave.state === "learned" ? "allowed" : "dropped"}`,
      h("span", { class: "small muted" }, when(wave.decided_at)))));
  }
  return { held, decided, show };
}

function heldWave(wave, load) {
  const decide = async (decision, said) => {
    await post(`/v1/waves/${wave.id}`, { decision }).then(() => toast(said), (error) => toast(error.message));
    await load();
  };
  const drop = async () => {
    const sure = await confirm({ title: "Drop these complaints?", action: "Drop", danger: true,
      text: "They will never be learned from. The conversations are kept, and later complaints count again." });
    if (sure) await decide("discard", "Dropped. They will not be learned from.");
  };
  return h("li", { class: "wave", "data-wave": wave.id },
    h("p", {}, h("b", {}, wave.user), `: ${plural(wave.number, "complaint")} about ${shared(wave.scope)}, the first `, when(wave.since), ", the last ", when(wave.until), "."),
    h("div", { class: "turn-actions" },
      h("a", { class: "button", href: `#/sessions?user=${encodeURIComponent(wave.user)}&rated=bad` }, "Read them"),
      h("button", { type: "button", onclick: () => decide("learn", "Allowed. They will be learned from.") }, "Allow"),
      h("button", { type: "button", class: "danger", onclick: drop }, "Drop")));
}
