// A reply token by token: green was reinforced, red was discouraged; the shade shows how strongly.

import { fill, h, num, plural } from "./dom.js";

export function tokenView(turn) {
  const tokens = turn.tokens;
  const most = Math.max(1e-9, ...tokens.map((token) => Math.abs(strength(token))));
  const detail = h("div", { class: "tok-detail", "aria-live": "polite" }, "Point at a token, or use the arrow keys.");
  const spans = tokens.map((token, index) => {
    const push = strength(token);
    return h("span", { class: `tok ${push > 0 ? "up" : push < 0 ? "down" : ""}`, "--push": Math.sqrt(Math.abs(push) / most),
      onmouseenter: () => choose(index), onclick: () => choose(index) }, token.text);
  });
  let chosen = -1;
  function choose(index) {
    spans[chosen]?.classList.remove("chosen");
    chosen = Math.min(spans.length - 1, Math.max(0, index));
    spans[chosen].classList.add("chosen");
    fill(detail, describe(tokens[chosen]));
  }
  const box = h("div", { class: "tokens", role: "group", tabindex: "0", "aria-label": "Tokens of the reply, coloured by what training did to them",
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { event.preventDefault(); choose(chosen + step); }
    } }, spans);
  return h("div", {}, summary(turn), box, detail, turn.taught.map((one) => h("div", { class: "taught" },
    h("div", { class: "bubble user" }, one.asked), h("div", { class: "bubble assistant" }, one.answer))));
}

/** If only the alternatives have an advantage, the token's own is the negative of their sum. */
const strength = (token) => token.advantage || -token.candidates.reduce((sum, one) => sum + one.advantage, 0) || 0;

function summary({ tokens, taught }) {
  const pushed = tokens.some((token) => token.advantage !== null);
  if (!pushed && taught.length) return h("p", { class: "small muted" },
    `This reply was not trained on. Instead, the model learned ${plural(taught.length, "answer")} that it gave when it was told the hint; they are below.`);
  if (!pushed) return h("p", { class: "small muted" }, "No training step used this reply.");
  const up = tokens.filter((token) => strength(token) > 0).length, down = tokens.filter((token) => strength(token) < 0).length;
  return h("p", { class: "small muted" }, `Of ${tokens.length} tokens, ${up} were made likelier (green) and ${down} less likely (red).`);
}

function describe(token) {
  const said = JSON.stringify(token.text).slice(1, -1) || "(end)";
  const chance = `${num(100 * Math.exp(token.logprob), 1)} % likely when it was sampled`;
  const others = [...token.candidates].sort((a, b) => b.advantage - a.advantage)
    .map((one) => `${JSON.stringify(one.text).slice(1, -1)} ${signed(one.advantage)}`).join(", ");
  return [h("b", { class: "mono" }, said), ` · ${chance}`, token.advantage === null ? "" : ` · advantage ${signed(strength(token))}`,
    token.forced ? " · forced by a grammar" : "", others && h("div", { class: "muted" }, `alternatives: ${others}`)];
}

const signed = (value) => `${value > 0 ? "+" : ""}${num(value, 3)}`;
