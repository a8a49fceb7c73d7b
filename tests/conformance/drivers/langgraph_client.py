"""LangGraph: a graph with memory whose node with tools is followed by one without."""

from __future__ import annotations

from typing import Any

from common import HELLO, KEY, MODEL, SIZE, TURNS, URL, main
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
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


def model(key: str = KEY, name: str = MODEL) -> ChatOpenAI:
    return ChatOpenAI(base_url=URL, api_key=key, model=name, max_retries=0, **SIZE)  # type: ignore[arg-type]


def graph(chat: Any) -> Any:
    def answer(state: MessagesState) -> Any:
        return {"messages": [chat.invoke(state["messages"])]}

    built = StateGraph(MessagesState)
    built.add_node("answer", answer)
    built.add_edge(START, "answer")
    built.add_edge("answer", END)
    return built.compile(checkpointer=InMemorySaver())


def say(app: Any, text: str) -> Any:
    state = app.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": "1"}})
    return state["messages"][-1].content


def plain(text: str, key: str, name: str) -> Any:
    return say(graph(model(key, name)), text)


def streamed() -> str:
    chunks = graph(model()).stream(
        {"messages": [("user", HELLO)]}, {"configurable": {"thread_id": "1"}}, stream_mode="messages"
    )
    pieces = [chunk.content for chunk, _ in chunks]
    assert len(pieces) > 3
    return "".join(pieces)


def tools() -> Any:
    called = model().bind_tools([get_weather], tool_choice="any").invoke("Weather in Rome?").tool_calls
    return called[0]["name"]


def structured() -> Any:
    return model().with_structured_output(Pair).invoke(HELLO).model_dump()  # type: ignore[union-attr]


def turns() -> int:
    """The node with tools answers first, one without them after it."""
    with_tools = model().bind_tools([get_weather])
    now = {"chat": with_tools}

    class Switch:
        def invoke(self, messages: Any) -> Any:
            return now["chat"].invoke(messages)

    app = graph(Switch())
    for text in TURNS:
        say(app, text)
        now["chat"] = model()
    return len(TURNS)


main(plain, streamed=streamed, tools=tools, structured=structured, turns=turns)
