"""instructor: every reply is an object, by a forced tool whose schema refers to itself."""

from __future__ import annotations

from typing import Any

import instructor
from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from openai import OpenAI
from pydantic import BaseModel, Field


class Colour(BaseModel):
    name: str = Field(max_length=20)


class Pair(BaseModel):
    first: Colour
    second: Colour


def client(key: str = KEY, mode: instructor.Mode = instructor.Mode.TOOLS) -> Any:
    return instructor.from_openai(OpenAI(base_url=URL, api_key=key, max_retries=0), mode=mode)


def ask(messages: list[Any], shape: type[BaseModel] = Colour, key: str = KEY, model: str = MODEL) -> Any:
    return client(key).chat.completions.create(
        model=model, messages=messages, response_model=shape, max_retries=0, **SIZE
    )


def plain(text: str, key: str, model: str) -> str:
    return str(ask([{"role": "user", "content": text}], Colour, key, model))


def streamed() -> Any:
    partial = client().chat.completions.create_partial(
        model=MODEL, messages=[{"role": "user", "content": HELLO}], response_model=Pair, max_retries=0, **SIZE
    )
    return [one.model_dump() for one in partial][-1]


def tools() -> Any:
    return ask([{"role": "user", "content": HELLO}], Pair).model_dump()


def structured() -> Any:
    return (
        client(mode=instructor.Mode.JSON_SCHEMA)
        .chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": HELLO}],
            response_model=Pair,
            max_retries=0,
            **SIZE,
        )
        .model_dump()
    )


def turns() -> int:
    talk: list[Any] = []
    for text in TURNS:
        talk.append({"role": "user", "content": text})
        _, raw = client().chat.completions.create_with_completion(
            model=MODEL, messages=talk, response_model=Colour, max_retries=0, **SIZE
        )
        message = raw.choices[0].message
        talk.append({"content": "", **message.model_dump(exclude_none=True)})
        talk.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noted"})
    return len(talk)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
