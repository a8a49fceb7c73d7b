"""Pydantic AI: typed replies by a forced tool, history as its own messages."""

from __future__ import annotations

from typing import Any

from common import HELLO, KEY, MODEL, TURNS, URL, main
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.output import NativeOutput
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS: Any = {"temperature": 0, "max_tokens": 150}


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


def agent(output: Any = str, key: str = KEY, name: str = MODEL) -> Agent[None, Any]:
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=URL, api_key=key))
    return Agent(model, output_type=output, model_settings=SETTINGS, retries=0)


def plain(text: str, key: str, name: str) -> Any:
    return agent(str, key, name).run_sync(text).output


def streamed() -> str:
    pieces = list(agent().run_stream_sync(HELLO).stream_text(delta=True, debounce_by=None))
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    return agent(ToolOutput(Pair)).run_sync(HELLO).output.model_dump()


def structured() -> Any:
    return agent(NativeOutput(Pair)).run_sync(HELLO).output.model_dump()


def turns() -> int:
    history: Any = None
    for text in TURNS:
        history = agent().run_sync(text, message_history=history).all_messages()
    return len(history)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
