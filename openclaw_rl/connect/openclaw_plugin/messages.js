// Which message in a chat shows which reply of this provider. Only ids are kept, and the texts of the latest replies
// until they are delivered. A message about which there is any doubt belongs to no reply.
import { textOf } from "./notices.js";

const MAX_MESSAGES = 5000;
const MAX_REPLIES = 10;
const MAX_SESSIONS = 500;
// Characters; less of a reply than this could be part of many.
const MIN_PART = 12;

// OpenClaw registers a plugin several times, and calls hooks of one registration and the provider of another.
export function shared() {
  return (globalThis[Symbol.for("openclaw-rl.messages")] ??= {});
}

export class Messages {
  #replies; // session key: the latest replies, newest first
  #chats; // channel and chat: session key
  #shown; // session key, channel and message: reply

  constructor(kept = {}) {
    this.#replies = kept.replies ??= new Map();
    this.#chats = kept.chats ??= new Map();
    this.#shown = kept.shown ??= new Map();
  }

  // The context of a run that began.
  began({ channel, chatId, sessionKey } = {}) {
    if (channel && chatId && sessionKey) put(this.#chats, key(channel, chat(channel, chatId)), sessionKey, MAX_SESSIONS);
  }

  // The message that a model's stream ended with.
  replied(sessionKey, message) {
    const text = folded(textOf(message));
    if (!sessionKey || !message?.responseId || !text) return;
    const earlier = this.#replies.get(sessionKey) ?? [];
    put(this.#replies, sessionKey, [{ id: message.responseId, text }, ...earlier].slice(0, MAX_REPLIES), MAX_SESSIONS);
  }

  // OpenClaw delivered a message.
  sent({ success, messageId, content, to, sessionKey: named } = {}, { channelId, conversationId } = {}) {
    if (!success || !messageId || !channelId) return;
    const conversation = chat(channelId, conversationId ?? to);
    const sessionKey = named ?? this.#chats.get(key(channelId, conversation));
    const reply = shownIn(folded(content), this.#replies.get(sessionKey) ?? []);
    const name = key(sessionKey, channelId, messageId);
    if (!reply && !this.#shown.has(name)) return;
    const other = this.#shown.get(name);
    const same = !other || other.conversation === conversation;
    put(this.#shown, name, { id: same ? reply?.id : undefined, conversation }, MAX_MESSAGES);
  }

  // The id of the reply that a message shows, if it is one of ours.
  replyShownBy({ channel, messageId }, sessionKey) {
    return this.#shown.get(key(sessionKey, channel, messageId))?.id;
  }
}

// A long reply is delivered in parts.
function shownIn(text, replies) {
  const whole = replies.find((reply) => reply.text === text);
  return whole ?? (text.length < MIN_PART ? undefined : replies.find((reply) => reply.text.includes(text)));
}

// Channels change spaces, marks and bullets; letters, digits and emojis stay.
function folded(text) {
  return (text ?? "").normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}\p{Extended_Pictographic}]+/gu, "");
}

function chat(channel, id) {
  return String(id ?? "").replace(`${channel}:`, "");
}

function key(...parts) {
  return JSON.stringify(parts.map((part) => String(part ?? "")));
}

function put(map, name, value, most) {
  map.delete(name);
  map.set(name, value);
  if (map.size > most) map.delete(map.keys().next().value);
}
