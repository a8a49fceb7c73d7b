"""Graphs of agents over one conversation: what a node asks, or another agent says, is nobody's reaction.

The requests are those that the frameworks send; what tells them from a person is that they ask for something
else than the request that the reply answered did, that they speak of the conversation as a thing, or that
the words are the model's own.
"""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.processes.serving_system import ServingSystem
from tests.learn.conftest import TOOLS, Speaker
from tests.learn.test_agent_session import settled, texts

Messages = list[dict[str, Any]]
WRITER = {"role": "system", "content": "You are an essay assistant. Write the best essay possible."}
CRITIC = {"role": "system", "content": "You are a teacher grading an essay. Generate critique and advice."}
REQUEST = {"role": "user", "content": "Write an essay on rivers."}
ESSAY = "Rivers begin in the mountains and end in the sea. People live beside them."
CRITIQUE = "The essay is far too short and says nothing about how rivers shape the land."
GRADE = {"type": "json_schema", "json_schema": {"name": "Grade", "schema": {"type": "object"}}}


@pytest.fixture
def speaker(system: ServingSystem) -> Speaker:
    return Speaker(system)


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def said(reply: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": reply["content"]}


async def next_state(speaker: Speaker, reply: dict[str, Any]) -> list[tuple[str, str]]:
    await speaker.system.gateway.drain()
    return texts(await speaker.turn(reply["id"]))


# --- a node that asks about the answer before it -----------------------------------------------

CRITIQUES: list[tuple[str, Messages, dict[str, Any]]] = [
    ("another system prompt", [CRITIC, user("List everything that is wrong with the essay.")], {}),
    ("a form", [WRITER, user("Is this essay good enough to be sent?")], {"response_format": GRADE}),
    (
        "a forced tool",
        [WRITER, user("Reflect on the essay and improve it.")],
        {"tools": TOOLS, "tool_choice": "required"},
    ),
    ("without its system prompt", [user("No, this will not do: name the weak points.")], {}),
]


@pytest.mark.parametrize(("node", "options"), [c[1:] for c in CRITIQUES], ids=[c[0] for c in CRITIQUES])
async def test_a_critique_gives_way_to_the_reaction(
    speaker: Speaker, node: Messages, options: dict[str, Any]
) -> None:
    essay = await speaker.ask([WRITER, REQUEST], ESSAY)
    instructions, asked = node[:-1], node[-1]
    await speaker.ask([*instructions, REQUEST, said(essay), asked], CRITIQUE, **options)
    await speaker.ask([WRITER, REQUEST, said(essay), user("I like it, thanks.")], "You are welcome.")
    await settled(speaker, essay["id"], "kind", "main")
    assert await next_state(speaker, essay) == [("user", "I like it, thanks.")]
    # And one that comes afterwards, as from a memory that is filled in the background, changes nothing.
    await speaker.ask([*instructions, REQUEST, said(essay), asked], CRITIQUE, **options)
    assert await next_state(speaker, essay) == [("user", "I like it, thanks.")]


async def test_without_another_word_what_a_changed_request_says_is_the_reaction(speaker: Speaker) -> None:
    """LangGraph binds tools to one node and lets another write the answer."""
    first = await speaker.ask([WRITER, REQUEST], ESSAY)
    await speaker.ask([WRITER, REQUEST, said(first), user("Longer, please.")], "Rivers …", tools=TOOLS)
    await settled(speaker, first["id"], "kind", "main")
    assert await next_state(speaker, first) == [("user", "Longer, please.")]


async def test_a_second_reaction_to_the_same_request_changes_nothing(speaker: Speaker) -> None:
    """As when a person goes back and asks differently: the first is what they said to the reply."""
    first = await speaker.ask([WRITER, REQUEST], ESSAY)
    for text in ("No, longer.", "What is the longest river?"):
        await speaker.ask([WRITER, REQUEST, said(first), user(text)], "Well.")
        await settled(speaker, first["id"], "kind", "main")
    assert await next_state(speaker, first) == [("user", "No, longer.")]


# --- other agents' words -----------------------------------------------------------------------


async def test_what_the_model_wrote_as_a_critic_is_no_reaction(speaker: Speaker) -> None:
    """LangGraph's reflection: the critic sees the roles exchanged, and its words come back as a user's."""
    essay = await speaker.ask([WRITER, REQUEST], ESSAY)
    critique = await speaker.ask([CRITIC, REQUEST, user(essay["content"])], CRITIQUE)
    talk = [WRITER, REQUEST, said(essay), user(critique["content"])]
    second = await speaker.ask(talk, "Rivers shape the land by carrying it away, grain by grain.")
    await speaker.ask([*talk, said(second), user("Now it is good.")], "I am glad.")
    await settled(speaker, second["id"], "kind", "main")
    assert await next_state(speaker, second) == [("user", "Now it is good.")]
    assert await next_state(speaker, essay) == []
    assert await next_state(speaker, critique) == []


@pytest.mark.parametrize("prefix", ["", "critic said:\n"], ids=["as it is", "named in the text"])
async def test_agents_that_talk_to_each_other(speaker: Speaker, prefix: str) -> None:
    """AutoGen's group chat: to each agent, what the others said is a user's, with their name."""
    writer = await speaker.ask([WRITER, user("Write about rivers.", name="user")], ESSAY)
    heard = user(prefix.replace("critic", "writer") + writer["content"], name="writer")
    critic = await speaker.ask([CRITIC, user("Write about rivers.", name="user"), heard], CRITIQUE)
    answered = user(prefix + critic["content"], name="critic")
    again = [WRITER, user("Write about rivers.", name="user"), said(writer), answered]
    await speaker.ask(again, "Rivers carry the land away.")
    assert await next_state(speaker, writer) == []
    assert await next_state(speaker, critic) == []


async def test_what_a_person_says_may_be_what_the_model_once_said(speaker: Speaker) -> None:
    await speaker.ask([user("What do you say when somebody helps you?")], "Thank you very much!")
    first = await speaker.ask([user("Who wrote Faust?")], "Goethe did.")
    await speaker.ask([user("Who wrote Faust?"), said(first), user("Thank you very much!")], "Gladly.")
    await settled(speaker, first["id"], "kind", "main")
    assert await next_state(speaker, first) == [("user", "Thank you very much!")]


# --- instructions that speak of the conversation as a thing ------------------------------------

ABOUT_IT = {
    "langgraph, summary": "Create a summary of the conversation above:",
    "langgraph, longer summary": "This is a summary of the conversation to date: Rivers were discussed.\n\n"
    "Extend the summary by taking into account the new messages above:",
    "magentic-one, progress": "Recall we are working on the following request:\n\nWrite an essay.\n\nAnd we "
    "have assembled the following team:\n\nwriter: writes\n\nTo make progress on the request, please answer "
    "the following questions, including necessary reasoning:\n\n    - Is the request fully satisfied?",
    "magentic-one, answer": "We are working on the following task:\nWrite an essay.\n\nWe have completed the "
    "task.\n\nThe above messages contain the conversation that took place to complete the task.\n\nBased on "
    "the information gathered, provide the final answer to the original request.",
    "autogen, speaker": "Read the above conversation. Then select the next role from ['a', 'b'] to play. "
    "Only return the role.",
    "autogen, takeaway": "Summarize the takeaway from the conversation. Do not add any introductory phrases.",
    "supervisor": "Given the conversation above, who should act next? Or should we FINISH? Select one of: "
    "['FINISH', 'writer']",
    "critique": "Critique the assistant's last answer. List its weaknesses as bullet points.",
    "grade": "Evaluate the assistant's response above for helpfulness on a scale from 1 to 10.",
    "check": "Review the previous response of the assistant. Reply APPROVED if it is correct.",
    "facts": "Extract all facts about the user from the conversation above as JSON.",
    "route": "Based on the conversation above, decide which department should handle it: sales or support.",
    "findings": "All above messages are about research conducted by an AI Researcher. Please clean up these "
    "findings.\n\nDO NOT summarize the information.",
}  # fmt: skip


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize("text", ABOUT_IT.values(), ids=list(ABOUT_IT))
async def test_an_instruction_about_the_conversation(speaker: Speaker, text: str, role: str) -> None:
    """From a node with the same settings as the one that answered: only its words tell."""
    essay = await speaker.ask([REQUEST], ESSAY)
    await speaker.ask([REQUEST, said(essay), {"role": role, "content": text}], "Well.")
    assert await next_state(speaker, essay) == []
    await speaker.ask([REQUEST, said(essay), user("No, longer.")], "Rivers …")
    await settled(speaker, essay["id"], "kind", "main")
    assert await next_state(speaker, essay) == [("user", "No, longer.")]


@pytest.mark.parametrize(
    "text",
    [
        "Review your answer, it is wrong.",
        "Check that again.",
        "Your last answer was much better.",
        "Summarize that in one sentence.",
        "Based on the text above, which river is the longest?",
        "Select the best one of the three above.",
        "Extract the names from it.",
        "This conversation is useless.",
        "Create a table of the rivers above.",
        "Evaluate 3 + 4.",
        "Critique my essay: Rivers are nice.",
        "Extend the summary, it is too short.",
        "Who should act next in the play?",
        "The previous answer was wrong, give me the right one.",
    ],
)
async def test_a_person_may_speak_of_the_answer(speaker: Speaker, text: str) -> None:
    essay = await speaker.ask([REQUEST], ESSAY)
    await speaker.ask([REQUEST, said(essay), user(text)], "Well.")
    await settled(speaker, essay["id"], "kind", "main")
    assert await next_state(speaker, essay) == [("user", text)]


async def test_a_reminder_of_a_graph_is_no_part_of_what_followed(speaker: Speaker) -> None:
    """LangGraph's Reflexion ends each of its prompts with one, and keeps none."""
    reminder = user(
        "\n\n<reminder>Reflect on the user's original question and the actions taken thus far. "
        "Respond using the ReviseAnswer function.</reminder>"
    )
    call = '<tool_call>\n{"name": "exec", "arguments": {"command": "ls"}}\n</tool_call>'
    first = await speaker.ask([REQUEST, reminder], call, tools=TOOLS)
    call_id = first["tool_calls"][0]["id"]
    calls = {"role": "assistant", "content": None, "tool_calls": first["tool_calls"]}
    result = {"role": "tool", "tool_call_id": call_id, "content": "three rivers"}
    second = await speaker.ask([REQUEST, calls, result, reminder], "Three.", tools=TOOLS)
    await settled(speaker, first["id"], "kind", "main")
    assert second["session"] == first["session"]
    assert await next_state(speaker, first) == [("tool", "three rivers")]
