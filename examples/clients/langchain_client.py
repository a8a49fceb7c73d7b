"""LangChain: chat, streamed, a tool, a typed answer, and the Responses API.

pip install langchain-openai
eval "$(openclaw-rl connect env)" && python examples/clients/langchain_client.py
"""

from __future__ import annotations

import os
from typing import Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = os.environ["OPENAI_MODEL"]
chat = ChatOpenAI(model=model, max_tokens=24)  # OPENAI_BASE_URL and OPENAI_API_KEY


class Choice(BaseModel):
    """A colour."""

    colour: Literal["red", "green"]


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


talk = [HumanMessage("Name three colours.")]
reply = chat.invoke(talk)
print(reply.content)
for piece in chat.stream([*talk, reply, HumanMessage("Which one is warm?")]):
    print(piece.content, end="", flush=True)

longer = ChatOpenAI(model=model, max_tokens=80)
called = longer.bind_tools([get_weather], tool_choice="required").invoke("What is the weather in Paris?")
print("\n", [(call["name"], call["args"]) for call in called.tool_calls])
print(longer.with_structured_output(Choice, method="json_schema").invoke("Red or green?"))

responses = ChatOpenAI(model=model, max_tokens=24, use_responses_api=True)
print(responses.invoke("Name three animals.").text)
