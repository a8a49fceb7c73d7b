"""OpenAI's Python SDK: the Responses API, streamed, typed, with a tool, and continued by id.

eval "$(openclaw-rl connect env)" && python examples/clients/openai_sdk.py
"""

from __future__ import annotations

import os
from typing import Literal

import openai
from pydantic import BaseModel

client = openai.OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY
model = os.environ["OPENAI_MODEL"]


class Choice(BaseModel):
    colour: Literal["red", "green"]


with client.responses.stream(model=model, input="Name three colours.", max_output_tokens=24) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        if event.type in ("response.completed", "response.incomplete"):  # the latter: cut at 24 tokens
            first = event.response

second = client.responses.create(
    model=model, input="Which one is warm?", previous_response_id=first.id, max_output_tokens=24
)
print(f"\n{second.output_text}")

typed = client.responses.parse(model=model, input="Red or green?", text_format=Choice, max_output_tokens=40)
print(typed.output_parsed)

called = client.responses.create(
    model=model,
    input="What is the weather in Paris?",
    tools=[
        {
            "type": "function",
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
            "strict": False,
        }
    ],
    tool_choice="required",
    max_output_tokens=80,
)
print([(item.name, item.arguments) for item in called.output if item.type == "function_call"])
