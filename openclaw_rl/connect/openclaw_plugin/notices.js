// Reads the notices that OpenClaw's channels write about reactions, such as
// "System: [2026-09-07 10:00:00 UTC] Telegram reaction added: 👍 by Alice (@alice) on msg 42".

const NOTICE =
  /^System: \[([^\]]*)\] (\w+) (?:super )?reaction (added|removed): (\S+) by (.+?)(?: (?:on|in)(?: .*)?)? (?:msg|post) \S+/;
const TARGET = / (?:msg|post) (\S+)/g;

// The notices that came with the latest message. Only OpenClaw writes into the messages that are looked at, so what
// people type is never taken for a notice.
export function notices(messages = []) {
  const latest = messages.slice(messages.findLastIndex(({ role }) => role === "assistant") + 1);
  return latest
    .filter((message) => message.role === "user" && message.runtimeContextCarrier === true)
    .flatMap((message) => lines(textOf(message)))
    .map(parsed)
    .filter(Boolean);
}

export function textOf({ content } = {}) {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => (part?.type === "text" ? part.text : "")).join("");
}

// A block of data is one line of JSON, a string; what is inside keeps its own lines.
function lines(text) {
  return text.split("\n").flatMap((line) => {
    if (!line.startsWith('"')) return [line];
    try {
      return String(JSON.parse(line)).split("\n");
    } catch {
      return [];
    }
  });
}

// A line that names two messages, as one can with a person's display name in it, is about neither.
function parsed(line) {
  const found = NOTICE.exec(line);
  const targets = new Set(Array.from(line.matchAll(TARGET), ([, target]) => target));
  if (!found || targets.size !== 1) return undefined;
  const [, time, channel, action, emoji, who] = found;
  const at = Date.parse(time) / 1000;
  return { channel: channel.toLowerCase(), action, emoji, who, messageId: [...targets][0], at: at || undefined };
}
