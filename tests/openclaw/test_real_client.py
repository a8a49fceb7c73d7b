"""OpenClaw from npm, headless, against the default model: what it sends ends up exactly where it belongs.

The same story twice: with our plugin, and without it and without any header. Calls of tools are said for
the model (``scripted.py`` tells how); the other replies are its own, whatever they are worth. The tests of
one story build on each other and run in this order.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise, takewhile
from typing import Any

import pytest

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.capture.stored import stored_request
from openclaw_rl.config import load_config
from openclaw_rl.processes.parts import build_renderer
from openclaw_rl.testing import wait_until
from tests.openclaw.client import session_key
from tests.openclaw.conftest import World
from tests.openclaw.scripted import SAYS, SHOWS_NOTHING

pytestmark = pytest.mark.openclaw
Json = dict[str, Any]


def next_texts(turn: Json) -> list[tuple[str, str]]:
    """The next state without timestamps."""
    return [(m["role"], m["content"].rpartition("UTC] ")[2]) for m in turn["next_state"] or []]


def num_shared(ids: Sequence[int], others: Sequence[int]) -> int:
    """Length of the prefix that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


def main_line(turns: list[Json]) -> list[Json]:
    return [turn for turn in turns if turn["kind"] != "side"]


def last_kind(world: World) -> str:
    """Of a reply that nobody has answered yet: only the plugin can know."""
    return "main" if world.has_plugin else "unknown"


def begin(world: World, pool: ThreadPoolExecutor, user: str, text: str) -> Future[str]:
    """Ask, and return while the reply is being made."""
    eventually(lambda: not any(world.status()["queues"][name] for name in ("running", "waiting")), "idle")
    asked = pool.submit(world.claw.ask, user, text)
    eventually(lambda: world.status()["queues"]["running"] or asked.done(), "the reply has begun")
    assert not asked.done()
    return asked


def eventually(check: Callable[[], Any], what: str, timeout_s: float = 300) -> Any:
    return wait_until(check, what, timeout_s)


def test_a_conversation_with_tools(world: World) -> None:
    asked = [
        "Hello there",
        "Please write the note",
        "Please read the note",
        "Please count the words",
        "Thanks",
    ]
    for text in asked:
        assert world.claw.ask("alice", text)
    assert (world.claw.workspace / "note.txt").read_text() == "7 apples\n"

    turns = world.turns(world.claw.session_id("alice"))
    calls = [[call["name"] for call in turn["reply"].get("tool_calls") or []] for turn in turns]
    assert calls == [[], ["write"], [], ["read"], [], ["exec"], [], []]
    assert [turn["kind"] for turn in turns] == ["main"] * 7 + [last_kind(world)]
    assert [turn["continues"] for turn in turns] == [None, *(turn["id"] for turn in turns[:-1])]
    assert [next_texts(turn) for turn in turns] == [
        [("user", "Please write the note")],
        [("tool", "Successfully wrote 9 bytes to note.txt")],
        [("user", "Please read the note")],
        [("tool", "7 apples")],
        [("user", "Please count the words")],
        [("tool", "2")],
        [("user", "Thanks")],
        [],
    ]


def test_most_of_a_prompt_is_known_from_the_one_before(world: World) -> None:
    """What the engine kept of it need not be read again, so that first tokens come sooner."""
    ids = [turn["id"] for turn in world.turns(world.claw.session_id("alice"))]
    with_timings = {turn.id: turn for turn in stored_turns(world)}
    turns = [with_timings[turn_id] for turn_id in ids]
    first, *later = [turn.timings["first_token_s"] for turn in turns]
    print(f"\n  prompt {len(turns[0].prompt_ids)}–{len(turns[-1].prompt_ids)} tokens; first token after "
          f"{first:.1f} s, then {', '.join(f'{seconds:.1f}' for seconds in later)} s")  # fmt: skip
    assert 2500 < len(turns[0].prompt_ids) < 4500
    known = [
        num_shared(before.prompt_ids, after.prompt_ids) / len(after.prompt_ids)
        for before, after in pairwise(turns)
    ]
    assert statistics.median(known) > 0.5


