"""A reaction belongs to the message it was given to: by webhook, and in notices that clients write."""

from __future__ import annotations

import random

import httpx
import pytest

from openclaw_rl.judge.rules import apply_rules
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.reactions import score_of, split_notices
from openclaw_rl.testing import ScriptedEngine, until
from openclaw_rl.types import Json, JudgeCase, Message

UP, DOWN, UNCLEAR = (
    ("👍", "❤️", "👍🏽", ":+1:", "tada"),
    ("👎", "👎🏿", "thumbsdown", "😡"),
    ("👀", "😂", "🤔"),
)
NOTICES = (
    "System: [2026-09-07 10:00:00 UTC] Telegram reaction added: {emoji} by {who} on msg {number}",
    "System: Slack reaction {action}: {emoji} by {who} in #general msg 17252{number}.0001",
    "Matrix reaction added: {emoji} by {who} on msg $abc{number}",
    "Signal reaction removed: {emoji} by {who} on msg {number}",
    '{who} reacted with {emoji} to "{quote}"',
    'System: {who} reacted {emoji} to the message "{quote}…"',
    "Reaction changed: {emoji} on {number}",
    "[reacted with {emoji} to message om_{number}]",
    "[removed reaction {emoji} from message om_{number}]",
)
LATEST = "The capital of Norway is Oslo, on the Oslofjord."
OLDER = ("A volcano is a mountain that opens downward.", "Seven times eight is fifty-six, as ever.")
FOREIGN = "I will be ten minutes late, start without me."


def case(said: str) -> JudgeCase:
    messages: list[Message] = []
    for reply in OLDER:
        messages += [{"role": "user", "content": "Tell me more."}, {"role": "assistant", "content": reply}]
    messages.append({"role": "user", "content": "And Norway?"})
    return JudgeCase(messages, {"role": "assistant", "content": LATEST}, [{"role": "user", "content": said}])


def test_200_notices_rate_nothing_but_the_reply_they_quote() -> None:
    chance, misattributed = random.Random(7), []
    for number in range(200):
        emoji = chance.choice(UP + DOWN + UNCLEAR)
        quote = chance.choice([*OLDER, FOREIGN, LATEST])
        form = chance.choice(NOTICES)
        action = chance.choice(("added", "removed"))
        shown = f":{emoji}:" if emoji.isascii() and ":" not in emoji else emoji
        notice = form.format(emoji=shown, who="Ann", number=number, quote=quote[:30], action=action)
        after, words = chance.choice([("", None), ("And Sweden?", None), ("👎", -1), ("👍", 1)])
        expected = words
        if words is None and "{quote}" in form and quote == LATEST:
            expected = score_of(emoji)
        verdict = apply_rules(case(f"{notice}\n{after}".strip()))
        found = verdict.score if verdict is not None and verdict.source == "feedback" else None
        if found != expected:
            misattributed.append((notice, after, found, expected))
    assert misattributed == []


def test_a_notice_alone_says_nothing_about_the_reply() -> None:
    verdict = apply_rules(case("System: [today] Telegram reaction added: 👎 by Ann on msg 3"))
    assert verdict is not None
    assert (verdict.score, verdict.source) == (0, "rule:only_notices")


@pytest.mark.parametrize(
    "said",
    ["How is a reaction added to a message in Slack?", "My reaction: removed the file, thanks.",
     "The chemical reaction changed its colour.\nWhy?"],
)  # fmt: skip
def test_talk_about_reactions_is_talk(said: str) -> None:
    if split_notices(said)[1]:
        assert split_notices(said)[0], "something is left for the judge"


@pytest.fixture
async def replies(system: ServingSystem, client: httpx.AsyncClient) -> list[str]:
    """Ids of ten replies in one session; the last two say the same."""
    engine, ids, messages = system.engine, [], []
    assert isinstance(engine, ScriptedEngine)
    for number in range(10):
        engine.say(text_of(number))
        messages.append({"role": "user", "content": f"question {number}"})
        body = {"model": "scripted", "messages": messages}
        answer = await client.post("/v1/chat/completions", json=body, headers={"X-Session-Id": "chat"})
        messages.append(answer.json()["choices"][0]["message"])
        ids.append(answer.json()["id"])
    await system.gateway.drain()
    return ids


def text_of(number: int) -> str:
    return f"This is reply number {min(number, 8)}, all of it."


async def test_200_reactions_by_webhook_each_reach_their_reply(
    system: ServingSystem, client: httpx.AsyncClient, replies: list[str]
) -> None:
    chance = random.Random(11)
    standing: dict[tuple[str, str], int] = {}
    for n in range(200):
        number, who = chance.randrange(10), chance.choice(("ann", "ben"))
        emoji, action = chance.choice(UP + DOWN + UNCLEAR), chance.choice(("added", "added", "removed"))
        body: Json = {"emoji": emoji, "action": action, "who": who, "at": 1000.0 + n}
        by_text = chance.random() < 0.5
        body |= {"session_id": "chat", "reply": text_of(number)} if by_text else {"id": replies[number]}
        late = chance.random() < 0.1
        if late:
            body["at"] = 1.0
        answer = (await client.post("/v1/reactions", json=body)).json()
        key, score = (replies[number], who), score_of(emoji)
        if by_text and number >= 8:
            assert answer == {"id": None, "counted": False,
                              "reason": "several replies of this session begin like that"}  # fmt: skip
            continue
        assert answer["id"] == replies[number]
        if not answer["counted"]:
            before = standing.get(key, 0)
            removed_in_vain = action == "removed" and before != score
            assert score is None or late or removed_in_vain or before == score, answer
            continue
        standing[key] = 0 if action == "removed" else int(score or 0)
    for turn in replies:
        total = sum(value for (reply, _), value in standing.items() if reply == turn)
        rated = system.dashboard.feedback_of(turn)
        assert (rated[-1]["score"] if rated else 0) == (total > 0) - (total < 0), turn


async def test_a_reaction_is_the_replys_feedback(
    system: ServingSystem, client: httpx.AsyncClient, replies: list[str]
) -> None:
    serve, learn = system.ledgers.serve, system.ledgers.learn
    await client.post("/v1/reactions", json={"id": replies[3], "emoji": "👎"})
    learn.pull([], await until(lambda: serve.events_of(replies[3]), "it is noted"))
    verdict = learn.verdict(replies[3])
    assert verdict is not None
    assert (verdict.score, verdict.source) == (-1, "feedback")
    gone = await client.post("/v1/reactions", json={"id": replies[3], "emoji": "👎", "action": "removed"})
    assert gone.json() == {"id": replies[3], "counted": True, "score": 0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"emoji": "👍"}, 400),
        ({"emoji": "", "id": "x"}, 400),
        ({"emoji": "👍", "id": "nobody"}, 404),
        ({"emoji": "👍", "session_id": "nobody", "reply": "This is reply"}, 404),
        ({"emoji": "👍", "id": "x", "rating": "up"}, 400),
    ],
)
async def test_what_cannot_be_meant_is_refused(client: httpx.AsyncClient, body: Json, status: int) -> None:
    assert (await client.post("/v1/reactions", json=body)).status_code == status
