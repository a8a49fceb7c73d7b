"""LlamaIndex, through its class for servers like OpenAI's."""

from __future__ import annotations

from typing import Any

from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field


class Colour(BaseModel):
    """A colour."""

    name: str = Field(max_length=20)


class Pair(BaseModel):
    """Two colours."""

    first: Colour
    second: Colour


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def llm(key: str = KEY, model: str = MODEL) -> OpenAILike:
    return OpenAILike(
        api_base=URL, api_key=key, model=model, is_chat_model=True, is_function_calling_model=True,
        max_retries=0, context_window=8192, **SIZE,
    )  # fmt: skip


def plain(text: str, key: str, model: str) -> Any:
    return llm(key, model).chat([ChatMessage(role="user", content=text)]).message.content


def streamed() -> Any:
    pieces = [one.delta or "" for one in llm().stream_chat([ChatMessage(role="user", content=HELLO)])]
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    tool = FunctionTool.from_defaults(get_weather)
    answer = llm().chat_with_tools([tool], user_msg="Weather in Rome?", tool_required=True)
    return llm().get_tool_calls_from_response(answer)[0].tool_name


def structured() -> Any:
    return llm().as_structured_llm(Pair).chat([ChatMessage(role="user", content=HELLO)]).raw.model_dump()


def turns() -> int:
    talk: list[ChatMessage] = []
    for text in TURNS:
        talk.append(ChatMessage(role="user", content=text))
        talk.append(llm().chat(talk).message)
    return len(talk)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