def test_a_reply_that_shows_nothing_is_asked_for_again(world: World) -> None:
    """By OpenClaw itself, in words that later requests do not hold: nobody's reaction."""
    assert world.claw.ask("gina", "Please look around") == "There is nothing here."
    assert world.claw.ask("gina", "Thanks")
    turns = world.turns(world.claw.session_id("gina"))
    assert len(turns) == 4
    called, hidden, again, last = turns
    assert next_texts(called) == [("tool", "there is nothing to show")]
    assert hidden["reply"]["content"] == SHOWS_NOTHING
    assert hidden["next_state"] is None
    assert again["reply"]["content"] == "There is nothing here."
    assert again["continues"] == hidden["id"]
    # Without the plugin, OpenClaw sends both replies as one message from then on.
    assert next_texts(again) == ([("user", "Thanks")] if world.has_plugin else [])
    assert last["continues"] == (again if world.has_plugin else called)["id"]


def test_a_heartbeat_is_on_the_side(world: World) -> None:
    session_id = world.claw.session_id("alice")
    before = world.turns(session_id)
    world.claw.run(
        "system", "event", "--mode", "now", "--text", "The oven is hot.",
        "--session-key", session_key("alice"),
    )  # fmt: skip
    eventually(lambda: len(world.turns(session_id)) > len(before), "the heartbeat is answered")
    assert world.claw.ask("alice", "Is it done?")
    turns = world.turns(session_id)
    (heartbeat,) = [turn for turn in turns if turn["kind"] == "side"]
    assert heartbeat["state"] == "excluded"
    assert heartbeat["next_state"] is None
    last, new = main_line(turns)[-2:]
    assert last["id"] == before[-1]["id"]
    assert next_texts(last) == [("user", "Is it done?")]
    assert new["continues"] == last["id"]


def test_a_compaction_leaves_the_conversation_whole(world: World) -> None:
    session_id = world.claw.session_id("alice")
    known = set(world.sessions())
    before = world.turns(session_id)
    done = world.claw.call("sessions.compact", {"key": session_key("alice")})
    assert done["compacted"], done
    summaries = [turn for turn in world.turns(session_id) if turn not in before]
    summaries += [turn for session in set(world.sessions()) - known for turn in world.turns(session)]
    assert summaries
    assert {turn["kind"] for turn in summaries} == {"side"}

    assert world.claw.ask("alice", "Go on.")
    assert world.claw.ask("alice", "Well done.")
    assert world.claw.session_id("alice") == session_id
    *_, last, first_after, second_after = main_line(world.turns(session_id))
    assert last["id"] == main_line(before)[-1]["id"]
    assert next_texts(last) == [("user", "Go on.")]
    assert next_texts(first_after) == [("user", "Well done.")]
    assert second_after["continues"] == first_after["id"]
    assert first_after["prompt_tokens"] < last["prompt_tokens"]


def test_a_sub_agent_has_its_own_session(world: World) -> None:
    known = set(world.sessions())
    assert world.claw.ask("carol", "Please ask a helper", agent="boss")
    session_id = world.claw.session_id("carol", "boss")

    def reported() -> Json | None:
        return next((turn for turn in world.turns(session_id) if turn["kind"] == "side"), None)

    report = eventually(reported, "the helper's answer is reported")
    helpers = [
        session
        for session in set(world.sessions()) - known - {session_id}
        if "[Subagent Context]" in str(world.turns(session)[0]["input"])
    ]
    assert len(helpers) == 1
    assert all(turn["kind"] != "side" for turn in world.turns(helpers[0]))

    assert world.claw.ask("carol", "Thanks", agent="boss")
    turns = main_line(world.turns(session_id))
    spawned = turns[0]
    assert spawned["reply"]["tool_calls"][0]["name"] == "sessions_spawn"
    assert [role for role, _ in next_texts(spawned)] == ["tool"]
    # Without the plugin, OpenClaw sends this reply and the one to the report as one message.
    assert next_texts(turns[-2]) == ([("user", "Thanks")] if world.has_plugin else [])
    assert report["next_state"] is None


