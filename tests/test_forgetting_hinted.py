"""What the default method learned from a person's other requests and wishes is forgotten with them.

The tiny network only babbles, so a fake teacher gives the answers; ledgers, steps and weights are real.
"""

from __future__ import annotations

import shutil
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from openclaw_rl.algo.hinted import Hinted
from openclaw_rl.capture import schema
from openclaw_rl.capture.content import pack_ids
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import metadata
from openclaw_rl.capture.normalise import is_ephemeral
from openclaw_rl.capture.prune import keep_unfinished, prune
from openclaw_rl.capture.samples import samples
from openclaw_rl.capture.stored import stored_request
from openclaw_rl.capture.wishes import TO_TEACH, list_wishes
from openclaw_rl.judge.wishes import is_only_taking_back, is_wish, relation
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.testing import tiny_model
from openclaw_rl.train.lessons import Sampler
from openclaw_rl.train.spread import Prompts
from openclaw_rl.types import BASE_VERSION

from .learn.test_wishes import Complaints, Teacher
from .test_forgetting import WORDS, close, forgetting, spelled, weights
from .test_scopes import ANN, Stack

TABLE, PIRATE = "please put it in a table", "please talk like a pirate"


class HintedStack(Stack):
    def __init__(self, home: Path, model: Path) -> None:
        options = {"steps": 2, "step_examples": 4, "requests": 6}
        super().__init__(home, model, algo="hinted", algo_options=options, batch_size=1)

    async def say(self, *said: str) -> tuple[str, list[str]]:
        """A conversation of ann's: its session, and its turns."""
        messages: list[Any] = []
        turns: list[str] = []
        session = ""
        for text in said:
            messages.append({"role": "user", "content": text})
            answer = await self.ask("ann", messages)
            session = answer.headers["x-session-id"]
            turns.append(answer.json()["id"])
            messages.append(answer.json()["choices"][0]["message"])
        await self.system.gateway.drain()
        return session, turns

    async def sample(self) -> None:
        """All that was said becomes samples; no step is taken."""
        ledgers = self.system.ledgers
        judging = JudgeWorker(LedgerJudgeQueue(ledgers.serve, ledgers.learn, idle_s=1e12), Complaints())
        while await judging.step():
            pass
        prompts = Prompts(self.renderer, stored_request, is_ephemeral)
        algorithm, teacher = Hinted(requests=6, answers=2), Teacher()
        wishes = self.policies.wishes(relation, is_only_taking_back, is_wish)
        sampler = Sampler(self.policies, algorithm, teacher, prompts, wishes, 0.0)  # type: ignore[arg-type]
        while await sampler.run():
            pass

    def wished(self) -> tuple[str, ...]:
        return self.policies.wishes(relation, is_only_taking_back, is_wish).texts("ann", ANN)

    def sampled(self) -> list[str]:
        with self.policies.db.connect() as connection:
            return list(connection.scalars(sa.select(samples.c.turn_id)))

    def hints(self) -> set[str | None]:
        """Of all samples that have examples."""
        return {e.source.hint for turn_id in self.sampled() for e in self.policies.examples_of(turn_id)}

    def copy(self, home: Path) -> HintedStack:
        """Another one with the same past."""
        for db in (self.system.ledgers.serve.db, self.system.ledgers.learn.db):
            db.dispose()
        shutil.copytree(self.config.home, home, ignore=shutil.ignore_patterns("keys.json"))
        return HintedStack(home, self.model)

    def tables_with(self, text: str) -> set[str]:
        """Tables that hold a text, or its tokens, also inside what is compressed."""
        sought = (text.encode(), pack_ids(self.renderer.encode(text)))
        return {
            name
            for name, value in self._values()
            if any(each in form for form in _forms(value) for each in sought)
        }

    def _values(self) -> Iterator[tuple[str, Any]]:
        ledgers = self.system.ledgers
        for db, known in ((ledgers.serve.db, schema.metadata), (ledgers.learn.db, metadata)):
            with db.connect() as connection:
                for table in known.tables.values():
                    for row in connection.execute(sa.select(table)):
                        yield from ((table.name, value) for value in row)


def _forms(value: Any) -> list[bytes]:
    raw = value if isinstance(value, bytes) else str(value).encode()
    try:
        return [raw, zlib.decompress(raw)]
    except zlib.error:
        return [raw]


def counted(stack: HintedStack) -> Counter[str]:
    """Samples by what became of them, row by row."""
    query = sa.select(samples.c.status, samples.c.reason)
    with stack.policies.db.connect() as connection:
        rows = connection.execute(query).all()
    return Counter(f"{row.status}:{row.reason}" if row.reason else row.status for row in rows)


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
    await stack.system.gateway.drain()
    await stack.sample()
    await stack.learn()
    assert stack.policies.serving(ANN) == 2
    receipt = forgetting(stack).forget("turn", second["id"])
    assert receipt is not None
    assert (receipt["back_to"], receipt["versions"]) == ({ANN: 1}, [2])
    assert stack.tables_with(WORDS) == set()
    assert stack.wished() == (PIRATE,)
    assert [e.prompt_ids for e in stack.policies.examples_of(taught)] == [e.prompt_ids for e in before]
