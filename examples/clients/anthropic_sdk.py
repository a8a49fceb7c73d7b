"""Anthropic's Python SDK: messages, streamed, with a tool and its result.

eval "$(openclaw-rl connect env)" && python examples/clients/anthropic_sdk.py
"""

from __future__ import annotations

import os
from typing import Any

import anthropic

client = anthropic.Anthropic()  # ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
model = os.environ["ANTHROPIC_MODEL"]
talk: list[Any] = [{"role": "user", "content": "Name three colours."}]

print(client.messages.count_tokens(model=model, messages=talk).input_tokens, "tokens asked")
with client.messages.stream(model=model, max_tokens=24, system="Be brief.", messages=talk) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    first = stream.get_final_message()

talk += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Which one is warm?"}]
second = client.messages.create(model=model, max_tokens=24, system="Be brief.", messages=talk)
print("\n" + "".join(block.text for block in second.content if block.type == "text"))

weather: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
talk = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.messages.create(
    model=model, max_tokens=80, messages=talk, tools=[weather], tool_choice={"type": "any"}
)
for call in called.content:
    if call.type == "tool_use":
        print(call.name, call.input)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        talk += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
last = client.messages.create(model=model, max_tokens=24, messages=talk, tools=[weather])
print(last.stop_reason)
