"""From what a person says to what is trained: wishes, remarks, praise, and wishes that cannot be had."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.normalise import is_ephemeral
from openclaw_rl.capture.stored import stored_request
from openclaw_rl.capture.wishes import CANNOT
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.testing import WordJudge
from openclaw_rl.testing.contracts.algorithm import FakeTeacher
from openclaw_rl.testing.waiting import until
from openclaw_rl.train.lessons import (
    ACCEPTED,
    LEARNED_SINCE,
    NO_LESSON,
    NOTHING_LEFT,
    SAME_WISH,
    SampleMaker,
)
from openclaw_rl.train.prompts import Prompts
from openclaw_rl.types import EVERYONE, JudgeCase, Scope, Verdict

from .conftest import Speaker
from .test_training import Make, make, run, talk, tiny

__all__ = ["make", "tiny"]
LISTS = "please put it in a table"


class Complaints(WordJudge):
    """What follows after "bad:" is the hint."""

    async def evaluate(self, case: JudgeCase) -> Verdict:
        verdict = await super().evaluate(case)
        return replace(verdict, hints=tuple(hint.removeprefix("bad: ") for hint in verdict.hints))


class LastFirst(Complaints):
    """What was said first is judged last."""

    def __init__(self, is_written: Callable[[], bool]) -> None:
        """``is_written``: whether the later verdict is in the ledger."""
        self._is_written = is_written

    async def evaluate(self, case: JudgeCase) -> Verdict:
        if len(case.messages) == 1:
            await until(lambda: self._is_written() or None, "the later verdict")
        return await super().evaluate(case)


class Teacher(FakeTeacher):
    async def prepare(self, scope: Scope) -> None:
        """The base, always."""


def wishes_of(system: ServingSystem) -> Any:
    return system.ledgers.policies.wishes(relation, is_only_taking_back, is_wish)


def sampler_of(system: ServingSystem) -> SampleMaker:
    renderer = system.gateway.renderer
    assert renderer is not None
    prompts = Prompts(renderer, stored_request, is_ephemeral)
    algorithm = Hinted(requests=3, answers=2, keep=1)
    return SampleMaker(system.ledgers.policies, algorithm, Teacher(), prompts, wishes_of(system), 0.0)  # type: ignore[arg-type]


async def judge(system: ServingSystem) -> None:
    await system.gateway.drain()
    queue = LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, idle_s=1e12)
    worker = JudgeWorker(queue, Complaints())
    while await worker.step():
        pass


async def converse(system: ServingSystem, *said: str, first: Any = None) -> list[str]:
    """The ids of the replies, one for each thing said; the last one is not judged yet."""
    speaker, messages, ids = Speaker(system), [first] if first else [], []
    for number, text in enumerate(said):
        messages.append({"role": "user", "content": text})
        reply = await speaker.ask(messages, f"reply {number}")
        messages.append({"role": "assistant", "content": reply["content"]})
        ids.append(reply["id"])
        await judge(system)  # one after the other, as they are said
    return ids


async def looked_at(system: ServingSystem, turn_id: str) -> tuple[str, str | None]:
    turn = await Speaker(system).turn(turn_id)
    return turn["state"], turn.get("reason")


async def test_a_complaint_with_a_wish_is_taught_on_several_requests(system: ServingSystem) -> None:
    first, _ = await converse(system, "question", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert (await looked_at(system, first))[0] == "sampled"
    assert wishes_of(system).texts("default", EVERYONE) == (LISTS,)
    policies = system.ledgers.policies
    policy = policies.claim(8, 0, "", 0, EVERYONE)
    assert policy is not None
    made = policies.items(policy.version)
    assert len(made) == 3
    assert {example.source.hint for example in made} == {LISTS}
    turn = system.ledgers.serve.load_turn(first)
    assert turn is not None
    assert made[0].prompt_ids == turn.prompt_ids


@pytest.mark.parametrize(
    ("said", "reason"), [("good, thanks", ACCEPTED), ("That is bad.", NO_LESSON)], ids=["praise", "a remark"]
)
async def test_praise_and_remarks_make_no_step(system: ServingSystem, said: str, reason: str) -> None:
    first, _ = await converse(system, "question", said)
    await sampler_of(system).run()
    assert await looked_at(system, first) == ("excluded", reason)
    assert system.ledgers.policies.waiting()[0] == 0
    assert wishes_of(system).texts("default", EVERYONE) == ()


def answered_by(system: ServingSystem, version: int, turn_id: str) -> None:
    with system.ledgers.serve.writing() as connection:
        connection.exec_driver_sql("UPDATE turns SET policy_version = ? WHERE id = ?", (version, turn_id))


@pytest.mark.parametrize("version", [0, 1])
async def test_a_complaint_that_says_nothing_teaches_what_a_version_was_to_learn(
    system: ServingSystem, version: int
) -> None:
    """The base never learned it; about a version's reply it means the wish, or what the wish costs."""
    await converse(system, "question", f"bad: {LISTS}")
    first, second, _ = await converse(system, "something else", "That is bad.", "That is bad again.")
    answered_by(system, version, first)
    answered_by(system, version, second)
    await sampler_of(system).run()
    state, reason = await looked_at(system, first)
    assert (state, reason) == (("sampled", None) if version else ("excluded", NO_LESSON))
    assert await looked_at(system, second) == ("excluded", NO_LESSON), "once in a conversation"
    if version:
        wishes_of(system).count_version([first], passed=True)
        assert [wish.versions for wish in wishes_of(system).of_user("default", EVERYONE)] == [1]


