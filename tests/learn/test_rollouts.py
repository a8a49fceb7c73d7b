"""Episodes in the same loop: sessions with a reward, compared in groups, trained into their own policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.judge import RulesJudge
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.testing import WordJudge
from openclaw_rl.train.rollouts import ALIKE, FAILED, NO_REWARD
from openclaw_rl.train.worker import STALE
from openclaw_rl.types import Judge, JudgeCase, JudgeError, Priority, Verdict
from openclaw_rl.users import Users

from .test_training import Make, Stack, make, run, talk, tiny

__all__ = ["make", "tiny"]
GOOD, BAD = "good", "bad"
#: At temperature 1 a token counts as what it was sampled with.
ASKED = {"model": "default", "max_tokens": 4, "temperature": 1.0}


class Agents:
    """Clients with an environment's key, in a system where people talk, too."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.number = stack, 0
        key = stack.system.keys.add("agent")
        Users.in_home(stack.home).change("agent", environment="maze")
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(stack.system.app()),
            base_url="http://test",
            headers={"authorization": f"Bearer {key}"},
        )

    async def episode(self, *said: str, then: str | None = None) -> str:
        """A session in which the environment says so many things; its id. ``then``: the last result."""
        self.number += 1
        session, messages = f"env-{self.number}", [{"role": "user", "content": "go"}]
        for said_next in (*said, None):
            answer = await self.http.post(
                "/v1/chat/completions",
                json={**ASKED, "seed": self.number, "messages": messages},
                headers={"x-session-id": session, "x-turn-type": "main"},
            )
            assert answer.status_code == 200, answer.text
            if said_next is not None:
                reply = answer.json()["choices"][0]["message"]
                messages += [reply, {"role": "user", "content": said_next}]
        last = [{"role": "tool", "tool_call_id": "c", "content": then}] if then else []
        await self.http.post(f"/v1/sessions/{session}/close", json={"messages": last})
        await self.stack.system.gateway.drain()
        return session

    async def reward(self, session: str, **said: Any) -> httpx.Response:
        answer = await self.http.post(f"/v1/sessions/{session}/reward", json=said)
        assert answer.status_code == 200, answer.text
        return answer

    async def group(self, name: str, *rewards: float | None) -> list[str]:
        sessions = [await self.episode(GOOD if (reward or 0) > 0 else BAD) for reward in rewards]
        for session, reward in zip(sessions, rewards, strict=True):
            how = {"failure": "environment"} if reward is None else {"reward": reward}
            await self.reward(session, group=name, size=len(rewards), **how)
        return sessions

    async def states(self, sessions: list[str]) -> set[tuple[str, str | None]]:
        found = [(await self.http.get(f"/v1/sessions/{session}")).json()["turns"] for session in sessions]
        return {(turn["state"], turn["reason"]) for turns in found for turn in turns}


@pytest.fixture
async def agents(make: Make) -> AsyncIterator[Agents]:
    made = Agents(make(env_batch_size=4))
    yield made
    await made.http.aclose()


async def judge(agents: Agents, judge: Judge) -> None:
    """Each turn, three times if it fails."""
    ledgers = agents.stack.system.ledgers
    queue = LedgerJudgeQueue(ledgers.serve, ledgers.learn, idle_s=1e12)
    for seconds in range(0, 30, 10):
        queue.pull()
        for turn_id in queue.ready(99, 1e12 + seconds):
            await JudgeWorker(queue, judge)._judge_one(turn_id)


class Broken(WordJudge):
    async def evaluate(self, case: JudgeCase) -> Verdict:
        raise JudgeError("no answer")


async def learn(agents: Agents) -> None:
    await agents.stack.judge()
    await run(agents.stack.worker())


