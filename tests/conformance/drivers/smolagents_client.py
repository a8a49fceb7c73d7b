"""smolagents: its agents write calls and results as plain messages."""

from __future__ import annotations

from typing import Any

from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from smolagents import ChatMessage, OpenAIServerModel, ToolCallingAgent, tool
from smolagents.models import MessageRole


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return f"sunny in {city}"


def model(key: str = KEY, name: str = MODEL) -> OpenAIServerModel:
    return OpenAIServerModel(
        model_id=name, api_base=URL, api_key=key, client_kwargs={"max_retries": 0}, **SIZE
    )


def user(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])


def plain(text: str, key: str, name: str) -> Any:
    return model(key, name).generate([user(text)]).content


def streamed() -> str:
    pieces = [one.content or "" for one in model().generate_stream([user(HELLO)])]
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    called = model().generate([user("Weather in Rome?")], tools_to_call_from=[get_weather]).tool_calls
    return called[0].function.name


def structured() -> Any:
    schema = {"type": "object", "properties": {"name": {"enum": ["red", "green"]}}, "required": ["name"]}
    shape = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
    return model().generate([user(HELLO)], response_format=shape).content


def turns() -> int:
    """Two steps of an agent and the answer that ends them: each sends the calls before it as text."""
    agent = ToolCallingAgent(tools=[get_weather], model=model(), max_steps=len(TURNS) - 1, verbosity_level=0)
    for number, _ in enumerate(agent.run("What is the weather in Rome?", stream=True)):
        if number > 100:
            break
    return len(TURNS)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
