"""Semantic Kernel's chat completion service."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory, FunctionCallContent
from semantic_kernel.functions import kernel_function


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


class Weather:
    @kernel_function(description="The weather in a city.")
    def get_weather(self, city: Annotated[str, "Its name."]) -> str:
        return f"sunny in {city}"


def service(key: str = KEY, model: str = MODEL) -> OpenAIChatCompletion:
    client = AsyncOpenAI(base_url=URL, api_key=key, max_retries=0)
    return OpenAIChatCompletion(ai_model_id=model, async_client=client)


def asked(text: str) -> ChatHistory:
    history = ChatHistory()
    history.add_user_message(text)
    return history


def answer(history: ChatHistory, *of: str, kernel: Kernel | None = None, **options: Any) -> Any:
    settings = OpenAIChatPromptExecutionSettings(**SIZE, **options)
    return asyncio.run(service(*of).get_chat_message_content(history, settings, kernel=kernel))


def plain(text: str, key: str, model: str) -> str:
    return str(answer(asked(text), key, model))


def streamed() -> str:
    async def pieces() -> list[str]:
        settings = OpenAIChatPromptExecutionSettings(**SIZE)
        stream = service().get_streaming_chat_message_content(asked(HELLO), settings)
        return [str(piece) async for piece in stream]

    found = asyncio.run(pieces())
    assert len(found) > 3
    return "".join(found)


def tools() -> Any:
    kernel = Kernel()
    kernel.add_plugin(Weather(), "weather")
    forced = FunctionChoiceBehavior.Required(auto_invoke=False)
    reply = answer(asked("Weather in Rome?"), kernel=kernel, function_choice_behavior=forced)
    return next(item.function_name for item in reply.items if isinstance(item, FunctionCallContent))


def structured() -> Any:
    return Pair.model_validate_json(str(answer(asked(HELLO), response_format=Pair))).model_dump()


def turns() -> int:
    history = ChatHistory()
    for text in TURNS:
        history.add_user_message(text)
        history.add_message(answer(history))
    return len(history)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