async def test_a_group_with_both_ends_makes_a_version_of_its_own(agents: Agents) -> None:
    sessions = await agents.group("task 1", 1.0, -1.0)
    await learn(agents)
    assert await agents.states(sessions) == {("trained", None)}
    [version, base] = (await agents.stack.get("/v1/policies?scope=env:maze"))["data"]
    assert (version["scope"], version["status"], version["num_samples"]) == ("env:maze", "serving", 4)
    assert base["version"] == 0
    assert {check["name"] for check in version["gate"]["checks"]} <= {"finite", "tool calls", "calls right"}
    next_one = await agents.http.post(
        "/v1/chat/completions", json={"model": "default", "messages": [{"role": "user", "content": "go"}]}
    )
    assert next_one.headers["x-policy-version"] == str(version["version"])
    live = await agents.stack.http.post(
        "/v1/chat/completions", json={"model": "default", "messages": [{"role": "user", "content": "hi"}]}
    )
    assert live.headers["x-policy-version"] == "0", "people's policy is another one"
    [found] = (await agents.stack.get("/v1/environments"))["data"]
    assert {name: found[name] for name in ("scope", "attempts", "solved", "of", "failures")} == {
        "scope": "env:maze", "attempts": 2, "solved": 1, "of": 2, "failures": {"model": 1},
    }  # fmt: skip
    [base] = found["versions"]
    assert (base["version"], base["solved"], base["of"]) == (0, 1, 2)
    assert base["low"] < 0.5 < base["high"]


async def test_solved_is_what_the_command_line_counts_as_solved(agents: Agents) -> None:
    """Half of the tests, or a valid try: better than nothing, and not solved."""
    await agents.group("task 1", 1.0, 0.5, 0.99, -0.8)
    await learn(agents)
    [found] = (await agents.stack.get("/v1/environments"))["data"]
    assert (found["solved"], found["of"], found["failures"]) == (1, 4, {"model": 3})
    rows = (await agents.stack.get("/v1/environments/maze/attempts"))["data"]
    assert {row["reward"]: row["failure"] for row in rows} == {
        1.0: "", 0.5: "model", 0.99: "model", -0.8: "model",
    }  # fmt: skip


async def test_signals_are_the_groups(agents: Agents) -> None:
    """Outcome and process, each in standard deviations of the group: here 1, and 0.3 times 1.4 or 0."""
    won, lost = await agents.group("task 1", 1.0, -1.0)
    await learn(agents)
    policies = agents.stack.policy_ledger
    signal = {}
    for session in (won, lost):
        turns = (await agents.http.get(f"/v1/sessions/{session}")).json()["turns"]
        made = [policies.examples_of(turn["id"])[0] for turn in turns]
        signal[session] = [float(each.signal_NK.mean()) for each in made]
    # Verdicts of the four steps: +1 and 0 where it was won, −1 and 0 where it was lost.
    spread = 0.5**0.5
    assert signal[won] == pytest.approx([1 + 0.3 / spread, 1.0], abs=0.05)
    assert signal[lost] == pytest.approx([-1 - 0.3 / spread, -1.0], abs=0.05)


async def test_exactly_what_was_sampled_is_learned(agents: Agents) -> None:
    """Each turn its own reply, once: nothing of its history, nothing of the environment's answers."""
    sessions = await agents.group("task 1", 1.0, -1.0)
    await learn(agents)
    ledgers = agents.stack.system.ledgers
    for session in sessions:
        turns = (await agents.http.get(f"/v1/sessions/{session}")).json()["turns"]
        assert len(turns) == 2
        for each in turns:
            [made] = agents.stack.policy_ledger.examples_of(each["id"])
            turn = ledgers.serve.load_turn(each["id"])
            assert turn is not None
            assert list(made.reply_ids) == [token.id for token in turn.tokens]
            assert list(made.prompt_ids) == list(turn.prompt_ids)
            assert len(made.signal_NK) == len(turn.tokens)


