// OpenClaw's side of OpenClaw-RL. It adds two headers to requests that go to this provider, and asks OpenClaw to
// resend old messages unchanged, so that the server need not process them again. If its settings hold a system
// prompt, models of this provider get that one. It reads no message, stores only the ids of recent runs, and sends
// nothing anywhere else.
import { Runs } from "./turns.js";

const ID = "openclaw-rl";

export default {
  id: ID,
  name: "OpenClaw-RL",
  description: "Tells an OpenClaw-RL server which session a request belongs to and what kind of turn it is",
  register(api) {
    const runs = new Runs();
    api.on("before_model_resolve", (_event, context) => {
      runs.began(context);
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
        return (model, context, options) =>
          streamFn(model, context, { ...options, headers: { ...options?.headers, ...runs.headers(options) } });
      },
    });
  },
};
