"""What frameworks do to a conversation, as their requests show it: no reaction is lost or invented."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import scripted_system
from tests.learn.conftest import TOOLS, Speaker
from tests.learn.test_agent_session import settled, texts

Messages = list[dict[str, Any]]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: reply[name] for name in ("role", "content", "tool_calls") if reply.get(name)}


def parts(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


@pytest.fixture
def speaker(system: ServingSystem) -> Speaker:
    return Speaker(system)


def events(speaker: Speaker, reply: dict[str, Any]) -> list[str]:
    return [event.kind for event in speaker.system.ledgers.serve.events_of(reply["id"])]


async def reactions(speaker: Speaker, *replies: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """What followed each reply, once something has."""
    for reply in replies:
        await settled(speaker, reply["id"], "kind", "main")
    return [texts(await speaker.turn(reply["id"])) for reply in replies]


# --- a node without tools ----------------------------------------------------------------------


async def test_a_person_goes_on_in_a_request_without_tools(speaker: Speaker) -> None:
    """LangGraph binds tools to one node and lets another write the answer."""
    talk: Messages = [user("What is the weather like in Paris at this time of the year?")]
    first = await speaker.ask(talk, "It rains a lot, and then there is some sun.", tools=TOOLS)
    talk += [said(first), user("No, that is too long. Say it shorter.")]
    second = await speaker.ask(talk, "Rain and sun.")
    talk += [said(second), user("And in Rome?")]
    await speaker.ask(talk, "Sunny.", tools=TOOLS)
    assert await reactions(speaker, first, second) == [
        [("user", "No, that is too long. Say it shorter.")],
        [("user", "And in Rome?")],
    ]


async def test_a_response_is_continued_without_tools(speaker: Speaker) -> None:
    tool = {"type": "function", "name": "exec", "parameters": {"type": "object", "properties": {}}}
    body = {"model": "scripted", "input": "What is the weather like?", "tools": [tool]}
    first = (await speaker.http.post("/v1/responses", json=body)).json()
    body = {"model": "scripted", "input": "No, that is too long.", "previous_response_id": first["id"]}
    await speaker.http.post("/v1/responses", json=body)
    assert await reactions(speaker, first) == [[("user", "No, that is too long.")]]


@pytest.mark.parametrize(
    "text",
    [
        "Provide a detailed prompt for continuing our conversation above, and a summary of what we did.",
        "Write a handoff of this session for another agent.",
        "List follow-up questions for the chat so far.",
    ],
)
async def test_what_an_agent_asks_about_its_history_is_still_on_the_side(speaker: Speaker, text: str) -> None:
    talk: Messages = [user("List the files.")]
    first = await speaker.ask(talk, "a.txt", tools=TOOLS)
    side = await speaker.ask([*talk, said(first), user(text)], "Files were listed.")
    assert (await speaker.turn(side["id"]))["kind"] == "side"
    assert (await speaker.turn(first["id"]))["next_state"] is None


# --- several nodes over the same messages ------------------------------------------------------

ANSWER = {"role": "system", "content": "You are a helpful assistant. It is 10:15."}
LATER = {"role": "system", "content": "You are a helpful assistant. It is 10:17."}
MEMORY = {"role": "system", "content": "Extract facts about the user worth remembering."}
SHAPE = {"type": "json_schema", "json_schema": {"name": "Route", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("first_node", "second_node"),
    [
        ({"system": ANSWER}, {"system": MEMORY}),
        ({"system": MEMORY}, {"system": ANSWER}),
        ({"system": ANSWER}, {"system": ANSWER, "response_format": SHAPE}),
        ({"system": ANSWER, "response_format": SHAPE}, {"system": ANSWER}),
        ({"system": ANSWER}, {"system": ANSWER, "tools": TOOLS, "tool_choice": "required"}),
    ],
    ids=["answer, memory", "memory, answer", "answer, router", "router, answer", "answer, forced tool"],
)
async def test_another_node_over_the_same_messages_is_no_complaint(
    speaker: Speaker, first_node: dict[str, Any], second_node: dict[str, Any]
) -> None:
    talk: Messages = [user("My name is Ada.")]
    opening = await speaker.ask([ANSWER, *talk], "Hello Ada.")
    talk += [said(opening), user("Where do I live?")]
    replies = []
    for number, node in enumerate((first_node, second_node)):
        more = {name: value for name, value in node.items() if name != "system"}
        replies.append(await speaker.ask([node["system"], *talk], f'{{"reply": {number}}}', **more))
    await speaker.system.gateway.drain()
    assert [events(speaker, reply) for reply in replies] == [[], []]
    assert len({reply["session"] for reply in (opening, *replies)}) == 1


async def test_the_same_node_once_more_is_a_regeneration(speaker: Speaker) -> None:
    talk: Messages = [user("My name is Ada.")]
    talk += [said(await speaker.ask([ANSWER, *talk], "Hello Ada.")), user("Where do I live?")]
    first = await speaker.ask([ANSWER, *talk], "I do not know.")
    await speaker.ask([MEMORY, *talk], "name: Ada")
    await speaker.ask([LATER, *talk], "You have not told me.")
    await settled(speaker, first["id"], "reason", "waiting for the judge")
    assert events(speaker, first) == ["regenerated"]


# --- replies that come back changed ------------------------------------------------------------

LONG = "Paris is the capital of France. It lies on the Seine and has about two million people."


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (
            "Thought: I call the tool.\n<code>\nprint(1)\n",
            "Thought: I call the tool.\n<code>\nprint(1)\n</code>\nCalling tools:\n[{'id': 'call_1', "
            "'type': 'function', 'function': {'name': 'python_interpreter', 'arguments': 'print(1)'}}]",
        ),
        ("Yes.", "Assistant: Yes."),
        (LONG, LONG.lower()),
        (LONG, LONG[:40] + "..."),
        (LONG, LONG[:40]),
        (LONG, LONG[:40] + " [truncated 46 characters]"),
        (LONG, f"[researcher]: {LONG}\n(end)"),
    ],
    ids=["smolagents", "prefixed", "lower case", "ellipsis", "cut", "cut and said so", "around it"],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_reply_that_was_rewritten(speaker: Speaker, reply: str, kept: str, restarted: bool) -> None:
    """smolagents' CodeAgent adds what stopped the reply, and the call that it made of it."""
    talk: Messages = [{"role": "system", "content": "Solve it."}, parts("user", "New task:\nWhere is Paris?")]
    first = await speaker.ask(talk, reply)
    if restarted:
        await speaker.system.close()
        speaker = Speaker(scripted_system(speaker.system.config.home))
    talk += [parts("assistant", kept), parts("user", "Observation:\n1")]
    second = await speaker.ask(talk, reply)
    talk += [parts("assistant", kept), parts("user", "Observation:\n2")]
    third = await speaker.ask(talk, "Done.")
    assert len({turn["session"] for turn in (first, second, third)}) == 1
    found = await reactions(speaker, first, second)
    assert found == [[("user", "Observation:\n1")], [("user", "Observation:\n2")]]
    await speaker.system.close()


