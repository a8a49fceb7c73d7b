"""LiteLLM as a client."""

from __future__ import annotations

from typing import Any

import litellm
from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
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
        "parameters": {
            "type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"],
            "$defs": {"City": {"type": "string", "maxLength": 20}},
        },
    },
}  # fmt: skip


def ask(messages: list[Any], key: str = KEY, model: str = MODEL, **options: Any) -> Any:
    return litellm.completion(
        model=f"openai/{model}",
        api_base=URL,
        api_key=key,
        messages=messages,
        max_retries=0,
        **SIZE,
        **options,
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def plain(text: str, key: str, model: str) -> Any:
    return ask([user(text)], key, model).choices[0].message.content


def streamed() -> str:
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask([user(HELLO)], stream=True)]
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    answer = ask([user("Weather in Rome?")], tools=[WEATHER], tool_choice="required")
    return answer.choices[0].message.tool_calls[0].function.name


def structured() -> Any:
    text = ask([user(HELLO)], response_format=Pair).choices[0].message.content
    return Pair.model_validate_json(text).model_dump()


def turns() -> int:
    talk: list[Any] = []
    for text in TURNS:
        talk.append(user(text))
        talk.append(ask(talk).choices[0].message)
    return len(talk)


if __name__ == "__main__":
    main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
