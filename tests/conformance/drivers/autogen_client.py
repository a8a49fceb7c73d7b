"""AutoGen: its model client, and an agent that keeps the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from pydantic import BaseModel, Field


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


def get_weather(city: str) -> str:
    return f"sunny in {city}"


def client(key: str = KEY, model: str = MODEL) -> OpenAIChatCompletionClient:
    can: Any = dict.fromkeys(("function_calling", "json_output", "structured_output"), True)
    info = {**can, "vision": False, "family": "unknown"}
    return OpenAIChatCompletionClient(
        model=model, base_url=URL, api_key=key, max_retries=0, model_info=info, **SIZE
    )


def create(text: str, key: str = KEY, model: str = MODEL, **options: Any) -> Any:
    return asyncio.run(
        client(key, model).create([UserMessage(content=text, source="user")], **options)
    ).content


def plain(text: str, key: str, model: str) -> Any:
    return create(text, key, model)


def streamed() -> str:
    async def pieces() -> list[str]:
        stream = client().create_stream([UserMessage(content=HELLO, source="user")])
        return [piece async for piece in stream if isinstance(piece, str)]

    found = asyncio.run(pieces())
    assert len(found) > 3
    return "".join(found)


def tools() -> Any:
    tool = FunctionTool(get_weather, description="The weather in a city.")
    return create("Weather in Rome?", tools=[tool], tool_choice="required")[0].name


def structured() -> Any:
    return Pair.model_validate_json(create(HELLO, json_output=Pair)).model_dump()


def turns() -> int:
    async def talk() -> int:
        agent = AssistantAgent("assistant", client(), system_message="You are helpful.")
        return len([await agent.run(task=text) for text in TURNS])

    return asyncio.run(talk())


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