async def test_nothing_is_learned_before_the_group_is_complete(agents: Agents) -> None:
    first, second = await agents.episode(GOOD), await agents.episode(BAD)
    await agents.reward(first, reward=1.0, group="g", size=2)
    await learn(agents)
    assert await agents.states([first, second]) == {("excluded", NO_REWARD)}
    await agents.reward(second, reward=-1.0, group="g", size=2)
    await learn(agents)
    assert await agents.states([first, second]) == {("trained", None)}


async def test_attempts_that_went_alike_say_so(agents: Agents) -> None:
    sessions = await agents.group("g", 1.0, 1.0)
    stack = agents.stack
    stack.config = stack.config.model_copy(
        update={"learn": stack.config.learn.model_copy(update={"env_algo_options": {"process_weight": 0.0}})}
    )
    await learn(agents)
    assert await agents.states(sessions) == {("excluded", ALIKE)}


async def test_a_group_with_a_failed_environment_is_not_used(agents: Agents) -> None:
    sessions = await agents.group("g", 1.0, -1.0, None)
    await learn(agents)
    assert await agents.states(sessions) == {("excluded", FAILED.format(failure="environment"))}
    [found] = (await agents.stack.get("/v1/environments"))["data"]
    assert (found["failures"], found["versions"][0]["of"]) == ({"model": 1, "environment": 1}, 2)


async def test_a_judge_that_fails_costs_only_its_own_term(agents: Agents) -> None:
    sessions = await agents.group("g", 1.0, -1.0)
    await judge(agents, Broken())
    await run(agents.stack.worker())
    assert await agents.states(sessions) == {("trained", None)}
    [found] = (await agents.stack.get("/v1/environments"))["data"]
    assert found["unjudged_steps"] == 4


class NothingToGoBy(WordJudge):
    """Cannot judge a reply that nothing followed, as a small model cannot."""

    async def evaluate(self, case: JudgeCase) -> Verdict:
        if case.next_state:
            return await super().evaluate(case)
        return Verdict(0, 0.0, "votes", trainable=False, reason="the session ended with this reply")


async def test_the_last_step_is_learned_from_even_if_it_cannot_be_judged(agents: Agents) -> None:
    """Its attempt's reward is known, and most of all due to it."""
    sessions = await agents.group("g", 1.0, -1.0)
    await judge(agents, NothingToGoBy())
    await run(agents.stack.worker())
    assert await agents.states(sessions) == {("trained", None)}
    funnel = (await agents.stack.get("/v1/status"))["funnel"]
    assert funnel["turns"] == sum(funnel["by_state"].values()) == funnel["by_state"]["trained"] == 4


async def test_an_error_of_the_last_call_counts_in_the_process_term(agents: Agents) -> None:
    """With rules alone, too: both attempts failed, and one of them called wrongly."""
    sessions = [await agents.episode(then=told) for told in ("error: there is no tool 'ad'", "48")]
    for session in sessions:
        await agents.reward(session, reward=-1.0, group="g", size=2)
    await judge(agents, RulesJudge())
    await run(agents.stack.worker())
    signs = []
    for session in sessions:
        [turn] = (await agents.http.get(f"/v1/sessions/{session}")).json()["turns"]
        [made] = agents.stack.policy_ledger.examples_of(turn["id"])
        signs.append(float(made.signal_NK.mean()) > 0)
    assert signs == [False, True]


async def test_a_reward_that_is_sent_again_counts_once(agents: Agents) -> None:
    sessions = await agents.group("g", 1.0, -1.0)
    await agents.reward(sessions[0], reward=-1.0, group="g", size=2)
    await learn(agents)
    assert (await agents.stack.get("/v1/environments"))["data"][0]["versions"][0]["solved"] == 1


