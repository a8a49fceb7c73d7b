// Renders models' Markdown as elements: paragraphs, headings, lists, code, emphasis. Never inserts HTML.

import { h } from "./dom.js";

export function markdown(text) {
  const blocks = [];
  let list = null, code = null, lines = [];
  const flush = () => { if (lines.length) blocks.push(h("p", {}, inline(lines.join("\n")))); lines = []; };
  for (const line of text.split("\n")) {
    if (code) {
      if (/^\s*```/.test(line)) code = null;
      else code.textContent += (code.textContent ? "\n" : "") + line;
      continue;
    }
    const heading = /^(#{1,4})\s+(.*)/.exec(line), item = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)/.exec(line);
    if (!item) list = null;
    if (/^\s*```/.test(line)) { flush(); code = h("code", {}); blocks.push(h("pre", { tabindex: "0" }, code)); }
    else if (heading) { flush(); blocks.push(h("p", { class: "md-head" }, inline(heading[2]))); }
    else if (item) {
      flush();
      const tag = item[1] ? "ol" : "ul";
      if (!list || list.tagName.toLowerCase() !== tag) { list = h(tag, { class: "md-list", ...(item[1] ? { start: item[1] } : {}) }); blocks.push(list); }
      list.append(h("li", {}, inline(item[2])));
    } else if (!line.trim()) flush();
    else lines.push(line);
  }
  flush();
  return blocks;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*)/).map((part) =>
    /^`.+`$/.test(part) ? h("code", {}, part.slice(1, -1)) : /^\*\*.+\*\*$/.test(part) ? h("strong", {}, part.slice(2, -2))
      : /^\*.+\*$/.test(part) ? h("em", {}, part.slice(1, -1)) : part);
}
