// Anthropic's JavaScript SDK: messages, streamed, with a tool and its result.
//   eval "$(openclaw-rl connect env)" && npm install @anthropic-ai/sdk && node examples/clients/anthropic_sdk.mjs
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic(); // ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
const model = process.env.ANTHROPIC_MODEL;
const talk = [{ role: "user", content: "Name three colours." }];

const stream = client.messages.stream({ model, max_tokens: 24, messages: talk });
stream.on("text", (text) => process.stdout.write(text));
const first = await stream.finalMessage();

talk.push({ role: "assistant", content: first.content }, { role: "user", content: "Which one is warm?" });
const second = await client.messages.create({ model, max_tokens: 24, messages: talk });
console.log(`\n${second.content.map((block) => block.text ?? "").join("")}`);

const tools = [
  {
    name: "get_weather",
    description: "The weather in a city",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];
const asked = [{ role: "user", content: "What is the weather in Paris?" }];
const helper = client.messages.stream({
  model,
  max_tokens: 80,
  messages: asked,
  tools,
  tool_choice: { type: "any" },
});
const called = await helper.finalMessage();
const call = called.content.find((block) => block.type === "tool_use");
console.log(call.name, JSON.stringify(call.input));
asked.push({ role: "assistant", content: called.content });
asked.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "sunny" }] });
const last = await client.messages.create({ model, max_tokens: 24, messages: asked, tools });
console.log(last.stop_reason);

try {
  await client.messages.create({ model: "claude-9", max_tokens: 9, messages: talk });
} catch (error) {
  console.log(error.constructor.name, error.status);
}
