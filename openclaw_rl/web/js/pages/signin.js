import { post } from "../api.js";
import { fill, h } from "../dom.js";

/** A form that asks for a key; `onDone` runs once the user is signed in. */
export function signIn(onDone) {
  const problem = h("p", { class: "problem", role: "alert" });
  const input = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true, placeholder: "sk-ocrl-…" });
  const submit = async (event) => {
    event.preventDefault();
    fill(problem);
    try {
      await post("/v1/login", { key: input.value.trim() });
      await onDone();
    } catch (error) {
      fill(problem, error.message);
      input.select();
    }
  };
  return h("main", { class: "signin", id: "main" }, h("div", { class: "card" },
    h("img", { src: "/web/icon.svg", alt: "" }),
    h("h1", {}, "Sign in"),
    h("p", { class: "muted" }, "Use the API key that the server printed. ", h("code", {}, "openclaw-rl keys list"), " shows it, too."),
    h("form", { onsubmit: submit },
      h("input", { class: "hidden", type: "text", autocomplete: "username", value: "openclaw-rl", "aria-hidden": "true", tabindex: "-1" }),
      h("div", { class: "field" }, h("label", { for: "key" }, "API key"), input), problem,
      h("button", { class: "primary", type: "submit" }, "Sign in"))));
}
