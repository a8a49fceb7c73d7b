"""Recorded streams of agents and chats, sent without any header, end up exactly where they belong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import ScriptedEngine, until
from tests.learn.conftest import TOOLS, Agent, Speaker

BEGIN, END = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
CALL = '<tool_call>\n{"name": "exec", "arguments": {"command":   "ls  -l"}}\n</tool_call>'


async def settled(agent: Speaker, turn_id: str, field: str, value: Any) -> None:
    """Facts about earlier turns are stored in the background."""
    async with asyncio.timeout(60):
        while (await agent.turn(turn_id))[field] != value:
            await asyncio.sleep(0.01)


def texts(turn: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"].split("] ")[-1]) for message in turn["next_state"] or []]


async def test_an_agent_session_with_everything_in_between(system: ServingSystem) -> None:
    agent = Agent(system)
    sides: list[dict[str, Any]] = []

    async def heartbeat() -> None:
        sides.append(await agent.side("[OpenClaw heartbeat poll] Anything to do?", tools=TOOLS))

    async def title() -> None:
        sides.append(await agent.side("Generate a short title for this conversation."))

    first = await agent.main("List the files.", CALL)
    await heartbeat()
    second = await agent.tool("a.txt\nb.txt", "There are two files: a.txt and b.txt.")
    await title()
    await heartbeat()
    third = await agent.main("Which one is larger?", CALL)
    await heartbeat()
    fourth = await agent.tool("a.txt 10\nb.txt 20", "b.txt is larger.")
    await title()

    # A reply that never arrives is asked for again.
    agent.history.append({"role": "user", "content": "Thanks! Now delete a.txt."})
    engine = system.engine
    assert isinstance(engine, ScriptedEngine)
    engine.say("I will del", fail_after=5)
    lost = await agent.http.post(
        "/v1/chat/completions",
        json={"model": "scripted", "messages": agent.sent(), "tools": TOOLS, "stream": True},
    )
    assert "error" in lost.text
    fifth = await agent.again("Deleted a.txt.")
    await heartbeat()

    # The user is not content and asks for the same once more.
    agent.history.pop()
    sixth = await agent.again("a.txt is gone.")
    await heartbeat()
    await title()

    sides.append(await agent.side("Pre-compaction memory flush. Write down what matters.", tools=TOOLS))
    sides.append(await agent.side("Summarize this conversation so that it can go on.", tools=None))
    kept = agent.history[-2:]
    agent.history = [{"role": "user", "content": "Summary: files were listed, a.txt was deleted."}, *kept]
    seventh = await agent.main("And what is left?", "Only b.txt.")
    await heartbeat()
    await heartbeat()
    eighth = await agent.main("Perfect.", "You are welcome.")

    assert len(sides) == 12
    main = [first, second, third, fourth, fifth, sixth, seventh, eighth]
    assert len({turn["session"] for turn in main}) == 1
    assert {side["session"] for side in sides} == {first["session"]}

    await settled(agent, fifth["id"], "reason", "waiting for the judge")
    views = [await agent.turn(turn["id"]) for turn in main]
    assert [texts(view) for view in views] == [
        [("tool", "a.txt\nb.txt")],
        [("user", "Which one is larger?")],
        [("tool", "a.txt 10\nb.txt 20")],
        [("user", "Thanks! Now delete a.txt.")],
        [],
        [("user", "And what is left?")],
        [("user", "Perfect.")],
        [],
    ]
    assert [view["kind"] for view in views] == ["main"] * 4 + ["unknown"] + ["main"] * 2 + ["unknown"]
    for side in sides:
        view = await agent.turn(side["id"])
        assert (view["kind"], view["state"], view["next_state"]) == ("side", "excluded", None)

    session = (await agent.http.get(f"/v1/sessions/{first['session']}")).json()
    undelivered = [turn for turn in session["turns"] if turn["finish_reason"] == "cancelled"]
    assert [turn["state"] for turn in undelivered] == ["excluded"]
    assert len(session["turns"]) == len(main) + len(sides) + len(undelivered)
    events = {event.kind for event in system.ledgers.serve.events_of(fifth["id"])}
    assert events == {"regenerated"}


async def test_what_happened_on_the_side_may_stay_in_the_history(system: ServingSystem) -> None:
    """OpenClaw keeps heartbeats and reports of sub-agents there, the first under another name."""
    agent = Agent(system)
    poll = "Follow the heartbeat monitor scratch context when provided. Reply NO_REPLY."
    report = "[[OPENCLAW_INTERNAL_CONTEXT_BEGIN]]\nA task is complete.\n[[OPENCLAW_INTERNAL_CONTEXT_END]]"
    first = await agent.main("Bake a cake.", "It is in the oven.")
    heartbeat = await agent.side(poll, tools=TOOLS)
    agent.history += [
        {"role": "user", "content": "[OpenClaw heartbeat poll]"},
        {"role": "assistant", "content": heartbeat["content"]},
    ]
    second = await agent.main("Is it done?", "Yes.")
    event = await agent.main(report, "The helper says so, too.")
    # Of a report that comes between two runs, only injected context stays.
    agent.history += [
        {"role": "user", "content": f"{BEGIN}\nA background task completed.\n{END}"},
        {"role": "assistant", "content": "There is a second cake."},
    ]
    third = await agent.main("Thanks!", "You are welcome.")
    cron = await agent.ask(
        agent.sent([{"role": "user", "content": "Water the plants."}]),
        "Done.",
        tools=TOOLS,
        headers={"x-turn-type": "side"},
    )
    agent.history += [
        {"role": "user", "content": "Water the plants."},
        {"role": "assistant", "content": "Done."},
    ]
    fourth = await agent.main("Good night.", "Sleep well.")

    await settled(agent, third["id"], "kind", "main")
    views = [await agent.turn(turn["id"]) for turn in (first, second, third, fourth)]
    assert [texts(view) for view in views] == [
        [("user", "Is it done?")],
        [("user", "Thanks!")],
        [("user", "Good night.")],
        [],
    ]
    assert [view["continues"] for view in views] == [None, first["id"], second["id"], third["id"]]
    for side in (heartbeat, event, cron):
        view = await agent.turn(side["id"])
        assert (view["kind"], view["next_state"], view["session_id"]) == ("side", None, first["session"])


async def test_a_summarised_past_and_the_last_reply(system: ServingSystem) -> None:
    """Nothing before it is as it was; in a session that the client names, the reply itself is enough."""
    speaker = Speaker(system)
    headers = {"x-session-affinity": "named:1"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Name a colour"}]
    first = await speaker.ask(messages, "Red.", headers=headers)
    summary = [
        {"role": "user", "content": "A summary: a colour was asked for."},
        {"role": "assistant", "content": "Red."},
        {"role": "user", "content": "Go on."},
    ]
    elsewhere = await speaker.ask(summary, "Blue.", headers={"x-session-affinity": "other:1"})
    assert (await speaker.turn(elsewhere["id"]))["continues"] is None
    await speaker.ask(summary, "Blue.", headers=headers)
    await settled(speaker, first["id"], "kind", "main")
    assert texts(await speaker.turn(first["id"])) == [("user", "Go on.")]


async def test_a_message_that_is_said_once_more_in_other_words(system: ServingSystem) -> None:
    """OpenClaw wraps what nobody answered; in the next request it stands there as the person wrote it."""
    agent = Agent(system)
    first = await agent.main("Bake a cake.", "It is in the oven.")
    wrapped = (
        "[Queued user message from a previous active turn; preserved as context only.]\nAre you there?\n\n"
        "Continue the current task from the existing transcript, preserving completed work. Go on."
    )
    second = await agent.main(wrapped, "Yes.")
    agent.history[-2]["content"] = "Are you there?"
    third = await agent.main("Good.", "Yes.")
    await settled(agent, second["id"], "kind", "main")
    views = [await agent.turn(turn["id"]) for turn in (first, second, third)]
    assert [texts(view) for view in views] == [[("user", "Are you there?")], [("user", "Good.")], []]
    assert [view["continues"] for view in views] == [None, first["id"], second["id"]]


async def test_a_reply_that_showed_nothing_is_asked_for_again_by_the_client(system: ServingSystem) -> None:
    """OpenClaw's own words for that are nobody's reaction, and the next request no longer holds them."""
    agent = Agent(system)
    called = await agent.main("Count the words.", CALL)
    broken = await agent.tool("2", "<tool_call>[0000")
    agent.history.append(
        {
            "role": "user",
            "content": "The previous assistant turn completed its tool calls but did not produce a "
            "user-visible answer. Continue from the current transcript and produce the final answer now.",
        }
    )
    again = await agent.ask(agent.sent(), "Two words.")
    agent.history[-1] = {"role": "assistant", "content": "Two words."}
    last = await agent.main("Thanks.", "Yes.")
    await settled(agent, again["id"], "kind", "main")
    views = [await agent.turn(turn["id"]) for turn in (called, broken, again, last)]
    assert [texts(view) for view in views] == [[("tool", "2")], [], [("user", "Thanks.")], []]
    assert [view["continues"] for view in views] == [None, called["id"], broken["id"], again["id"]]


async def test_a_run_of_a_person_may_be_told_of_something_else(system: ServingSystem) -> None:
    """The plugin says "main" for a whole run, although OpenClaw itself speaks in the middle of it."""
    agent = Agent(system)
    report = "[[OPENCLAW_INTERNAL_CONTEXT_BEGIN]] A helper is done. [[OPENCLAW_INTERNAL_CONTEXT_END]]"
    told = await agent.ask(agent.sent([{"role": "user", "content": report}]), headers={"x-turn-type": "main"})
    assert (await agent.turn(told["id"]))["kind"] == "side"


@pytest.mark.parametrize(
    ("system_prompt", "text"),
    [
        (
            "You summarize.",
            "<conversation>\n[User]: Hi\n</conversation>\n\nProduce a compact, factual summary.",
        ),
        ("Generate a concise session title (3-6 words) from the user's first message.", "Bake a cake."),
    ],
)
async def test_summaries_and_titles_that_hold_no_history(
    system: ServingSystem, system_prompt: str, text: str
) -> None:
    messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": text}]
    reply = await Speaker(system).ask(messages)
    assert (await Speaker(system).turn(reply["id"]))["kind"] == "side"


async def test_three_people_at_once_stay_apart(system: ServingSystem) -> None:
    """The same words at the same time, by three keys and by one key in three windows."""
    speakers = [Speaker(system, user) for user in ("ada", "ben", "cleo")]

    async def chat(speaker: Speaker, number: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        replies = []
        for round_ in range(4):
            messages.append({"role": "user", "content": f"Hello, round {round_}"})
            reply = await speaker.ask(messages)
            messages.append({"role": "assistant", "content": reply["content"]})
            replies.append(reply)
        return replies

    everyone = await asyncio.gather(*(chat(speaker, i) for i, speaker in enumerate(speakers)))
    sessions = [{reply["session"] for reply in replies} for replies in everyone]
    assert all(len(ids) == 1 for ids in sessions)
    assert len(set.union(*sessions)) == 3
    for speaker, replies in zip(speakers, everyone, strict=True):
        for round_, reply in enumerate(replies[:-1]):
            await settled(speaker, reply["id"], "kind", "main")
            assert texts(await speaker.turn(reply["id"])) == [("user", f"Hello, round {round_ + 1}")]
        assert (await speaker.turn(replies[-1]["id"]))["next_state"] is None


async def test_others_cannot_see_what_is_not_theirs(system: ServingSystem) -> None:
    ada, ben, owner = Speaker(system, "ada"), Speaker(system, "ben"), Speaker(system)
    reply = await ada.ask([{"role": "user", "content": "A secret."}])
    assert (await ben.http.get(f"/v1/turns/{reply['id']}")).status_code == 404
    assert (await ben.http.get(f"/v1/sessions/{reply['session']}")).status_code == 404
    assert (await ben.http.get("/v1/sessions")).json()["data"] == []
    assert (await ben.http.post("/v1/feedback", json={"id": reply["id"], "rating": "up"})).status_code == 404
    assert (await owner.turn(reply["id"]))["user"] == "ada"


async def test_a_regeneration_needs_a_conversation(system: ServingSystem) -> None:
    """The same first question twice is two conversations, not a complaint."""
    speaker = Speaker(system)
    one = await speaker.ask([{"role": "user", "content": "Hi"}])
    two = await speaker.ask([{"role": "user", "content": "Hi"}])
    assert one["session"] != two["session"]
    assert system.ledgers.serve.events_of(one["id"]) == []


async def test_an_edited_history_is_a_branch(system: ServingSystem) -> None:
    speaker = Speaker(system)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Name a colour"}]
    first = await speaker.ask(messages, "Red.")
    messages += [{"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another"}]
    second = await speaker.ask(messages, "Blue.")
    edited = [*messages[:2], {"role": "user", "content": "A warm one, please"}]
    third = await speaker.ask(edited, "Orange.")
    assert first["session"] == second["session"] == third["session"]
    await settled(speaker, first["id"], "kind", "main")
    assert texts(await speaker.turn(first["id"])) == [("user", "Another")]
    assert (await speaker.turn(second["id"]))["next_state"] is None


async def test_sessions_close_by_header_and_by_call(system: ServingSystem) -> None:
    speaker = Speaker(system)
    done = await speaker.ask([{"role": "user", "content": "Bye"}], headers={"x-session-done": "true"})
    await until(lambda: system.ledgers.serve.events_of(done["id"]), "the close is stored")
    assert [event.kind for event in system.ledgers.serve.events_of(done["id"])] == ["closed"]
    open_ = await speaker.ask([{"role": "user", "content": "Hello"}])
    answer = await speaker.http.post(f"/v1/sessions/{open_['session']}/close")
    assert answer.json()["closed"] is True
    listed = (await speaker.http.get("/v1/sessions")).json()["data"]
    assert all(session["closed_at"] for session in listed)
    assert (await speaker.http.post("/v1/sessions/nowhere/close")).status_code == 404
