"""The OpenAI Agents SDK: an agent with a tool, and a second turn of the same conversation.

pip install openai-agents
eval "$(openclaw-rl connect env)" && python examples/clients/agents_sdk.py
"""

from __future__ import annotations

import asyncio
import os

from agents import Agent, ModelSettings, Runner, SQLiteSession, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # traces would go to OpenAI
model = os.environ["OPENAI_MODEL"]


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


async def main() -> None:
    settings = ModelSettings(max_tokens=80, tool_choice="required")
    weather = Agent(
        name="weather",
        model=model,
        tools=[get_weather],
        model_settings=settings,
        tool_use_behavior="stop_on_first_tool",
    )
    print((await Runner.run(weather, "What is the weather in Paris?")).final_output)

    # Without max_tokens: this SDK takes a reply that was cut short for an error.
    settings = ModelSettings(temperature=0)
    talker = Agent(name="talker", model=model, instructions="Be brief.", model_settings=settings)
    memory = SQLiteSession("example")
    print((await Runner.run(talker, "Name three colours.", session=memory)).final_output)
    streamed = Runner.run_streamed(talker, "Which one is warm?", session=memory)
    async for _ in streamed.stream_events():
        pass
    print(streamed.final_output)


asyncio.run(main())
