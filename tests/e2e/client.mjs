// Talks to a running server through the official npm client and prints what it got as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "Name three colours." }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
// The default model is small: it calls a tool when the conversation shows how.
const conversation = ["London", "Rome", "Berlin"].flatMap((city, index) => [
  { role: "user", content: `What is the weather in ${city}?` },
  {
    role: "assistant",
    content: null,
    tool_calls: [
      { id: `c${index}`, type: "function", function: { name: "get_weather", arguments: `{"city": "${city}"}` } },
    ],
  },
  { role: "tool", tool_call_id: `c${index}`, content: "sunny" },
  { role: "assistant", content: `It is sunny in ${city}.` },
]);
conversation.push({ role: "user", content: "What is the weather in Paris?" });
const seen = {};

const whole = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
seen.whole = { id: whole.id, choice: whole.choices[0], usage: whole.usage };

const stream = await client.chat.completions.create({
  model,
  messages,
  max_tokens: 12,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
seen.streamed = { content: "", chunks: 0 };
for await (const chunk of stream) {
  seen.streamed.id = chunk.id;
  seen.streamed.chunks += 1;
  seen.streamed.content += chunk.choices[0]?.delta?.content ?? "";
  seen.streamed.finish_reason = chunk.choices[0]?.finish_reason ?? seen.streamed.finish_reason;
  seen.streamed.usage = chunk.usage ?? seen.streamed.usage;
}

const helper = client.chat.completions.stream({ model, messages, max_tokens: 12, temperature: 0 });
seen.helper = (await helper.finalChatCompletion()).choices[0].message.content;

const called = await client.chat.completions.create({
  model,
  messages: conversation,
  tools,
  temperature: 0,
  max_tokens: 64,
});
seen.tools = called.choices[0];

const calledStream = client.chat.completions.stream({
  model,
  messages: conversation,
  tools,
  temperature: 0,
  max_tokens: 64,
});
seen.toolsStreamed = (await calledStream.finalChatCompletion()).choices[0];

seen.errors = {};
for (const [name, request] of Object.entries({
  unknownModel: { model: "gpt-9", messages },
  badRequest: { model, messages, temperature: 9 },
})) {
  try {
    await client.chat.completions.create(request);
  } catch (error) {
    seen.errors[name] = { kind: error.constructor.name, status: error.status, code: error.code };
  }
}
try {
  await client.withOptions({ apiKey: "wrong" }).models.list();
} catch (error) {
  seen.errors.wrongKey = { kind: error.constructor.name, status: error.status, code: error.code };
}

seen.models = [];
for await (const entry of client.models.list()) seen.models.push(entry.id);

console.log(JSON.stringify(seen));
