// The plugin against a stand-in for OpenClaw's plugin API; tests/openclaw runs it in the real client.
import assert from "node:assert/strict";
import { test } from "node:test";
import plugin from "../../openclaw_rl/connect/openclaw_plugin/index.js";
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
