"""A turn has one score: whoever looks, wherever, at whatever moment, counts the same verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from openclaw_rl.commands.status import describe
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.types import Json

from .conftest import Speaker
from .test_wishes import LISTS, judge, sampler_of

SIDE = "Generate a title for this conversation"


async def talk(speaker: Speaker, number: int, *said: str) -> list[str]:
    messages: list[dict[str, Any]] = []
    ids = []
    for text in (f"question {number}", *said):
        messages.append({"role": "user", "content": text})
        reply = await speaker.ask(messages, f"reply {number}.{len(ids)}")
        messages.append({"role": "assistant", "content": reply["content"]})
        ids.append(reply["id"])
        await judge(speaker.system)
    return ids


async def count(client: httpx.AsyncClient) -> dict[str, Counter[str]]:
    """Good, bad and other verdicts, as each place that counts them says."""

    async def get(path: str, **params: Any) -> Json:
        answer = await client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    sessions = (await get("/v1/sessions", limit=100))["data"]
    pages = [await get(f"/v1/sessions/{session['id']}") for session in sessions]
    learning, status = await get("/v1/learning"), await get("/v1/status")
    turns = [turn for page in pages for turn in page["turns"]]
    single = [(await get(f"/v1/turns/{turn['id']}"))["verdict"] for turn in turns]
    points, stages = learning["rewards"]["points"], {s["name"]: s for s in status["funnel"]["stages"]}
    up, down = (sum(point[way] for point in points) for way in ("up", "down"))
    firsts = [
        t["verdict"]["score"]
        for t in turns
        if t["continues"] is None and t["kind"] != "side" and t["verdict"]
    ]
    shown = Counter(status["funnel"]["by_state"])
    assert shown == Counter({**dict.fromkeys(shown, 0), **Counter(turn["state"] for turn in turns)})
    told = next(line for line in describe(status, "").splitlines() if line.startswith("  judged"))
    assert int(told.split()[1]) == stages["judged"]["turns"] == len([v for v in single if v])
    for rated, name in (("good", "good"), ("bad", "bad")):
        found = {s["id"] for s in (await get("/v1/sessions", limit=100, rated=rated))["data"]}
        sign = 1 if name == "good" else -1
        assert found == {
            s["id"] for s in sessions if any(score and score * sign > 0 for score in s["scores"])
        }
    by_version = learning["first_replies"]["versions"]
    assert sum(v["good"] for v in by_version) == sum(score > 0 for score in firsts)
    assert sum(v["of"] for v in by_version) == sum(score != 0 for score in firsts)
    return {
        "turns": tally(v["score"] for v in single if v),
        "sessions' pages": tally(t["verdict"]["score"] for t in turns if t["verdict"]),
        "dots of the list": tally(s for session in sessions for s in session["scores"] if s is not None),
        "curve": Counter(good=up, bad=down, other=learning["rewards"]["turns"] - up - down),
    }


def tally(scores: Any) -> Counter[str]:
    return Counter({"good": 0, "bad": 0, "other": 0}) + Counter(
        "good" if score > 0 else "bad" if score < 0 else "other" for score in scores
    )


async def walk(system: ServingSystem, connect: Callable[..., httpx.AsyncClient]) -> Counter[str]:
    """Everywhere alike, and everybody's own come to what the owner sees."""
    everybodys = await count(connect(system))
    own = [await count(connect(system, system.keys.key_of(user))) for user in ("ada", "bob")]
    for seen in (everybodys, *own):
        assert all(+counted == +seen["turns"] for counted in seen.values()), seen
    assert own[0]["turns"] + own[1]["turns"] == +everybodys["turns"]
    return everybodys["turns"]


def learn(system: ServingSystem, scope: str) -> None:
    """A step of all that waits, served at once."""
    policies = system.ledgers.policies
    made = policies.claim(8, policies.serving(scope), "", 0, scope)
    assert made is not None
    policies.trained(made.version, {})
    assert policies.publish(made.version, {})


async def test_every_place_counts_the_same_verdicts_at_every_moment(
    system: ServingSystem, connect: Callable[..., httpx.AsyncClient]
) -> None:
    ada, bob = Speaker(system, "ada"), Speaker(system, "bob")
    ids = [await talk(ada, n, f"bad: {LISTS}", "good, thanks") for n in range(2)]
    ids += [await talk(bob, n, "good", "what about this?", "bad: please be brief") for n in range(2, 4)]
    side = await bob.ask([{"role": "user", "content": SIDE}], "Rome")
    judged = await walk(system, connect)
    assert (judged["good"], judged["bad"], judged["other"]) == (4, 4, 2), "judged, and nothing made of it yet"
    await sampler_of(system).run()
    assert await walk(system, connect) == judged
    for scope in system.ledgers.policies.waiting_scopes():
        learn(system, scope)
    assert await walk(system, connect) == judged
    # Learned from, and then rated otherwise by the person.
    trained = ids[0][0]
    assert (await ada.turn(trained))["state"] == "trained"
    assert (await ada.turn(trained))["verdict"]["score"] == -1
    rating = await ada.http.post("/v1/feedback", json={"id": trained, "rating": "up"})
    assert rating.status_code == 200
    await judge(system)
    revised = await walk(system, connect)
    assert (revised["good"], revised["bad"]) == (judged["good"] + 1, judged["bad"] - 1)
    await sampler_of(system).run()
    assert await walk(system, connect) == revised
    # A side request that somebody rates; a turn that is excluded, and taken back in.
    assert (await bob.http.post("/v1/feedback", json={"id": side["id"], "rating": "up"})).status_code == 200
    [later, _] = await talk(ada, 9, "good")
    more = await walk(system, connect)
    assert (more["good"], more["bad"]) == (revised["good"] + 2, revised["bad"])
    assert (await ada.http.post(f"/v1/turns/{later}/exclude")).status_code == 200
    await judge(system)
    await sampler_of(system).run()
    less = await walk(system, connect)
    assert (less["good"], less["other"]) == (more["good"] - 1, more["other"] + 1)
    assert (await ada.http.post(f"/v1/turns/{later}/include")).status_code == 200
    await judge(system)
    await sampler_of(system).run()
    assert await walk(system, connect) == more
    # What is forgotten is in no count any more: one turn and those after it, a side request, a person.
    assert (await ada.http.delete(f"/v1/turns/{ids[1][1]}")).status_code == 200
    await walk(system, connect)
    assert (await bob.http.delete(f"/v1/turns/{side['id']}")).status_code == 200
    await walk(system, connect)
    assert (await bob.http.delete("/v1/users/bob")).status_code == 200
    assert sum((await walk(system, connect)).values()) == 3
