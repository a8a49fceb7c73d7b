// The plugin against a stand-in for OpenClaw's plugin API; tests/openclaw runs it in the real client.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import plugin from "../../openclaw_rl/connect/openclaw_plugin/index.js";
import { Messages } from "../../openclaw_rl/connect/openclaw_plugin/messages.js";
import { notices } from "../../openclaw_rl/connect/openclaw_plugin/notices.js";
import { Reactions } from "../../openclaw_rl/connect/openclaw_plugin/reactions.js";
import { Runs } from "../../openclaw_rl/connect/openclaw_plugin/turns.js";
import manifest from "../../openclaw_rl/connect/openclaw_plugin/openclaw.plugin.json" with { type: "json" };
import packed from "../../openclaw_rl/connect/openclaw_plugin/package.json" with { type: "json" };

function registered(pluginConfig) {
  const hooks = {};
  let provider;
  plugin.register({
    pluginConfig,
    on: (name, hook) => (hooks[name] = hook),
    registerProvider: (given) => (provider = given),
  });
  const sent = [];
  const call = provider.wrapStreamFn({
    streamFn: (model, context, options) => {
      sent.push({ model, context, options });
      return "the stream";
    },
  });
  return { hooks, provider, sent, call };
}

test("the names agree wherever they are written", () => {
  const { provider } = registered();
  const names = [plugin.id, provider.id, manifest.id, ...manifest.providers, packed.name, ...packed.openclaw.providers];
  assert.deepEqual(new Set(names), new Set(["openclaw-rl"]));
  assert.equal(manifest.version, packed.version);
});

test("a person's turn says its session and that it is one", () => {
  const { hooks, sent, call } = registered();
  hooks.before_model_resolve({}, { runId: "r1", trigger: "user" });
  assert.equal(call("model", "context", { requestId: "r1:model:3", sessionId: "s1", headers: { a: "b" } }), "the stream");
  assert.deepEqual(sent, [
    {
      model: "model",
      context: "context",
      options: {
        requestId: "r1:model:3",
        sessionId: "s1",
        headers: { a: "b", "X-Session-Id": "s1", "X-Turn-Type": "main" },
      },
    },
  ]);
});

for (const trigger of ["heartbeat", "memory", "cron"]) {
  test(`a ${trigger} run is on the side`, () => {
    const runs = new Runs();
    runs.began({ runId: "r", trigger });
    assert.deepEqual(runs.headers({ requestId: "r:model:0", sessionId: "s" }), { "X-Session-Id": "s", "X-Turn-Type": "side" });
  });
}

test("a compaction is on the side of the session that it shortens", () => {
  const options = { requestId: "s1:compaction:c9:model:0" };
  assert.deepEqual(new Runs().headers(options), { "X-Session-Id": "s1", "X-Turn-Type": "side" });
});

test("the report of a finished sub-agent is on the side, whoever started the run", () => {
  const runs = new Runs();
  runs.began({ runId: "announce:v1:x", trigger: "user" });
  assert.equal(runs.headers({ requestId: "announce:v1:x:model:0" })["X-Turn-Type"], "side");
});

test("of what is not known, nothing is said", () => {
  assert.deepEqual(new Runs().headers({ requestId: "title-1", sessionId: "" }), {});
  assert.deepEqual(new Runs().headers(undefined), {});
  const { sent, call } = registered();
  call("model", "context", undefined);
  assert.deepEqual(sent[0].options, { headers: {} });
});

test("a system prompt of one's own is for this provider's models", () => {
  const hook = registered({ systemPrompt: "Be kind." }).hooks.before_prompt_build;
  assert.deepEqual(hook({}, { modelProviderId: "openclaw-rl" }), { systemPrompt: "Be kind." });
  assert.equal(hook({}, { modelProviderId: "acme" }), undefined);
  assert.equal(registered().hooks.before_prompt_build, undefined);
  assert.equal(registered({}).hooks.before_prompt_build, undefined);
});

test("runs are forgotten, the oldest first", () => {
  const runs = new Runs();
  for (let i = 0; i <= 2000; i++) runs.began({ runId: `r${i}`, trigger: "user" });
  assert.equal(runs.headers({ requestId: "r0:model:0" })["X-Turn-Type"], undefined);
  assert.equal(runs.headers({ requestId: "r1:model:0" })["X-Turn-Type"], "main");
  runs.began();
});

test("old messages stay as they were sent, and nothing is wrapped where there is nothing", () => {
  const { provider } = registered();
  assert.deepEqual(provider.buildReplayPolicy(), { sanitizeToolCallIds: false, appendOnlyRuntimeContext: true });
  assert.equal(provider.wrapStreamFn({}), undefined);
});

function carrier(...lines) {
  const text = `<<<BEGIN>>>\nConversation data:\n${JSON.stringify(lines.join("\n"))}\n<<<END>>>`;
  return { role: "user", content: [{ type: "text", text }], runtimeContextCarrier: true };
}

const NOTICE = "System: [2026-09-07 10:00:00 UTC] Telegram reaction added: 👍 by Alice (@alice) on msg 42";

