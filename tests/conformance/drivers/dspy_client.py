"""DSPy: its language model, and a program whose answer has fields."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import litellm
from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from litellm_client import WEATHER
from pydantic import BaseModel, Field


class Colour(BaseModel):
    name: str = Field(max_length=20)


# What it asks a server for depends on what LiteLLM knows of the model.
known = {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}
litellm.register_model({f"openai/{MODEL}": known})


class Ask(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    colour: Colour = dspy.OutputField()


def lm(key: str = KEY, model: str = MODEL) -> dspy.LM:
    return dspy.LM(f"openai/{model}", api_base=URL, api_key=key, cache=False, num_retries=0, **SIZE)


def plain(text: str, key: str, model: str) -> Any:
    return lm(key, model)(text)[0]


def streamed() -> int:
    """Pieces of the raw reply, as the program reads them."""

    async def pieces() -> int:
        program = dspy.streamify(dspy.Predict(Ask), async_streaming=True)
        return len([one async for one in program(question=HELLO) if not isinstance(one, dspy.Prediction)])

    with dspy.context(lm=lm(), adapter=dspy.JSONAdapter()):
        found = asyncio.run(pieces())
    assert found > 3
    return found


def tools() -> Any:
    return lm()("Weather in Rome?", tools=[WEATHER], tool_choice="required")[0]["tool_calls"][0].function.name


def structured() -> Any:
    with dspy.context(lm=lm(), adapter=dspy.JSONAdapter()):
        return dspy.Predict(Ask)(question=HELLO).colour.model_dump()


def turns() -> int:
    talk: list[Any] = []
    for text in TURNS:
        talk.append({"role": "user", "content": text})
        talk.append({"role": "assistant", "content": lm()(messages=talk)[0]})
    return len(talk)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