def publish_next(system: ServingSystem) -> int:
    policies = system.ledgers.policies
    policy = policies.claim(8, policies.serving(), "", 0, EVERYONE)
    assert policy is not None
    policies.trained(policy.version, {})
    wishes_of(system).count_version(policies.claimed(policy.version), passed=True)
    assert policies.publish(policy.version, {})
    return int(policy.version)


ROLE = {"role": "system", "content": "Extract all dates from the text. Answer with a JSON list of dates."}


async def test_a_complaint_about_an_earlier_version_does_not_teach_what_the_serving_one_knows(
    system: ServingSystem,
) -> None:
    """Some conversations stay with an earlier version for a while, and others began before the newest one."""
    await converse(system, "question", f"bad: {LISTS}")
    await sampler_of(system).run()
    made = publish_next(system)
    earlier, _ = await converse(system, "something else", f"bad: {LISTS}")
    new, _ = await converse(system, "another thing", "bad: please talk like a pirate")
    serving, _ = await converse(system, "one more", f"bad: {LISTS}")
    elsewhere, _ = await converse(system, "a text", f"bad: {LISTS}", first=ROLE)
    answered_by(system, made, serving)
    await sampler_of(system).run()
    assert await looked_at(system, earlier) == ("excluded", LEARNED_SINCE)
    assert [await looked_at(system, turn_id) for turn_id in (new, serving, elsewhere)] == 3 * [
        ("sampled", None)
    ]


async def test_a_newer_version_that_others_taught_knows_nothing_of_it(system: ServingSystem) -> None:
    await converse(system, "question", f"bad: {LISTS}")
    await sampler_of(system).run()
    policies = system.ledgers.policies
    theirs = policies.reserve(policies.serving(), {})
    policies.reserved(theirs)
    assert policies.publish(theirs, {})
    earlier, _ = await converse(system, "something else", f"bad: {LISTS}")
    await sampler_of(system).run()
    assert await looked_at(system, earlier) == ("sampled", None)


async def test_said_once_more_in_a_conversation_it_is_not_taught_again(system: ServingSystem) -> None:
    first, second, _ = await converse(system, "question", f"bad: {LISTS}", "bad: put it in a table please")
    await sampler_of(system).run()
    assert (await looked_at(system, first))[0] == "sampled"
    assert await looked_at(system, second) == ("excluded", SAME_WISH)
    assert wishes_of(system).of_user("default", EVERYONE)[0].tried == 1


async def test_judged_in_another_order_it_is_not_taught_twice_either(system: ServingSystem) -> None:
    """A rule knows at once that the second reply failed; the votes on the first take their time."""
    speaker = Speaker(system)
    messages: list[Any] = [{"role": "user", "content": "question"}]
    ids = []
    for n in range(3):
        reply = await speaker.ask(messages, f"reply {n}")
        ids.append(reply["id"])
        messages += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": f"bad: {LISTS}"},
        ]
    await system.gateway.drain()
    queue = LedgerJudgeQueue(system.ledgers.serve, system.ledgers.learn, idle_s=1e12)
    worker = JudgeWorker(queue, LastFirst(lambda: system.ledgers.learn.verdict(ids[1]) is not None))
    while await worker.step():
        pass
    await sampler_of(system).run()
    states = [await looked_at(system, turn) for turn in ids[:2]]
    assert states[1][0] == "sampled"
    assert states[0] == ("excluded", SAME_WISH)
    assert wishes_of(system).of_user("default", EVERYONE)[0].tried == 1


