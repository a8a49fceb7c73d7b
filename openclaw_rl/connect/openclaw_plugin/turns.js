// What is known about a model request: its session, and whether a user is talking in it. Nothing is guessed here.
// A request about which nothing is known gets no header, and the server looks at its text.

// Runs that OpenClaw starts by itself inside a user's session. Nobody answers their replies.
const BY_ITSELF = new Set(["heartbeat", "memory", "cron"]);
const MAX_RUNS = 2000;

export class Runs {
  #triggers = new Map();

  // The context of a hook that OpenClaw calls once at the beginning of every run of an agent.
  began({ runId, trigger } = {}) {
    if (!runId) return;
    this.#triggers.delete(runId);
    this.#triggers.set(runId, trigger ?? "");
    if (this.#triggers.size > MAX_RUNS) this.#triggers.delete(this.#triggers.keys().next().value);
  }

  // The options of one model call. Its requestId is "<run id>:model:<n>"; the run id of a compaction is
  // "<session id>:compaction:<id>", and the one that reports a finished sub-agent begins with "announce:".
  headers({ requestId = "", sessionId } = {}) {
    const runId = requestId.replace(/:model:\d+$/, "");
    const compacted = /^(.+?):compaction:/.exec(runId)?.[1];
    const headers = {};
    const session = sessionId || compacted;
    if (session) headers["X-Session-Id"] = session;
    const turn = this.#kind(runId, compacted !== undefined);
    if (turn) headers["X-Turn-Type"] = turn;
    return headers;
  }

  #kind(runId, isCompaction) {
    if (isCompaction || runId.startsWith("announce:")) return "side";
    const trigger = this.#triggers.get(runId);
    if (trigger === undefined) return undefined;
    return BY_ITSELF.has(trigger) ? "side" : "main";
  }
}