for (const [line, channel, who, messageId] of [
  [NOTICE, "telegram", "Alice (@alice)", "42"],
  ["System: [x] Slack reaction added: 👍 by ann in #general msg 1725.0001 from claw", "slack", "ann", "1725.0001"],
  ["System: [x] Discord super reaction added: 👍 by ann on guild #general msg 7", "discord", "ann", "7"],
  ["System: [x] Matrix reaction added: 👍 by ann on msg $abc", "matrix", "ann", "$abc"],
  ["System: [x] Signal reaction added: 👍 by ann msg 17 from +1 in Family", "signal", "ann", "17"],
  ["System: [x] Mattermost reaction added: 👍 by @ann on post p1 in channel c1", "mattermost", "@ann", "p1"],
]) {
  test(`a notice of ${channel}`, () => {
    const [found] = notices([carrier(line)]);
    assert.deepEqual({ ...found, at: undefined }, { channel, who, messageId, emoji: "👍", action: "added", at: undefined });
  });
}

test("only what OpenClaw itself wrote with the latest message is a notice", () => {
  assert.equal(notices([carrier(NOTICE)])[0].at, Date.UTC(2026, 8, 7, 10) / 1000);
  assert.equal(notices([carrier("hello", NOTICE, NOTICE)]).length, 2);
  assert.deepEqual(notices([{ role: "user", content: NOTICE }]), []);
  assert.deepEqual(notices([carrier(NOTICE), { role: "assistant", content: "Ok." }, carrier("hello")]), []);
  assert.deepEqual(notices([carrier(`User: ${NOTICE}`), carrier(`a\\n${NOTICE}`)]), []);
  assert.deepEqual(notices([carrier(NOTICE.replace("Alice", "Eve on msg 1"))]), [], "a name that names a message");
  assert.deepEqual(notices(undefined), []);
});

function shown(messages, messageId, session = "s") {
  return messages.replyShownBy({ channel: "telegram", messageId }, session);
}

test("a message belongs to the newest reply of its session that it shows", () => {
  const messages = new Messages();
  const sent = (messageId, content, sessionKey, conversationId = "telegram:1") =>
    messages.sent({ success: true, messageId, content, sessionKey }, { channelId: "telegram", conversationId });
  messages.began({ channel: "telegram", chatId: "1", sessionKey: "s" });
  const text = "**One** of the replies.\n- and more";
  for (const responseId of ["old", "new"]) messages.replied("s", { responseId, content: [{ type: "text", text }] });
  sent("1", "One of the replies.\n• and more", "s");
  sent("2", "of the replies", undefined);
  sent("3", "the", "s");
  sent("4", "somebody else's", "s");
  sent("5", "One of the replies.", "t");
  assert.deepEqual(["1", "2", "3", "4", "5"].map((id) => shown(messages, id)), ["new", "new", undefined, undefined, undefined]);
  assert.equal(shown(messages, "1", "t"), undefined);
  sent("1", "One of the replies.", "s", "telegram:2");
  assert.equal(shown(messages, "1"), undefined, "two chats of a session have a message 1");
});

test("what failed or cannot be named is not remembered", () => {
  const messages = new Messages();
  messages.replied("s", { responseId: "r", content: "Hello there, everybody" });
  messages.replied("s", undefined);
  messages.replied(undefined, { responseId: "r2", content: "Hello" });
  messages.sent({ success: false, messageId: "1", content: "Hello there, everybody", sessionKey: "s" }, { channelId: "telegram" });
  messages.sent({ success: true, content: "Hello there, everybody", sessionKey: "s" }, { channelId: "telegram" });
  messages.sent();
  messages.began();
  assert.equal(shown(messages, "1"), undefined);
});

test("a reaction is told once, again if nobody listens, and not again if it is refused", async () => {
  const told = [];
  const statuses = [503, 200, 404];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    told.push([request.url, request.headers.authorization, JSON.parse(body)]);
    response.writeHead(statuses.shift()).end();
  }).listen(0);
  const provider = { baseUrl: `http://127.0.0.1:${server.address().port}/v1`, apiKey: "k" };
  const messages = { replyShownBy: ({ messageId }) => (messageId === "42" ? "reply" : undefined) };
  const reactions = new Reactions(messages, () => provider, undefined, [1]);
  const removed = NOTICE.replace("added", "removed");
  const context = { messages: [carrier(NOTICE, removed, NOTICE.replace("42", "43"))] };
  reactions.read("s", context);
  await reactions.read("s", context);
  server.close();
  const sent = (action) => ["/v1/reactions", "Bearer k", { id: "reply", emoji: "👍", action, who: "telegram:Alice (@alice)", at: 1788775200 }];
  assert.deepEqual(told, [sent("added"), sent("added"), sent("removed")]);
});

test("a server that stays away is named in the log", async () => {
  const said = [];
  const provider = { baseUrl: "http://127.0.0.1:9/v1", apiKey: "k" };
  const reactions = new Reactions({ replyShownBy: () => "reply" }, () => provider, (text) => said.push(text), []);
  await reactions.read("s", { messages: [carrier(NOTICE)] });
  assert.equal(said.length, 1);
});

test("a stream that fails is OpenClaw's to report", async () => {
  let provider;
  plugin.register({ on: () => {}, registerProvider: (given) => (provider = given) });
  const stream = { result: () => Promise.reject(new Error("cut")) };
  const call = provider.wrapStreamFn({ streamFn: () => stream });
  assert.equal(call("model", { messages: [] }, {}), stream);
  await new Promise(setImmediate);
});
