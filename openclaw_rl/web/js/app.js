// Sign-in, the frame with its navigation, and routing.

import { get, post } from "./api.js";
import { fill, h, icon, pill, toast } from "./dom.js";
import { connect, disconnect, listen } from "./live.js";
import { redrawAll } from "./plot.js";
import { applyTheme, theme, toggleTheme } from "./theme.js";
import * as chat from "./pages/chat.js";
import * as environments from "./pages/environments.js";
import * as home from "./pages/home.js";
import * as learning from "./pages/learning.js";
import * as now from "./pages/now.js";
import * as people from "./pages/people.js";
import * as policies from "./pages/policies.js";
import * as results from "./pages/results.js";
import * as session from "./pages/session.js";
import * as sessions from "./pages/sessions.js";
import { signIn } from "./pages/signin.js";
import * as wishes from "./pages/wishes.js";

const PAGES = [
  { name: "home", title: "Home", page: home, icon: "M4 11l8-7 8 7v9h-5v-6H9v6H4z" },
  { name: "wishes", title: "Wishes", page: wishes, icon: "M12 4l2.4 5.2 5.6.6-4.2 3.8 1.2 5.6L12 16.4 7 19.2l1.2-5.6L4 9.8l5.6-.6z" },
  { name: "sessions", title: "Sessions", page: sessions, icon: "M4 5h16v11H9l-5 4z" },
  { name: "try", title: "Try it", page: chat, icon: "M5 4l14 8-14 8 3-8z" },
  { name: "learning", title: "Learning", page: learning, icon: "M4 19V5M4 19h16M8 15l4-5 3 3 5-7" },
  { name: "policies", title: "Versions", page: policies, icon: "M6 4v16M6 9c0 4 12 1 12 6v5M18 15v5M6 4h.01M18 20h.01" },
  { name: "people", title: "People", page: people, owner: true, icon: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3 20c0-4 2.5-6 6-6s6 2 6 6M16 4.5a3.5 3.5 0 0 1 0 6.3M18 14.5c2 .8 3 2.6 3 5.5" },
  { name: "now", title: "Now", page: now, icon: "M3 12h4l3-8 4 16 3-8h4" },
];
/** Pages that are shown only if they have data. */
const EXTRA = [
  { name: "environments", title: "Environments", page: environments, source: "/v1/environments", icon: "M4 5h16v14H4zM7 10l3 2.5L7 15M12 15h5" },
  { name: "results", title: "Results", page: results, source: "/v1/results", icon: "M5 20V10M12 20V4M19 20v-7" },
];
/** Who manages people needs their keys. */
const mayOpen = ({ owner }) => !owner || (me.owner && me.keys);
const app = document.getElementById("app");
let main = null;
let leave = () => {};
/** Counts the pages shown, so that one can tell whether it was left while it loaded. */
let visits = 0;
let me = null;
const themeButtons = [];

async function start() {
  applyTheme();
  me = await get("/v1/me").catch((error) => { toast(error.message); return null; });
  if (!me?.user) {
    main = null;
    fill(app, signIn(start));
    return;
  }
  const some = (path) => get(path).then((found) => found.data.length > 0, () => false);
  const there = await Promise.all(EXTRA.map(({ source }) => some(source)));
  buildFrame([...PAGES.filter(mayOpen), ...EXTRA.filter((_, index) => there[index])]);
  await show();
}

function buildFrame(pages) {
  const links = pages.map(({ name, title, icon: path }) =>
    h("li", {}, h("a", { href: `#/${name}`, "data-page": name }, icon(path), h("span", {}, title))));
  const health = h("div", {}, pill("connecting", "", true));
  const who = me.owner ? "Signed in as owner" : `Signed in as ${me.user}`;
  main = h("main", { id: "main", tabindex: "-1" });
  fill(app, h("div", { class: "frame" },
    h("header", { class: "rail" },
      h("div", { class: "brand" }, h("img", { src: "/web/icon.svg", alt: "" }), "OpenClaw-RL"),
      h("nav", { "aria-label": "Pages" }, h("ul", {}, links)),
      h("div", { class: "rail-foot" }, health, h("div", { class: "muted" }, who), h("div", { class: "row" }, ...controls()))),
    h("div", {}, main, h("footer", { class: "phone-foot" }, who, ...controls()))));
  connect((lost) => lost && fill(health, pill("not connected", "bad", true)));
  listen((status) => fill(health, pill(`${status.status === "ok" ? "healthy" : status.status} · v${status.policy_version}`,
    status.status === "ok" ? "good" : "warn", true)));
}

/** Shown in the rail on wide screens, below the page on narrow ones. */
function controls() {
  const button = h("button", { class: "plain", type: "button", onclick: () => { toggleTheme(); redrawAll(); nameThemes(); } });
  themeButtons.push(button);
  nameThemes();
  return [button, me.keys && h("button", { class: "plain", type: "button", onclick: signOut }, "Sign out")];
}

const nameThemes = () => themeButtons.forEach((button) => fill(button, theme() === "dark" ? "Light theme" : "Dark theme"));

async function signOut() {
  await post("/v1/logout").catch(() => null);
  disconnect();
  leave();
  await start();
}

async function show() {
  if (!main) return;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent), params = new URLSearchParams(query);
  const known = Object.fromEntries([...PAGES, ...EXTRA].filter(mayOpen).map((one) => [one.name, one.page]));
  const page = name === "sessions" && rest[0] ? session : known[name] ?? home;
  for (const link of document.querySelectorAll(".rail a[data-page]")) {
    const current = link.dataset.page === (known[name] ? name : "home");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (current) link.scrollIntoView({ inline: "nearest", block: "nearest" });
  }
  leave();
  const stops = [], number = ++visits, focused = document.activeElement;
  const isLeft = () => number !== visits;
  leave = () => stops.splice(0).forEach((stop) => stop());
  // A place of its own: a page that is left while it loads must not appear on the next one.
  const place = h("div", {}, h("p", { class: "muted" }, "Loading…"));
  fill(main, place);
  try {
    await page.render(place, { rest, params, me, keep: (stop) => (isLeft() ? stop() : stops.push(stop)) });
  } catch (error) {
    if (isLeft()) return;
    if (error.status === 401) return start();
    fill(place, h("div", { class: "empty" }, h("strong", {}, "This page could not be loaded"), error.message));
  }
  if (isLeft()) return;
  const heading = place.querySelector("h1");
  document.title = `${heading?.textContent ?? "OpenClaw-RL"} · OpenClaw-RL`;
  heading?.setAttribute("tabindex", "-1");
  // Not if somebody has gone on to something else with the keyboard while the page was loading.
  const stayed = document.activeElement === focused || document.activeElement === document.body;
  if (stayed && (focused === document.body || !focused?.isConnected || focused.closest(".rail"))) heading?.focus({ preventScroll: true });
  scrollTo(0, 0);
}

addEventListener("hashchange", show);
start();
