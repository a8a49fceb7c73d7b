"""CrewAI's language model, as its agents use it."""

from __future__ import annotations

from typing import Any

from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from crewai import LLM
from pydantic import BaseModel, Field


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}


def llm(key: str = KEY, model: str = MODEL, **more: Any) -> LLM:
    return LLM(model=model, provider="openai", base_url=URL, api_key=key, max_retries=0, **SIZE, **more)


def plain(text: str, key: str, model: str) -> Any:
    return llm(key, model).call(text)


def streamed() -> Any:
    return llm(stream=True).call(HELLO)


def tools() -> str:
    """Offered, and called or not: it never forces a call."""
    return repr(llm().call("Weather in Rome?", tools=[WEATHER], available_functions={"get_weather": str}))


def structured() -> Any:
    answer = llm(response_format=Pair).call(HELLO)
    return (Pair.model_validate_json(answer) if isinstance(answer, str) else answer).model_dump()


def turns() -> int:
    talk: list[Any] = []
    for text in TURNS:
        talk.append({"role": "user", "content": text})
        talk.append({"role": "assistant", "content": llm().call(talk)})
    return len(talk)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