async def test_a_remark_about_facts_does_not_fail_the_wish(system: ServingSystem) -> None:
    said = [f"bad: {LISTS}", *("bad: it was Canberra" for _ in range(5))]
    await converse(system, "question", *said)
    await sampler_of(system).run()
    [wish] = wishes_of(system).of_user("default", EVERYONE)
    assert (wish.text, wish.tried) == (LISTS, 0)


async def test_another_wish_in_the_same_conversation_does_not_fail_the_first(system: ServingSystem) -> None:
    await converse(system, "question", f"bad: {LISTS}", "bad: please talk like a pirate", "more")
    await sampler_of(system).run()
    assert [wish.tried for wish in wishes_of(system).of_user("default", EVERYONE)] == [0, 0]


async def test_what_was_asked_for_in_vain_six_times_says_so_on_the_turn(system: ServingSystem) -> None:
    ids = await converse(system, "question", *(f"bad: {LISTS}" for _ in range(7)))
    await sampler_of(system).run()
    assert [await looked_at(system, turn) for turn in ids[1:7]] == [
        *(("excluded", SAME_WISH) for _ in range(5)), ("excluded", CANNOT)
    ]  # fmt: skip
    assert wishes_of(system).texts("default", EVERYONE) == ()


class Killed(BaseException):
    """Like kill -9, as far as one process can do it to itself."""


@pytest.mark.parametrize("last", ["please talk like a pirate", "you can stop with the tables"])
async def test_a_kill_between_taking_up_and_settling_loses_and_doubles_nothing(
    system: ServingSystem, last: str
) -> None:
    """The second complaint in a conversation brings a wish of its own, or takes the first one back."""
    _, second, _ = await converse(system, "question", f"bad: {LISTS}", f"bad: {last}")
    policies, sampler = system.ledgers.policies, sampler_of(system)
    settle, calls = policies.settle, []

    def dies(*arguments: Any, **more: Any) -> None:
        calls.append(arguments[1].id)
        if arguments[1].id == second:
            raise Killed
        settle(*arguments, **more)

    policies.settle = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await sampler.run()
    policies.settle = settle  # type: ignore[method-assign]
    before = wishes_of(system).texts("default", EVERYONE)
    await sampler_of(system).run()
    assert wishes_of(system).texts("default", EVERYONE) == before
    assert before == ((LISTS, last) if "pirate" in last else ())
    expected = ("sampled", None) if "pirate" in last else ("excluded", NOTHING_LEFT)
    assert await looked_at(system, second) == expected
    assert calls.count(second) == 1


# --- what cannot be had -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["given up", "paused"])
async def test_when_a_wish_ends_the_version_from_before_it_serves_again(make: Make, how: str) -> None:
    stack = make()
    turns = await talk(stack, 4)
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    assert stack.policy_ledger.serving() == 1
    turn = stack.system.ledgers.serve.load_turn(turns[0])
    assert turn is not None
    wishes = stack.policy_ledger.wishes(relation, is_only_taking_back, is_wish)
    wishes.take_up(turn, "Please sing.", 0)
    for _ in range(8):
        if how == "given up":
            wishes.failed(turn)
        else:
            wishes.count_version([turn.id], passed=False)
    await run(worker)
    assert stack.policy_ledger.serving() == 0
    assert wishes.ending(EVERYONE) == []
    assert any("back from version 1" in line for line in stack.said)


@pytest.mark.parametrize(("rolled_back", "served"), [(False, 0), (True, 0), (True, 1)])
async def test_a_paused_wish_leaves_the_version_that_met_it_now_and_then(
    make: Make, rolled_back: bool, served: int
) -> None:
    """Nobody praised it, but a third of its replies had the form when it was checked: the base has none.

    One that somebody rolled back stays where it is, also if it served when the wish came.
    """
    stack = make()
    turns = await talk(stack, 4)
    await stack.judge()
    await run(stack.worker())
    turn = stack.system.ledgers.serve.load_turn(turns[0])
    assert turn is not None
    wishes = stack.policy_ledger.wishes(relation, is_only_taking_back, is_wish)
    wishes.take_up(turn, "Please answer in one sentence.", served)
    with stack.policy_ledger.db.begin() as connection:
        gate = json.dumps({"passed": True, "checks": [{"name": "in form", "value": 0.35, "bound": 0.1}]})
        connection.exec_driver_sql("UPDATE policies SET gate = ? WHERE version = 1", (gate,))
    if rolled_back:
        stack.policy_ledger.promote(0, "rolled back by hand")
    for _ in range(5):
        wishes.count_version([turn.id], passed=False)
    await run(stack.worker())
    assert wishes.ending(EVERYONE) == []
    assert stack.policy_ledger.serving() == (0 if rolled_back else 1)


