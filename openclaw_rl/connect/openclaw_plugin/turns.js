// What is known about a model request: its session, and whether a user is talking in it. Nothing is guessed here.
// A request about which nothing is known gets no header, and the server looks at its text.

// Runs that OpenClaw starts by itself inside a user's session. Nobody answers their replies.
const BY_ITSELF = new Set(["heartbeat", "memory", "cron"]);
const MAX_RUNS = 2000;

export class Runs {
  #runs = new Map();

  // The context of a hook that OpenClaw calls once at the beginning of every run of an agent.
  began({ runId, trigger, sessionKey } = {}) {
    if (!runId) return;
    this.#runs.delete(runId);
    this.#runs.set(runId, { trigger: trigger ?? "", sessionKey });
    if (this.#runs.size > MAX_RUNS) this.#runs.delete(this.#runs.keys().next().value);
  }

  // OpenClaw's own name of the conversation; the options as below.
  sessionKey({ requestId } = {}) {
    return this.#runs.get(runOf(requestId))?.sessionKey;
  }

  // The options of one model call. Its requestId is "<run id>:model:<n>"; the run id of a compaction is
  // "<session id>:compaction:<id>", and the one that reports a finished sub-agent begins with "announce:".
  headers({ requestId, sessionId } = {}) {
    const runId = runOf(requestId);
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
    const run = this.#runs.get(runId);
    if (run === undefined) return undefined;
    return BY_ITSELF.has(run.trigger) ? "side" : "main";
  }
}

function runOf(requestId = "") {
  return requestId.replace(/:model:\d+$/, "");
}