async def test_a_killed_learner_finds_the_group_again(agents: Agents) -> None:
    sessions = await agents.group("g", 1.0, -1.0)
    await agents.stack.judge()
    rollouts = agents.stack.policy_ledger.rollouts()
    rollouts.pull()
    [group] = rollouts.complete(9)
    with pytest.raises(AttributeError):  # it dies halfway through its transaction
        rollouts.settle(group, [None])  # type: ignore[list-item]
    assert [each.id for each in rollouts.complete(9)] == ["g"]
    await run(agents.stack.worker())
    assert await agents.states(sessions) == {("trained", None)}


async def test_what_is_forgotten_is_gone_from_the_attempts(agents: Agents) -> None:
    sessions = await agents.group("g", 1.0, -1.0)
    await learn(agents)
    assert (await agents.stack.http.delete(f"/v1/sessions/{sessions[0]}")).status_code == 200
    assert (await agents.stack.get("/v1/environments"))["data"][0]["attempts"] == 1


async def test_too_old_is_not_learned_from(make: Make) -> None:
    agents = Agents(make(env_batch_size=4, env_max_staleness=0))
    late = [await agents.episode(GOOD), await agents.episode(BAD)]
    first = await agents.group("g1", 1.0, -1.0)
    await learn(agents)
    for session, reward in zip(late, (1.0, -1.0), strict=True):
        await agents.reward(session, reward=reward, group="g2", size=2)
    await learn(agents)
    assert await agents.states(first) == {("trained", None)}
    assert await agents.states(late) == {("excluded", STALE)}
    await agents.http.aclose()


async def test_people_learn_beside_it_as_before(agents: Agents) -> None:
    turns = await talk(agents.stack, 4)
    sessions = await agents.group("g", 1.0, -1.0)
    await learn(agents)
    assert {(await agents.stack.get(f"/v1/turns/{turn}"))["state"] for turn in turns} == {"trained"}
    assert await agents.states(sessions) == {("trained", None)}
    scopes = {each["scope"] for each in (await agents.stack.get("/v1/policies"))["data"]}
    assert scopes == {"everyone", "env:maze"}, "an agent's key is no second person"


async def test_agents_wait_for_people(agents: Agents) -> None:
    asked: list[Priority] = []
    engine = agents.stack.engine
    generate = engine.generate

    def watch(request: Any) -> Any:
        asked.append(request.priority)
        return generate(request)

    answerer = agents.stack.system.gateway.answerer
    answerer.engine = type(
        "Watched",
        (),
        {"__getattr__": lambda self, name: watch if name == "generate" else getattr(engine, name)},
    )()  # type: ignore[attr-defined]
    await agents.episode()
    await agents.stack.chat("hello")
    assert asked == [Priority.ENVIRONMENT, Priority.LIVE]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"group": "g", "size": 2}, 400, "either a reward, or the failure"),
        ({"reward": 1, "failure": "environment", "group": "g", "size": 2}, 400, "either a reward"),
        ({"reward": 1}, 400, "group"),
        ({"reward": "NaN", "group": "g", "size": 2}, 400, "reward"),
        ({"reward": 1, "group": "g", "size": 0}, 400, "size"),
        ({"failure": "weather", "group": "g", "size": 2}, 400, "failure"),
    ],
)
async def test_what_is_no_reward_is_said(
    agents: Agents, body: dict[str, Any], status: int, words: str
) -> None:
    session = await agents.episode()
    answer = await agents.http.post(f"/v1/sessions/{session}/reward", json=body)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text


async def test_a_persons_session_gets_no_reward(agents: Agents) -> None:
    turn = await agents.stack.chat("hello")
    session = (await agents.stack.get(f"/v1/turns/{turn}"))["session_id"]
    body = {"reward": 1, "group": "g", "size": 1}
    answer = await agents.stack.http.post(f"/v1/sessions/{session}/reward", json=body)
    assert answer.status_code == 409
    assert "openclaw-rl users environment" in answer.text
    missing = await agents.http.post(f"/v1/sessions/{session}/reward", json=body)
    assert missing.status_code == 404, "somebody else's is not there"