@pytest.mark.parametrize("kept", ["London is the capital of England.", LONG.replace("capital", "centre")])
async def test_a_reply_that_a_person_edited_is_not_ours(speaker: Speaker, kept: str) -> None:
    first = await speaker.ask([user("Where is Paris?")], LONG)
    talk = [user("Where is Paris?"), {"role": "assistant", "content": kept}, user("Good.")]
    second = await speaker.ask(talk, "Thanks.")
    assert (await speaker.turn(second["id"]))["continues"] is None
    await speaker.system.gateway.drain()
    assert events(speaker, first) == []


async def test_a_call_that_comes_back_as_text(speaker: Speaker) -> None:
    """smolagents' ToolCallingAgent writes its calls and their results as plain messages."""
    talk: Messages = [
        {"role": "system", "content": "Solve it."},
        parts("user", "New task:\nWeather in Paris?"),
    ]
    options = {"tools": TOOLS, "tool_choice": "required"}
    first = await speaker.ask(talk, CALL, **options)
    call_id = first["tool_calls"][0]["id"]
    written = (
        f"Calling tools:\n[{{'id': '{call_id}', 'type': 'function', 'function': "
        "{'name': 'get_weather', 'arguments': {'city': 'Paris'}}}]"
    )
    talk += [parts("assistant", written), parts("user", "Observation:\nsunny")]
    second = await speaker.ask(talk, CALL, **options)
    assert second["session"] == first["session"]
    assert await reactions(speaker, first) == [[("user", "Observation:\nsunny")]]


async def test_a_reply_that_was_replaced_by_an_error_message(speaker: Speaker) -> None:
    """mini-swe-agent leaves a reply without a call out and sends its complaint in its place."""
    talk: Messages = [{"role": "system", "content": "Use bash."}, user("List the files.")]
    first = await speaker.ask(talk, "I would rather talk.", tools=TOOLS)
    talk.append(user("Tool call error: No tool calls found in the response."))
    second = await speaker.ask(talk, "Still talking.", tools=TOOLS)
    talk.append(user("Tool call error: once more, no tool calls."))
    third = await speaker.ask(talk, CALL, tools=TOOLS)
    assert len({turn["session"] for turn in (first, second, third)}) == 1
    assert await reactions(speaker, first, second) == [
        [("user", "Tool call error: No tool calls found in the response.")],
        [("user", "Tool call error: once more, no tool calls.")],
    ]


