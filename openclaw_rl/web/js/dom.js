// Builds elements from plain values. Strings always become text nodes; markup cannot be inserted.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "x", onclick: f}, "text", child, …); null and false children are left out. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name.startsWith("--")) element.style.setProperty(name, value);
  else if (name === "value") element.value = value;
  else element.setAttribute(name === "class" ? "class" : name, value === true ? "" : value);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A line icon from a path's data. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({
    viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.9",
    "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true",
  })) svg.setAttribute(name, value);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

export const pill = (text, kind = "", dot = false) => h("span", { class: `pill ${kind}${dot ? " dot" : ""}` }, text);

export function toast(text) {
  const element = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), 6000);
}

/** Asks for confirmation; resolves to the form's values, or null. */
export function confirm({ title, text, action, danger = false, fields = [] }) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title), h("p", { class: "muted" }, text), ...fields,
      h("div", { class: "row" },
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: danger ? "primary danger-fill" : "primary", value: "yes" }, action)));
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, form);
    dialog.addEventListener("close", () => {
      const values = dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null;
      dialog.remove();
      resolve(values);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
export const num = (value, digits) => value === null || value === undefined ? "–"
  : digits === undefined ? number.format(value) : value.toFixed(digits);

/** The limit of a check. One of an earlier release does not say its side; whether it passed tells it. */
export const limitOf = ({ value, bound, passed, side }, digits) => `${side ?? (passed === (value >= bound) ? "at least" : "at most")} ${num(bound, digits)}`;

export function ago(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 5) return "just now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return `${Math.round(passed / 86400)} days ago`;
}

export const when = (seconds) => h("time", {
  datetime: new Date(seconds * 1000).toISOString(), title: new Date(seconds * 1000).toLocaleString(),
}, ago(seconds));

export const versionName = (version) => version === 0 ? "the base" : version === -1 ? "the other model" : `version ${version}`;
export const plural = (count, one, many = `${one}s`) => `${num(count)} ${count === 1 ? one : many}`;
