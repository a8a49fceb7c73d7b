// Tells the server about reactions, in the order in which they were given. A server that cannot be reached is asked
// again a few times; a reaction that it refuses is dropped.
import { notices } from "./notices.js";

const WAITS_MS = [1000, 5000, 30_000];
const TIMEOUT_MS = 15_000;
const MAX_LENGTH = 200;

export class Reactions {
  #told = new Set();
  #last = Promise.resolve();

  constructor(messages, provider, warn = () => {}, waitsMs = WAITS_MS) {
    Object.assign(this, { messages, provider, warn, waitsMs });
  }

  // The messages of one model call. A run makes several with the same notices.
  read(sessionKey, context) {
    for (const notice of notices(context?.messages)) {
      const id = this.messages.replyShownBy(notice, sessionKey);
      const name = JSON.stringify([sessionKey, notice]);
      if (!id || this.#told.has(name)) continue;
      this.#told.add(name);
      if (this.#told.size > MAX_LENGTH * 10) this.#told.delete(this.#told.values().next().value);
      const { emoji, action, at } = notice;
      const who = `${notice.channel}:${notice.who}`.slice(0, MAX_LENGTH);
      this.#last = this.#last.then(() => this.#tell({ id, emoji, action, who, at }));
    }
    return this.#last;
  }

  async #tell(reaction) {
    for (const wait of [...this.waitsMs, undefined]) {
      const status = await this.#post(reaction);
      if (status < 500 && status !== 429) return;
      if (wait === undefined) return this.warn(`a reaction was not delivered: ${status}`);
      await new Promise((resolve) => setTimeout(resolve, wait).unref());
    }
  }

  // The response's status; 599 if there is none.
  async #post(reaction) {
    const { baseUrl, apiKey } = this.provider() ?? {};
    if (typeof baseUrl !== "string" || typeof apiKey !== "string") return 400;
    try {
      const response = await fetch(`${baseUrl}/reactions`, {
        method: "POST",
        headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json" },
        body: JSON.stringify(reaction),
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      await response.arrayBuffer();
      return response.status;
    } catch {
      return 599;
    }
  }
}