async def test_a_reply_that_never_arrived_gets_no_reaction(speaker: Speaker) -> None:
    talk: Messages = [user("Who are you?")]
    speaker.system.engine.say("I am", fail_after=2)  # type: ignore[attr-defined]
    body = {"model": "scripted", "messages": talk, "stream": True}
    lost = await speaker.http.post("/v1/chat/completions", json=body)
    assert "error" in lost.text
    await speaker.system.gateway.drain()
    await speaker.ask([*talk, user("Hello?")], "A model.")
    await speaker.system.gateway.drain()
    ((turn,), *_) = [turns[:1] for turns, _ in speaker.system.ledgers.serve.iter_sessions()]
    assert (await speaker.turn(turn.id))["next_state"] is None


# --- who is who --------------------------------------------------------------------------------


async def test_a_retry_of_a_first_turn_opens_no_session(speaker: Speaker) -> None:
    """OpenAI's and Anthropic's clients count their tries in a header."""
    talk: Messages = [user("Who are you?")]
    first = await speaker.ask(talk, "A model.", headers={"x-stainless-retry-count": "0"})
    again = await speaker.ask(talk, "I am a model.", headers={"x-stainless-retry-count": "1"})
    assert again["session"] == first["session"]
    await speaker.system.gateway.drain()
    assert events(speaker, first) == ["retried"]
    other = await speaker.ask(talk, "A model.", headers={"x-stainless-retry-count": "0"})
    assert other["session"] != first["session"]


async def test_a_retry_in_a_conversation_is_no_complaint(speaker: Speaker) -> None:
    talk: Messages = [user("Who are you?")]
    talk += [said(await speaker.ask(talk, "A model.")), user("Of whom?")]
    first = await speaker.ask(talk, "Of nobody.")
    await speaker.ask(talk, "Of you.", headers={"x-stainless-retry-count": "2"})
    await speaker.system.gateway.drain()
    assert events(speaker, first) == ["retried"]


@pytest.mark.parametrize("together", [False, True])
async def test_the_same_conversation_twice_gets_two_reactions(speaker: Speaker, together: bool) -> None:
    """Without chance two people who begin alike are answered alike, too."""
    talk: Messages = [user("Tell me something.")]
    firsts = [await speaker.ask(talk, "Cows eat grass.") for _ in range(2)]
    goes_on = [[*talk, said(firsts[0]), user(text)] for text in ("Great!", "Wrong, I hate that.")]
    if together:
        seconds = list(await asyncio.gather(*(speaker.ask(messages) for messages in goes_on)))
    else:
        seconds = [await speaker.ask(messages) for messages in goes_on]
        title = {"role": "user", "content": "Generate a short title for this conversation."}
        await speaker.ask([*talk, said(firsts[0]), title], "Cows")
    assert {turn["session"] for turn in seconds} == {turn["session"] for turn in firsts}
    found = await reactions(speaker, *firsts)
    assert sorted(found) == [[("user", "Great!")], [("user", "Wrong, I hate that.")]]
    for second, messages in zip(seconds, goes_on, strict=True):
        third = await speaker.ask([*messages, said(second), user("Bye.")])
        assert third["session"] == second["session"]


async def test_two_nodes_go_on_with_the_same_of_two_like_conversations(speaker: Speaker) -> None:
    talk: Messages = [user("Tell me something.")]
    firsts = [await speaker.ask(talk, "Cows eat grass.") for _ in range(2)]
    talk += [said(firsts[0]), user("Great!")]
    nodes = [await speaker.ask([system, *talk]) for system in (MEMORY, ANSWER)]
    assert len({turn["session"] for turn in nodes}) == 1


async def test_one_cache_key_for_a_whole_application(speaker: Speaker) -> None:
    sessions = []
    for topic in ("cows", "Peru", "the sea"):
        talk: Messages = [user(f"Tell me about {topic}.")]
        first = await speaker.ask(talk, f"Well, {topic}.", prompt_cache_key="my-app")
        talk += [said(first), user("Go on.")]
        second = await speaker.ask(talk, f"More of {topic}.", prompt_cache_key="my-app")
        assert second["session"] == first["session"]
        sessions.append(first["session"])
    assert len(set(sessions)) == 3


async def test_a_cache_key_of_one_conversation_survives_a_summary(speaker: Speaker) -> None:
    """As Codex compacts: what the person said stays, and a summary takes the place of the replies."""
    talk: Messages = [user("Tell me about cows.")]
    first = await speaker.ask(talk, "They eat grass.", prompt_cache_key="0199-conversation")
    summary = [*talk, user("Another model worked on this. Its summary: cows were discussed."), user("Go on.")]
    second = await speaker.ask(summary, "And hay.", prompt_cache_key="0199-conversation")
    assert first["session"] == second["session"] == "0199-conversation"
