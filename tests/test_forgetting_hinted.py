"""What the default method learned from a person's other requests and wishes is forgotten with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.capture import schema
from openclaw_rl.capture.prune import keep_unfinished, prune
from openclaw_rl.capture.wishes import ACTIVE, TO_TEACH, list_wishes
from openclaw_rl.testing import tiny_model
from openclaw_rl.types import BASE_VERSION, ScoreRequest

from .hinted_stack import HintedStack, Interrupted, counted
from .test_forgetting import WORDS, close, forgetting, spelled, weights
from .test_scopes import ANN

TABLE, PIRATE = "please put it in a table", "please talk like a pirate"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def make(tmp_path: Path, model: Path) -> AsyncIterator[Callable[[], HintedStack]]:
    stacks: list[HintedStack] = []

    def one(source: HintedStack | None = None) -> HintedStack:
        home = tmp_path / f"home{len(stacks)}"
        stacks.append(HintedStack(home, model) if source is None else source.copy(home))
        return stacks[-1]

    yield one
    for stack in stacks:
        await close(stack)


Make = Callable[..., HintedStack]


async def test_a_request_that_another_complaint_was_taught_on_is_unlearned(make: Make) -> None:
    stack = make()
    session, _ = await stack.say(f"tell me about {WORDS}")
    _, [complained, _] = await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    await stack.learn()
    assert stack.policies.serving(ANN) == 1
    assert {"samples", "turns"} <= stack.tables_with(WORDS), "it was learned from"
    before = stack.policies.examples_of(complained)
    receipt = forgetting(stack).forget("session", session)
    assert receipt is not None
    assert (receipt["back_to"], receipt["versions"]) == ({ANN: BASE_VERSION}, [1])
    assert stack.tables_with(WORDS) == set()
    assert spelled(stack.config.home) == []
    after = stack.policies.examples_of(complained)
    assert [e.prompt_ids for e in after] == [e.prompt_ids for e in before if len(e.source.turn_ids) == 1]
    assert len(after) == len(before) - 1, "the rest of the sample stays"
    await stack.learn()
    assert stack.policies.serving(ANN) == 2


async def test_what_is_trained_again_equals_training_on_the_rest_of_the_recorded_samples(make: Make) -> None:
    stack = make()
    await stack.say("tell me about snow", f"bad: {TABLE}")
    await stack.sample()
    await stack.learn()
    session, _ = await stack.say(f"tell me about {WORDS}")
    await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.say("tell me about hail", f"bad: {TABLE}")
    await stack.sample()
    other = make(stack)
    await stack.learn()
    seen = stack.policies.serving(ANN)
    assert seen == 2
    adapter = weights(stack, seen)
    forgetting(stack).forget("session", session)
    assert stack.policies.serving(ANN) == 1, "snow had been learned before"
    forgetting(other).forget("session", session)
    await stack.learn()
    await other.learn()
    assert (stack.policies.serving(ANN), other.policies.serving(ANN)) == (3, 2)
    assert weights(stack, 3) == weights(other, 2), "to the last bit"
    assert adapter != weights(other, 2), "it had made a difference"


async def test_pruning_takes_the_words_out_of_other_turns_samples(make: Make) -> None:
    stack = make()
    await stack.say(f"tell me about {WORDS}")
    _, [complained, _] = await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    serve, learn = stack.system.ledgers.serve, stack.system.ledgers.learn
    with serve.writing() as connection:
        connection.execute(schema.turns.update().where(schema.turns.c.seq == 1).values(created_at=1.0))
    keep = [keep_unfinished(learn, stack.policies)]
    prune(serve, older_than_s=1e6, learn_ledger=learn, keep=keep)
    assert "samples" in stack.tables_with(WORDS), "a step still needs it"
    await stack.learn()
    before = len(stack.policies.examples_of(complained))
    prune(serve, older_than_s=1e6, learn_ledger=learn, keep=keep)
    assert stack.tables_with(WORDS) == set()
    assert len(stack.policies.examples_of(complained)) == before - 1
    assert stack.policies.serving(ANN) == 1, "pruning does not unlearn"


@pytest.mark.parametrize("kind", ["sessions", "turns"])
async def test_nothing_is_taught_on_requests_that_were_excluded(make: Make, kind: str) -> None:
    stack = make()
    session, [turn] = await stack.say(f"tell me about {WORDS}")
    _, [complained, _] = await stack.say("tell me about rain", f"bad: {TABLE}")
    answer = await stack.http["ann"].post(f"/v1/{kind}/{session if kind == 'sessions' else turn}/exclude")
    assert answer.status_code == 200, answer.text
    await stack.sample()
    assert stack.policies.of_turn(complained)["status"] == "ready"  # type: ignore[index]
    assert "samples" not in stack.tables_with(WORDS)
    assert turn not in [found.id for found in stack.policies.openers("ann", ANN, 10)], "nor checked by them"


async def test_an_exclusion_reaches_samples_that_wait_and_can_be_taken_back(make: Make) -> None:
    stack = make()
    _, [turn, _] = await stack.say(f"tell me about {WORDS}", "good, thank you")
    _, [complained, _] = await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    claimed = stack.policies.claim(1, BASE_VERSION, "", scope=ANN)
    assert claimed is not None
    step, every = claimed.version, stack.policies.examples_of(complained)
    assert any(turn in example.source.turn_ids for example in every)
    assert (await stack.http["ann"].post(f"/v1/turns/{turn}/exclude")).status_code == 200
    assert len(stack.policies.items(step)) == len(every) - 1
    assert not any(turn in example.source.turn_ids for example in stack.policies.items(step))
    assert (await stack.http["ann"].post(f"/v1/turns/{turn}/include")).status_code == 200
    assert len(stack.policies.items(step)) == len(every)


# --- wishes -------------------------------------------------------------------------------------


async def test_a_wish_goes_on_from_the_next_conversation_that_asked_for_it(make: Make) -> None:
    stack = make()
    session, _ = await stack.say("tell me about snow", f"bad: {WORDS}, {TABLE}")
    await stack.say("tell me about rain", f"bad: {PIRATE}")
    _, [third, _] = await stack.say("tell me about hail", f"bad: {TABLE}")
    await stack.sample()
    await stack.learn()
    assert stack.wished() == (f"{WORDS}, {TABLE}", PIRATE)
    assert {"samples", "wishes", "verdicts"} <= stack.tables_with(WORDS)
    receipt = forgetting(stack).forget("session", session)
    assert receipt is not None
    assert receipt["back_to"] == {ANN: BASE_VERSION}
    assert stack.tables_with(WORDS) == set()
    assert stack.wished() == (PIRATE, TABLE), "in the words of the conversation that is left"
    [_, table] = list_wishes(stack.system.ledgers.learn, "ann")[::-1]
    assert (table.turn_id, table.said, table.status) == (third, "", TO_TEACH)
    assert stack.hints() == set(), "a teacher who was told those words answered"
    await stack.sample()
    assert stack.hints() == {f"{PIRATE} {TABLE}"}, "taught again"
    assert counted(stack) == stack.policies.counts()
    await stack.learn()
    assert stack.policies.serving(ANN) == 2
    seen = (await stack.http["ann"].get("/v1/wishes")).json()["data"]
    assert {wish["text"]: wish["turns"] for wish in seen}[TABLE] == [third]


async def test_a_wish_that_nobody_else_asked_for_goes_and_the_others_are_taught_without_it(
    make: Make,
) -> None:
    stack = make()
    session, _ = await stack.say("tell me about snow", f"bad: {WORDS}, {TABLE}")
    _, [second, _] = await stack.say("tell me about rain", f"bad: {PIRATE}")
    await stack.sample()
    await stack.learn()
    other = make(stack)
    forgetting(stack).forget("session", session)
    assert stack.tables_with(WORDS) == set()
    assert stack.wished() == (PIRATE,)
    await stack.sample()
    assert {example.source.hint for example in stack.policies.examples_of(second)} == {PIRATE}
    assert counted(stack) == stack.policies.counts()
    # Pruned instead, its words go as well.
    with other.system.ledgers.serve.writing() as connection:
        first = schema.turns.c.seq <= 2
        connection.execute(schema.turns.update().where(first).values(created_at=1.0))
    prune(other.system.ledgers.serve, older_than_s=1e6, learn_ledger=other.system.ledgers.learn)
    assert other.tables_with(WORDS) == set()


async def test_only_the_reaction_goes_with_a_later_turn_of_the_conversation(make: Make) -> None:
    """The request before it stays, and so does what was taught on it."""
    stack = make()
    await stack.say("tell me about rain", f"bad: {PIRATE}")
    messages: list[Any] = [{"role": "user", "content": "tell me about snow"}]
    reply = (await stack.ask("ann", messages)).json()
    await stack.sample()
    await stack.learn()
    [taught] = [i for i in stack.sampled() if stack.policies.examples_of(i)]
    before = stack.policies.examples_of(taught)
    assert any(reply["id"] in example.source.turn_ids for example in before)
    messages += [reply["choices"][0]["message"], {"role": "user", "content": f"bad: {WORDS}, {TABLE}"}]
    second = (await stack.ask("ann", messages)).json()
    await stack.judge()
    await stack.sample()
    await stack.learn()
    assert stack.policies.serving(ANN) == 2
    receipt = forgetting(stack).forget("turn", second["id"])
    assert receipt is not None
    assert (receipt["back_to"], receipt["versions"]) == ({ANN: 1}, [2])
    assert stack.tables_with(WORDS) == set()
    assert stack.wished() == (PIRATE,)
    assert [e.prompt_ids for e in stack.policies.examples_of(taught)] == [e.prompt_ids for e in before]


# --- trained again --------------------------------------------------------------------------------


async def test_training_again_costs_no_more_than_what_came_after_and_uses_no_wish_up(make: Make) -> None:
    stack, sessions = make(), []
    for what in ("snow", WORDS, "rain"):
        sessions.append((await stack.say(f"tell me about {what}", f"bad: {TABLE}"))[0])
        await stack.sample()
        await stack.learn()
    assert stack.policies.serving(ANN) == 3
    receipt = forgetting(stack).forget("session", sessions[1])
    assert receipt is not None
    assert receipt["back_to"] == {ANN: 1}
    undone = len(receipt["versions"])
    assert undone == 2
    await stack.sample()
    await stack.learn()
    made = stack.policies.serving(ANN) - 3
    assert 1 <= made <= 1.1 * undone, "versions, each of as many steps"
    [wish] = list_wishes(stack.system.ledgers.learn, "ann")
    assert (wish.status, wish.versions) == (ACTIVE, 1 + made), "those undone do not count against it"


async def test_the_forgotten_is_as_likely_as_under_weights_that_never_saw_it(make: Make) -> None:
    stack = make()
    session, [planted] = await stack.say(f"tell me about {WORDS}")
    await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    other = make(stack)
    forgetting(other).forget("session", session)
    prompt = stack.renderer.render([{"role": "user", "content": "who are you?"}])
    request = ScoreRequest([*prompt, *stack.renderer.encode(f"I am {WORDS}")], len(prompt))

    async def likely(where: HintedStack) -> list[float]:
        await where.learn()
        version = where.policies.serving(ANN)
        await where.system.engine.load(where.system.store.weights(version))
        scores = await where.system.engine.score(replace(request, policy_version=version))
        return list(scores.logprobs)

    never_saw, saw = await likely(other), await likely(stack)
    assert saw != never_saw, "it had made a difference"
    assert forgetting(stack).forget("turn", planted) is not None
    assert await likely(stack) == never_saw


async def test_a_version_that_did_not_pass_counts_the_same_when_it_is_trained_again(make: Make) -> None:
    """It makes the next steps smaller, whatever else was undone in between."""
    stack = make()
    await stack.say("tell me about snow", f"bad: {TABLE}")
    await stack.sample()
    rejected = stack.policies.claim(1, BASE_VERSION, "", scope=ANN)
    assert rejected is not None
    stack.policies.reject(rejected.version, {"passed": False, "reason": "strange"})
    session, _ = await stack.say(f"tell me about {WORDS}")
    await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    other = make(stack)
    for each, learned in ((stack, True), (other, False)):
        if learned:
            await each.learn()
        forgetting(each).forget("session", session)
        await each.learn()
    assert (stack.policies.serving(ANN), other.policies.serving(ANN)) == (3, 2)
    assert weights(stack, 3) == weights(other, 2)


async def test_what_is_forgotten_while_a_teacher_is_asked_is_not_stored(make: Make) -> None:
    stack = make()
    session, _ = await stack.say(f"tell me about {WORDS}")
    _, [complained, _] = await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample(Interrupted(lambda: forgetting(stack).forget("session", session)))
    assert stack.tables_with(WORDS) == set()
    # Six requests, without the forgotten one and a question that this model cannot answer.
    assert len(stack.policies.examples_of(complained)) == 4


async def test_weights_of_a_step_that_was_under_way_do_not_stay(make: Make) -> None:
    stack = make()
    session, _ = await stack.say(f"tell me about {WORDS}")
    await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    claimed = stack.policies.claim(1, BASE_VERSION, "", scope=ANN)
    assert claimed is not None
    system_prompt = stack.policies.system_prompt

    def forgets(turn_id: str) -> str:
        """Asked for after the last step, before the weights are written."""
        stack.policies.system_prompt = system_prompt  # type: ignore[method-assign]
        forgetting(stack).forget("session", session)
        return system_prompt(turn_id)

    stack.policies.system_prompt = forgets  # type: ignore[method-assign]
    await stack.learn()
    assert stack.policies.serving(ANN) == 2
    assert not stack.system.store.path(1).exists()


async def test_a_person_is_forgotten_with_what_was_pruned_before(make: Make) -> None:
    stack = make()
    await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    await stack.learn()
    ledgers = stack.system.ledgers
    with ledgers.serve.writing() as connection:
        connection.execute(schema.turns.update().values(created_at=1.0))
    prune(ledgers.serve, older_than_s=1e6, learn_ledger=ledgers.learn)
    assert stack.policies.serving(ANN) == 1
    receipt = forgetting(stack).forget("user", "ann")
    assert receipt is not None
    assert receipt["back_to"] == {ANN: BASE_VERSION}
    assert stack.sampled() == []
    assert list_wishes(ledgers.learn, "ann") == []


@pytest.mark.parametrize("what", ["request", "wish"])
async def test_samples_that_did_not_yet_name_their_turns_are_found_as_well(make: Make, what: str) -> None:
    """As they were made before there was a table of turns."""
    stack = make()
    said = {"request": [f"tell me about {WORDS}"], "wish": ["tell me about snow", f"bad: {WORDS}, {PIRATE}"]}
    session, _ = await stack.say(*said[what])
    _, [complained, _] = await stack.say("tell me about rain", f"bad: {TABLE}")
    await stack.sample()
    await stack.learn()
    stack.forget_where_samples_came_from()
    before = len(stack.policies.examples_of(complained))
    receipt = forgetting(stack).forget("session", session)
    assert receipt is not None
    assert receipt["back_to"] == {ANN: BASE_VERSION}
    assert stack.tables_with(WORDS) == set()
    assert len(stack.policies.examples_of(complained)) == (before - 1 if what == "request" else 0)
