"""OpenAI's Agents SDK, over the Responses API."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from common import HELLO, KEY, MODEL, TURNS, URL, main
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


@function_tool
def take(pair: Pair) -> str:
    """Takes two colours."""
    return "taken"


def agent(key: str = KEY, name: str = MODEL, **more: Any) -> Agent[None]:
    client = AsyncOpenAI(base_url=URL, api_key=key, max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=150, tool_choice=more.pop("tool_choice", None))
    return Agent(name="helper", model=OpenAIResponsesModel(name, client), model_settings=settings, **more)


def plain(text: str, key: str, name: str) -> Any:
    return Runner.run_sync(agent(key, name), text).final_output


def streamed() -> str:
    async def stream() -> list[str]:
        events = Runner.run_streamed(agent(), HELLO).stream_events()
        raw = [event.data async for event in events if event.type == "raw_response_event"]
        return [one.delta for one in raw if one.type == "response.output_text.delta"]

    pieces = asyncio.run(stream())
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    helper = agent(tools=[take], tool_choice="required", tool_use_behavior="stop_on_first_tool")
    return Runner.run_sync(helper, HELLO).final_output


def structured() -> Any:
    return Runner.run_sync(agent(output_type=Pair), HELLO).final_output.model_dump()


def turns() -> int:
    """Replies of a given shape: the SDK takes one that is cut off for a failure."""
    said: Any = []
    for text in TURNS:
        said = Runner.run_sync(
            agent(output_type=Colour), [*said, {"role": "user", "content": text}]
        ).to_input_list()
    return len(said)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