async def test_only_complaints_by_people_who_did_not_say_it_again_count_against_versions(
    system: ServingSystem,
) -> None:
    made_for, _ = await converse(system, "question", f"bad: {LISTS}")
    await sampler_of(system).run()
    wishes_of(system).count_version([made_for], passed=True)
    first, second, _ = await converse(system, "something else", f"bad: {LISTS}", f"bad: {LISTS}")
    for turn_id in (first, second):
        answered_by(system, 1, turn_id)
    await sampler_of(system).run()
    [wish] = wishes_of(system).of_user("default", EVERYONE)
    assert (wish.in_vain, wish.tried) == (1, 1)


async def test_while_another_wish_is_pursued_its_version_serves_on(make: Make) -> None:
    stack = make()
    turns = await talk(stack, 4)
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    wishes = stack.policy_ledger.wishes(relation, is_only_taking_back, is_wish)
    first, second = [stack.system.ledgers.serve.load_turn(turn) for turn in turns[:2]]
    assert first is not None
    assert second is not None
    wishes.take_up(first, "Please answer in French.", 0)
    wishes.take_up(second, "Please sing.", 0)
    for _ in range(6):
        wishes.failed(second)
    await run(worker)
    assert wishes.texts(first.user, EVERYONE) == ("Please answer in French.",)
    assert stack.policy_ledger.serving() == 1


async def test_another_model_learns_the_same_wishes_again(system: ServingSystem) -> None:
    policies, wishes = system.ledgers.policies, wishes_of(system)
    policies.fingerprint = system.gateway.answerer.fingerprint = "old"
    first, _ = await converse(system, "question", f"bad: {LISTS}")
    await sampler_of(system).run()
    policy = policies.claim(8, 0, "", 0, EVERYONE)
    assert policy is not None
    policies.trained(policy.version, {})
    assert policies.publish(policy.version, {})
    wishes.count_version([first], passed=True)
    assert await sampler_of(system).relearn() == 0, "the model is the same"
    policies.fingerprint = system.gateway.answerer.fingerprint = "new"
    assert await sampler_of(system).relearn() == 1
    assert (await looked_at(system, first))[0] == "sampled"
    [wish] = wishes.of_user("default", EVERYONE)
    assert (wish.text, wish.versions) == (LISTS, 0)
    again = policies.claim(8, 0, "", 0, EVERYONE)
    assert again is not None
    assert len(policies.items(again.version)) == 3
    assert policies.foreign(again.version) == []
    assert await sampler_of(system).relearn() == 0, "once"
    assert policies.counts()["claimed"] == 1
    assert policies.counts()["trained"] == 0


async def test_what_the_old_model_could_not_do_is_tried_again(system: ServingSystem) -> None:
    policies, wishes = system.ledgers.policies, wishes_of(system)
    policies.fingerprint = system.gateway.answerer.fingerprint = "old"
    await converse(system, "question", f"bad: {LISTS}")
    await sampler_of(system).run()
    for wish in wishes.of_user("default", EVERYONE):
        wishes._end(wish, "giving up")
        wishes.ended(wishes.ending(EVERYONE)[0])
    assert wishes.texts("default", EVERYONE) == ()
    policies.fingerprint = "new"
    assert await sampler_of(system).relearn() == 1
    assert wishes.texts("default", EVERYONE) == (LISTS,)


async def test_a_complaint_about_the_old_models_reply_teaches_the_new_one(system: ServingSystem) -> None:
    policies = system.ledgers.policies
    policies.fingerprint = system.gateway.answerer.fingerprint = "old"
    first, _ = await converse(system, "question", f"bad: {LISTS}")
    policies.fingerprint = "new"
    await sampler_of(system).run()
    assert (await looked_at(system, first))[0] == "sampled"
    policy = policies.claim(8, 0, "", 0, EVERYONE)
    assert policy is not None
    assert policies.foreign(policy.version) == []
