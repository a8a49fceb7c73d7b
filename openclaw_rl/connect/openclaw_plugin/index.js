// OpenClaw's side of OpenClaw-RL. It adds two headers to requests that go to this provider, and asks OpenClaw to
// resend old messages unchanged, so that the server need not process them again. It tells the server when somebody
// reacts to a message that shows one of its replies. If its settings hold a system prompt, models of this provider get
// that one. It writes no file, keeps only ids and the latest replies in memory, and sends nothing anywhere else.
import { Messages, shared } from "./messages.js";
import { Reactions } from "./reactions.js";
import { Runs } from "./turns.js";

const ID = "openclaw-rl";

export default {
  id: ID,
  name: "OpenClaw-RL",
  description: "Tells an OpenClaw-RL server which session and kind of turn a request belongs to, and who reacts to its replies",
  register(api) {
    const runs = new Runs();
    const messages = new Messages(shared());
    const reactions = new Reactions(
      messages,
      () => api.config?.models?.providers?.[ID],
      (text) => api.logger?.warn(`${ID}: ${text}`),
    );
    api.on("before_model_resolve", (_event, context) => {
      runs.began(context);
      messages.began(context);
    });
    api.on("message_sent", (event, context) => {
      messages.sent(event, context);
    });
    const systemPrompt = api.pluginConfig?.systemPrompt;
    if (systemPrompt) {
      api.on("before_prompt_build", (_event, context) =>
        context?.modelProviderId === ID ? { systemPrompt } : undefined,
      );
    }
    api.registerProvider({
      id: ID,
      label: "OpenClaw-RL",
      auth: [],
      buildReplayPolicy: () => ({ sanitizeToolCallIds: false, appendOnlyRuntimeContext: true }),
      wrapStreamFn({ streamFn }) {
        if (!streamFn) return undefined;
        return (model, context, options) => {
          const sessionKey = runs.sessionKey(options);
          reactions.read(sessionKey, context);
          const headers = { ...options?.headers, ...runs.headers(options) };
          const stream = streamFn(model, context, { ...options, headers });
          noteReply(stream, (reply) => messages.replied(sessionKey, reply));
          return stream;
        };
      },
    });
  },
};

// The stream is OpenClaw's; whatever goes wrong with it is told there.
async function noteReply(stream, note) {
  try {
    note(await (await stream).result?.());
  } catch {
    // No reply, so nothing to react to.
  }
}