def test_two_sessions_at_once_stay_apart(world: World) -> None:
    def chat(user: str) -> list[str]:
        return [world.claw.ask(user, f"Hello from {user}"), world.claw.ask(user, f"Goodbye from {user}")]

    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(chat, ("dave", "erin")))
    assert all(all(pair) for pair in replies)
    ids = {user: world.claw.session_id(user) for user in ("dave", "erin")}
    assert ids["dave"] != ids["erin"]
    for user, session_id in ids.items():
        turns = world.turns(session_id)
        assert len(turns) == 2
        assert next_texts(turns[0]) == [("user", f"Goodbye from {user}")]


def test_weights_change_in_the_middle_of_a_reply(world: World) -> None:
    assert world.claw.ask("frank", "Hello there")
    with ThreadPoolExecutor(1) as pool:
        asked = begin(world, pool, "frank", "Tell me more")
        with world.http as http:
            assert http.post("/v1/policies/1/promote").is_success
        assert asked.result()
    session_id = world.claw.session_id("frank")
    assert [turn["policy_version"] for turn in world.turns(session_id)] == [0, 0]
    # A conversation changes over once its prompt is warm, or after a minute.
    deadline = time.monotonic() + 180
    while world.turns(session_id)[-1]["policy_version"] == 0 and time.monotonic() < deadline:
        assert world.claw.ask("frank", "And then?")
    turns = world.turns(session_id)
    assert turns[-1]["policy_version"] == 1
    assert all(turn["next_state"] for turn in turns[:-1])


def test_the_server_is_restarted_in_the_middle(world: World) -> None:
    """First while it replies, then with nobody there when OpenClaw asks, which then repeats itself."""
    session_id = world.claw.session_id("alice")
    before = world.turns(session_id)
    with ThreadPoolExecutor(1) as pool:
        asked = begin(world, pool, "alice", "Are you there?")
        assert world.server.stop() == 0
        assert asked.result()
        asked = pool.submit(world.claw.ask, "alice", "Anybody?")
        time.sleep(3)
        world.server.start()
        assert asked.result()
    assert world.claw.ask("alice", "Good.")
    turns = main_line(world.turns(session_id))
    last = next(number for number, turn in enumerate(turns) if turn["id"] == main_line(before)[-1]["id"])
    said = [next_texts(turn) for turn in turns[last:]]
    assert said == [[("user", "Are you there?")], [("user", "Anybody?")], [("user", "Good.")], []]
    assert [t["continues"] for t in turns[last + 1 :]] == [t["id"] for t in turns[last:-1]]
    assert world.status()["policy_version"] == 1


def test_every_token_is_the_engine_s_own(world: World) -> None:
    """Prompts can be rebuilt from what was stored; replies are what the stored ids say."""
    turns = stored_turns(world)
    renderer = build_renderer(load_config(environment={}), world.model_path)
    assert len(turns) > 20
    for turn in turns:
        request = stored_request(turn)
        assert renderer.render(request.messages, request.tools) == turn.prompt_ids
        parser, detokenizer = renderer.parser(turn.prompt_ids, request.tools), renderer.detokenizer()
        text = "".join(detokenizer.feed(token.id) for token in turn.tokens) + detokenizer.finish()
        deltas = [*parser.feed(text), *parser.finish()]
        assert "".join(delta.content for delta in deltas) == (turn.reply["content"] or "")
        assert {token.policy_version for token in turn.tokens} == {turn.policy_version}
        assert all(token.logprob <= 0 for token in turn.tokens)
        assert [token.finish_reason is not None for token in turn.tokens] == [False] * (
            len(turn.tokens) - 1
        ) + [True]
    scripted = [turn for turn in turns if turn.reply.get("tool_calls")]
    assert len(scripted) == sum(said.startswith("<tool_call>[{") for said in SAYS.values()) == 5


def test_openclaw_saw_no_error(world: World) -> None:
    assert world.claw.errors() == []
    with world.http as http:
        counted = http.get("/metrics").text
    assert not [line for line in counted.splitlines() if 'status="5' in line]


def stored_turns(world: World) -> list[Any]:
    ledger = ServeLedger(sqlite_url(world.server.home / "serve.db"))
    try:
        turns = [turn for session, _ in ledger.iter_sessions() for turn in session]
    finally:
        ledger.close()
    return [turn for turn in turns if turn.user == "default"]
