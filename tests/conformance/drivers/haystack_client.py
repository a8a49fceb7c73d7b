"""Haystack's chat generator."""

from __future__ import annotations

from typing import Any

from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from pydantic import BaseModel, Field


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


def generator(key: str = KEY, model: str = MODEL, **more: Any) -> OpenAIChatGenerator:
    options = {**SIZE, **more.pop("generation_kwargs", {})}
    return OpenAIChatGenerator(
        api_key=Secret.from_token(key),
        model=model,
        api_base_url=URL,
        max_retries=0,
        generation_kwargs=options,
        **more,
    )


def ask(text: str, **more: Any) -> ChatMessage:
    return generator(**more).run([ChatMessage.from_user(text)])["replies"][0]


def plain(text: str, key: str, model: str) -> Any:
    return ask(text, key=key, model=model).text


def streamed() -> str:
    pieces: list[str] = []
    ask(HELLO, streaming_callback=lambda chunk: pieces.append(chunk.content or ""))
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    }
    tool = Tool(
        name="get_weather", description="The weather.", parameters=parameters, function=lambda city: "sunny"
    )
    answer = ask("Weather in Rome?", tools=[tool], generation_kwargs={"tool_choice": "required"})
    return answer.tool_calls[0].tool_name


def structured() -> Any:
    return Pair.model_validate_json(
        ask(HELLO, generation_kwargs={"response_format": Pair}).text or ""
    ).model_dump()


def turns() -> int:
    talk: list[ChatMessage] = []
    for text in TURNS:
        talk.append(ChatMessage.from_user(text))
        talk.append(generator().run(talk)["replies"][0])
    return len(talk)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
