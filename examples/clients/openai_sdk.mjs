// OpenAI's JavaScript SDK: the Responses API, streamed, with a tool, and continued by id.
//   eval "$(openclaw-rl connect env)" && npm install openai && node examples/clients/openai_sdk.mjs
import OpenAI from "openai";

const client = new OpenAI(); // OPENAI_BASE_URL and OPENAI_API_KEY
const model = process.env.OPENAI_MODEL;

const stream = client.responses.stream({ model, input: "Name three colours.", max_output_tokens: 24 });
for await (const event of stream) {
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
}
const first = await stream.finalResponse();

const second = await client.responses.create({
  model,
  input: "Which one is warm?",
  previous_response_id: first.id,
  max_output_tokens: 24,
});
console.log(`\n${second.output_text}`);

const called = await client.responses.create({
  model,
  input: "What is the weather in Paris?",
  tools: [
    {
      type: "function",
      name: "get_weather",
      description: "The weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      strict: false,
    },
  ],
  tool_choice: "required",
  max_output_tokens: 80,
});
for (const item of called.output) if (item.type === "function_call") console.log(item.name, item.arguments);

try {
  await client.responses.create({ model: "gpt-9", input: "Hi" });
} catch (error) {
  console.log(error.constructor.name, error.code);
}
