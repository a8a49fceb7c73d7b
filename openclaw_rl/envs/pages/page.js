// Shared by all pages: `task` is the data that a page shows, `state` the result that is checked at the end.
const state = (window.state = {});
const root = document.querySelector("main");

function add(parent, tag, attributes = {}, text = "") {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "onchange") made[name] = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, value);
  }
  made.textContent = text;
  parent.append(made);
  return made;
}

function field(parent, label, tag, attributes = {}) {
  const id = "f" + document.querySelectorAll("input, select").length;
  const row = add(parent, "p");
  add(row, "label", { for: id }, label);
  return add(row, tag, { id, ...attributes });
}

function choice(parent, label, options, value) {
  const made = field(parent, label, "select");
  for (const option of options) add(made, "option", { selected: option === value }, option);
  return made;
}

function say(text) {
  document.querySelector("[role=status]")?.remove();
  add(root, "p", { role: "status" }, text);
}

add(root, "h1", {}, task.title);
