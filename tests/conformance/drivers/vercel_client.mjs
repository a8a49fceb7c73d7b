// Vercel's AI SDK with its default OpenAI model, which speaks the Responses API and refers to its replies.
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: name } = process.env;
const size = { temperature: 0, maxOutputTokens: 150, maxRetries: 0 };
const model = (key = apiKey, of = name) => createOpenAI({ baseURL, apiKey: key })(of);
const hello = "Name three colours.";
const said = ["My name is Ada.", "What is my name?", "Thanks, that was right."];
const Colour = z.object({ name: z.string().max(20) });
const Tree = z.object({ name: z.string().max(20), get children() { return z.array(Tree).max(1); } });

const plain = async (prompt, key, of) => (await generateText({ model: model(key, of), prompt, ...size })).text;
const scenarios = {
  plain: () => plain(hello),
  wrong_key: () => plain(hello, "wrong"),
  unknown_model: () => plain(hello, apiKey, "gpt-9"),
  too_long: () => plain("word ".repeat(9000)),
  streamed: async () => {
    const pieces = [];
    for await (const piece of streamText({ model: model(), prompt: hello, ...size }).textStream) pieces.push(piece);
    if (pieces.length < 4) throw new Error("not streamed");
    return pieces.join("");
  },
  tools: async () => {
    const tools = { plant: tool({ description: "Plants a tree", inputSchema: Tree }) };
    const reply = await generateText({ model: model(), prompt: hello, tools, toolChoice: "required", ...size });
    return reply.toolCalls[0].toolName;
  },
  structured: async () => {
    const schema = z.object({ first: Colour, second: Colour, counts: z.record(z.string(), z.number()) });
    return (await generateObject({ model: model(), schema, prompt: hello, ...size })).object;
  },
  turns: async () => {
    const messages = [];
    for (const content of said) {
      messages.push({ role: "user", content });
      messages.push(...(await generateText({ model: model(), messages, ...size })).response.messages);
    }
    return messages.length;
  },
};

for (const scenario of process.argv.slice(2)) {
  try {
    console.log(JSON.stringify({ scenario, result: await scenarios[scenario]() }));
  } catch (error) {
    const said = `${error.name} ${error.statusCode}: ${error.message} ${error.responseBody}`;
    console.log(JSON.stringify({ scenario, error: said }));
  }
}
