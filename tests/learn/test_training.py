"""From verdicts to served weights: the real engine, trainer, gate and ledger on a tiny network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.policy_ledger import HELD_OUT, PolicyLedger
from openclaw_rl.capture.samples import samples
from openclaw_rl.config import Config, load_config
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.loop import build_learner, wire_serving
from openclaw_rl.processes import learning_parts, parts
from openclaw_rl.processes.learning_system import ServedModel
from openclaw_rl.processes.serving_system import ServingSystem
from openclaw_rl.sinks import Fan
from openclaw_rl.testing import FiniteGate, WordJudge, tiny_model
from openclaw_rl.train.worker import LearnWorker
from openclaw_rl.types import ScoreRequest, TurnRecord


class Stack:
    """One system in this process; learning happens when it is told to."""

    def __init__(self, home: Path, model: Path, **settings: Any) -> None:
        stated: dict[str, Any] = {"home": home, "model": str(model), "renderer": "qwen3", "device": "cpu"}
        stated |= {
            "algo": "hybrid",  # praise and plain replies make steps, too: this is about the machinery
            "batch_size": 4,
            "held_out_share": 0.0,
            "lora_rank": 2,
        }
        if settings.get("engine", "local") == "local":
            stated |= {"kernel": "float", "num_threads": 1, "train_threads": 1}
        self.stated = {**stated, **settings}
        self.config: Config = load_config(self.stated, environment={})
        self.model, self.home = model, home
        home.mkdir(parents=True, exist_ok=True)
        engine = parts.build_engine(self.config, model)
        renderer = parts.build_renderer(self.config, model)
        local = parts.build_answerer(self.config, engine, renderer)
        answerer = parts.build_take_over(self.config, local) if self.config.serve.take_over else local
        self.system: ServingSystem = wire_serving(
            self.config, parts.open_ledgers(self.config), engine, answerer
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.system.app()),
            base_url="http://test",
            headers={"authorization": f"Bearer {self.system.keys.key_of('default')}"},
        )
        self.said: list[str] = []

    @property
    def engine(self) -> LocalEngine:
        assert isinstance(self.system.engine, LocalEngine)
        return self.system.engine

    @property
    def policy_ledger(self) -> PolicyLedger:
        return self.system.ledgers.policies

    def worker(self) -> LearnWorker:
        """A learn process that has just started."""
        encode = parts.text_encoder(parts.load_tokenizer(self.model))
        assert self.system.gateway.renderer is not None
        served = ServedModel(self.engine, self.model, self.system.gateway.renderer, encode)
        worker = build_learner(self.config, served, self.policy_ledger, Fan([]), FiniteGate())
        worker._progress = self.said.append
        return worker

    async def chat(self, said: str, then: str | None = None, seed: int = 0) -> str:
        """A request, and what the user says to the reply; the first reply's id."""
        messages = [{"role": "user", "content": said}]
        body = {"model": "default", "max_tokens": 8, "seed": seed}
        first = (await self.http.post("/v1/chat/completions", json={**body, "messages": messages})).json()
        if then is not None:
            messages += [first["choices"][0]["message"], {"role": "user", "content": then}]
            await self.http.post("/v1/chat/completions", json={**body, "messages": messages})
        await self.system.gateway.drain()
        return str(first["id"])

    async def judge(self) -> None:
        judge_queue = LedgerJudgeQueue(self.system.ledgers.serve, self.system.ledgers.learn, idle_s=1e12)
        worker = JudgeWorker(judge_queue, WordJudge())
        while await worker.step():
            pass

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def close(self) -> None:
        await self.http.aclose()
        await self.system.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


Make = Callable[..., Stack]


@pytest.fixture
async def make(tmp_path: Path, tiny: Path) -> AsyncIterator[Make]:
    made: list[Stack] = []

    def build(name: str = "home", **settings: Any) -> Stack:
        made.append(Stack(tmp_path / name, tiny, **settings))
        return made[-1]

    yield build
    for stack in made:
        await stack.close()


async def talk(stack: Stack, number: int, then: str = "bad, say less") -> list[str]:
    return [await stack.chat(f"question {n}", then, seed=n) for n in range(number)]


async def run(worker: LearnWorker) -> None:
    while await worker.step():
        pass


async def test_four_complaints_make_a_version_that_answers_the_next_request(make: Make) -> None:
    stack = make()
    turns = await talk(stack, 4)
    await stack.judge()
    assert {(await stack.get(f"/v1/turns/{turn}"))["state"] for turn in turns} == {"judged"}
    await run(stack.worker())
    assert {(await stack.get(f"/v1/turns/{turn}"))["state"] for turn in turns} == {"trained"}
    assert {(await stack.get(f"/v1/turns/{turn}"))["step"] for turn in turns} == {1}
    versions = (await stack.get("/v1/policies"))["data"]
    assert [(v["version"], v["parent"], v["status"]) for v in versions] == [
        (1, 0, "serving"),
        (0, None, "retired"),
    ]
    assert versions[0]["num_samples"] == 4
    assert versions[0]["gate"]["passed"]
    assert versions[0]["metrics"]["mismatch"] == pytest.approx(0, abs=1e-4)
    answer = await stack.http.post(
        "/v1/chat/completions", json={"model": "default", "messages": [{"role": "user", "content": "hello"}]}
    )
    assert answer.headers["x-policy-version"] == "1"
    status = await stack.get("/v1/status")
    assert status["policy_version"] == 1
    assert status["last_step"]["version"] == 1
    assert status["funnel"]["by_state"]["trained"] == 4
    assert sum(status["funnel"]["by_state"].values()) == status["funnel"]["turns"]


async def test_the_manifest_says_what_the_version_is_made_of(make: Make) -> None:
    stack = make()
    turns = await talk(stack, 4)
    await stack.judge()
    await run(stack.worker())
    manifest = stack.system.store.manifest(1)
    assert manifest["samples"] == turns
    assert (manifest["version"], manifest["parent"]) == (1, 0)
    assert manifest["config_hash"] == stack.policy_ledger.list_policies()[0].config_hash
    assert manifest["gate"]["passed"]
    assert manifest["metrics"]["num_samples"] == 4


async def test_replies_accepted_earlier_are_heard_again_the_users_taking_turns(make: Make) -> None:
    stack = make(replay=3, min_signal=0.0, policy_scope="everyone", daily_share=1.0)
    await talk(stack, 2, then="good, thanks")
    late = await talk(stack, 1, then="good, thanks")
    guest = {"authorization": f"Bearer {stack.system.keys.add('guest')}"}
    owner = stack.http.headers["authorization"]
    stack.http.headers.update(guest)
    [of_guest] = await talk(stack, 1, then="good, thanks")
    stack.http.headers["authorization"] = owner
    taken_back = await stack.chat("question 9", "good, thanks", seed=9)
    await stack.http.post("/v1/flush")
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    assert stack.system.store.manifest(1)["replayed"] == []
    rated = await stack.http.post("/v1/feedback", json={"id": taken_back, "rating": "down"})
    assert rated.status_code == 200, rated.text
    new = await talk(stack, 4)
    await stack.judge()
    await run(worker)
    manifest = stack.system.store.manifest(2)
    assert manifest["samples"] == new
    assert len(manifest["replayed"]) == 3
    assert set(manifest["replayed"][:2]) == {late[0], of_guest}
    assert taken_back not in manifest["replayed"]
    assert manifest["metrics"]["num_samples"] == 7
    assert stack.policy_ledger.policy(2).num_samples == 4  # type: ignore[union-attr]


async def test_samples_that_would_come_too_late_are_taken_together(make: Make) -> None:
    stack = make(batch_size=1, max_staleness=3)
    turns = await talk(stack, 5)
    await stack.judge()
    await run(stack.worker())
    store = stack.system.store
    assert [store.manifest(version)["samples"] for version in (1, 2)] == [turns[:4], turns[4:]]


async def converse(stack: Stack, *said: str, seed: int = 0) -> list[str]:
    """A conversation of one person who says these things; the ids of the replies."""
    messages: list[Any] = []
    ids = []
    for text in said:
        messages.append({"role": "user", "content": text})
        body = {"model": "default", "max_tokens": 8, "seed": seed, "messages": messages}
        reply = (await stack.http.post("/v1/chat/completions", json=body)).json()
        messages.append(reply["choices"][0]["message"])
        ids.append(str(reply["id"]))
    await stack.system.gateway.drain()
    return ids


async def test_what_pleased_after_complaints_is_taught_as_the_answer_to_the_first_question(
    make: Make,
) -> None:
    stack = make(min_signal=0.0)
    first, second, third, _ = await converse(
        stack, "question 1", "bad, shorter", "bad, simpler", "good, thanks"
    )
    plain, _ = await converse(stack, "question 2", "good, thanks", seed=1)
    await stack.http.post("/v1/flush")
    await stack.judge()
    await run(stack.worker())
    items = {item.source.turn_ids[0]: item for item in stack.policy_ledger.items(1)}
    assert set(items) == {first, second, third, plain}
    asked = stack.system.ledgers.serve.load_turn(first)
    assert asked is not None
    assert items[third].prompt_ids == asked.prompt_ids
    assert items[third].source.kind == "accepted"
    assert items[third].signal_NK.min() >= 0
    for turn_id in (second, third, plain):
        turn = stack.system.ledgers.serve.load_turn(turn_id)
        assert turn is not None
        assert (items[turn_id].prompt_ids == turn.prompt_ids) == (turn_id != third)
    assert stack.policy_ledger.list_policies()[0].status == "serving"
    metrics = stack.system.store.manifest(1)["metrics"]
    assert metrics["ratio"] == pytest.approx(1, abs=0.01)  # of those whose log-probs were recorded
    assert metrics["mismatch"] < 0.01


async def test_a_reply_that_pleased_after_a_tool_failed_answers_what_it_answered(make: Make) -> None:
    stack = make(min_signal=0.0)
    asked = {"role": "user", "content": "question 1"}
    ids = []
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    for messages in (
        [asked],
        [asked, {"role": "assistant", "content": None, "tool_calls": [call]},
         {"role": "tool", "tool_call_id": "c1", "content": "bad"}],
    ):  # fmt: skip
        body = {"model": "default", "max_tokens": 8, "seed": 0, "messages": messages}
        ids.append((await stack.http.post("/v1/chat/completions", json=body)).json()["id"])
    await stack.system.gateway.drain()
    turn = stack.system.ledgers.serve.load_turn(ids[1])
    assert turn is not None
    assert stack.policy_ledger.corrected(replace(turn, continues=ids[0])) is None


async def test_a_step_waits_for_its_batch_and_a_flush_does_not(make: Make) -> None:
    stack = make()
    await talk(stack, 3)
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    assert stack.policy_ledger.serving() == 0
    assert (await stack.get("/v1/status"))["queues"]["samples"] == 3
    await stack.http.post("/v1/flush")
    await stack.judge()
    await run(worker)
    assert stack.policy_ledger.serving() == 1
    assert stack.policy_ledger.flush_requested_at() is None


async def test_old_samples_do_not_wait_for_ever(make: Make) -> None:
    stack = make(batch_max_age_s=1e-6)
    await talk(stack, 2)
    await stack.judge()
    await run(stack.worker())
    assert stack.policy_ledger.serving() == 1


async def test_neutral_turns_and_complaints_without_a_hint_say_why_they_do_not_train(make: Make) -> None:
    stack = make(algo="opd-topk")
    neutral = await stack.chat("question", "and another thing")
    praised = await stack.chat("question", "good")
    unexplained = await stack.chat("question")
    await stack.http.post("/v1/feedback", json={"id": unexplained, "rating": "down"})
    await stack.judge()
    await run(stack.worker())
    assert "neutral" in (await stack.get(f"/v1/turns/{neutral}"))["reason"]
    assert "accepted" in (await stack.get(f"/v1/turns/{praised}"))["reason"]
    assert "nothing to learn" in (await stack.get(f"/v1/turns/{unexplained}"))["reason"]
    reasons = (await stack.get("/v1/status"))["funnel"]["by_reason"]
    assert sum(reasons.values()) == 3


async def test_little_to_learn_waits_for_more(make: Make) -> None:
    """Four accepted replies are a full batch and no reason to take a step; sixteen are."""
    stack = make()
    await talk(stack, 4, "good")
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    assert stack.policy_ledger.serving() == 0
    assert not (await stack.get("/v1/status"))["busy"]
    await talk(stack, 12, "good")
    await stack.judge()
    await run(worker)
    policy = stack.policy_ledger.list_policies()[0]
    assert policy.num_samples == 16
    assert policy.metrics["scale"] == 0.05


async def test_what_a_user_says_later_outranks_the_vote_until_it_is_trained(make: Make) -> None:
    stack = make()
    turns = await talk(stack, 3)
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    await stack.http.post("/v1/feedback", json={"id": turns[0], "rating": "up"})
    await stack.judge()
    await run(worker)
    assert stack.policy_ledger.waiting()[0] == 3
    await stack.chat("question 9", "bad, less", seed=9)
    await stack.judge()
    await run(worker)
    assert sorted(item.source.score for item in stack.policy_ledger.items(1)) == [-1, -1, -1, 1]
    await stack.http.post("/v1/feedback", json={"id": turns[1], "rating": "up"})
    await stack.judge()
    await run(worker)
    assert (await stack.get(f"/v1/turns/{turns[1]}"))["state"] == "trained"
    assert stack.policy_ledger.waiting()[0] == 0


async def test_held_out_turns_are_kept_from_training(make: Make) -> None:
    stack = make(held_out_share=0.999)
    turns = await talk(stack, 4)
    await stack.judge()
    await run(stack.worker())
    assert stack.policy_ledger.serving() == 0
    assert (await stack.get(f"/v1/turns/{turns[0]}"))["reason"] == HELD_OUT
    assert [turn.id for turn, _ in stack.policy_ledger.held_out(9)] == turns[::-1]


async def test_stale_samples_are_left_out(make: Make) -> None:
    stack = make(max_staleness=0)
    early = [await stack.chat(f"question {number}", seed=number) for number in (90, 91)]
    await talk(stack, 4)
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    assert stack.policy_ledger.serving() == 1
    for turn in early:  # somebody says only now what they thought of it
        await stack.http.post("/v1/feedback", json={"id": turn, "rating": "up"})
    await talk(stack, 2)
    await stack.judge()
    await run(worker)
    # The version that answered the first two is no longer the one that learns.
    assert stack.policy_ledger.list_policies()[0].version == 2
    reasons = {(await stack.get(f"/v1/turns/{turn}"))["reason"] for turn in early}
    assert reasons == {"it was answered by a version too long ago"}
    assert len(stack.policy_ledger.items(2)) == 2


@pytest.mark.parametrize(
    ("settings", "teacher"),
    [
        ({"teacher": "base"}, 0),
        ({"teacher": "current"}, 1),
        ({"teacher": "frozen", "teacher_version": 1}, 1),
        ({"teacher": "average", "average_decay": 0.5}, learning_parts.AVERAGE_VERSION),
    ],
)
async def test_the_teacher_is_the_one_that_was_chosen(
    make: Make, settings: dict[str, Any], teacher: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make(**settings) if settings["teacher"] != "frozen" else make(teacher="base")
    await talk(stack, 4)
    await stack.judge()
    await run(stack.worker())
    asked: list[int] = []
    score = stack.engine.score

    async def listening(request: ScoreRequest) -> Any:
        if request.candidates:
            asked.append(request.policy_version)
        return await score(request)

    monkeypatch.setattr(stack.engine, "score", listening)
    if settings["teacher"] == "frozen":
        stack.config = load_config(
            {**stack.stated, "teacher": "frozen", "teacher_version": 1}, environment={}
        )
    await talk(stack, 2, "bad, even less")
    await stack.judge()
    await run(stack.worker())
    assert asked == [teacher] * 2


async def test_all_weights_train_and_serve_too(make: Make) -> None:
    stack = make(finetune="full", learning_rate=1e-3)
    await talk(stack, 4)
    await stack.judge()
    await run(stack.worker())
    assert stack.engine.status().version_for() == 1
    turn_id = await stack.chat("hello")
    turn = stack.system.ledgers.serve.load_turn(turn_id)
    assert turn is not None
    assert turn.policy_version == 1
    expected = plain_logprobs(stack.system.store.path(1), turn)
    assert [token.logprob for token in turn.tokens] == pytest.approx(expected, abs=1e-3)
    # The base answers beside it, from its own weights, in the same steps.
    asked = [{"role": "user", "content": "hello"}]
    names = ["default", "model@0"] if stack.system.gateway.model_name == "model" else ["default", "default@0"]
    replies = await asyncio.gather(
        *(
            stack.http.post("/v1/chat/completions", json={"model": name, "messages": asked, "max_tokens": 8})
            for name in names * 2
        )
    )
    assert [reply.headers["x-policy-version"] for reply in replies] == ["1", "0", "1", "0"]
    for reply in replies:
        turn = stack.system.ledgers.serve.load_turn(reply.json()["id"])
        assert turn is not None
        path = stack.system.store.path(1) if turn.policy_version else stack.model
        assert [t.logprob for t in turn.tokens] == pytest.approx(plain_logprobs(path, turn), abs=1e-3)


def plain_logprobs(path: Path, turn: TurnRecord) -> list[float]:
    """By transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = [token.id for token in turn.tokens]
    with torch.inference_mode():
        logits = model(torch.tensor([turn.prompt_ids + ids])).logits[0]
    rows = torch.log_softmax(logits[len(turn.prompt_ids) - 1 : -1], -1)
    return [float(rows[i, token]) for i, token in enumerate(ids)]


# --- things that go wrong --------------------------------------------------------------------


class Poisoned:
    """An algorithm with batches that are not numbers."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm, self.needs = algorithm, algorithm.needs

    def batch(self, items: Any, state: Any) -> Any:
        batch = self._algorithm.batch(items, state)
        spoiled = [replace(i, signal_NK=i.signal_NK * np.nan) for i in batch.examples]
        return replace(batch, examples=spoiled)


async def test_a_batch_of_nans_is_rejected_and_training_goes_on_without_it(
    make: Make,
) -> None:
    stack = make()
    bad = await talk(stack, 4)
    await stack.judge()
    worker = stack.worker()
    healthy = worker._method_for
    worker._method_for = lambda scope: replace(
        healthy(scope), algorithm=cast(Any, Poisoned(healthy(scope).algorithm))
    )
    await run(worker)
    [policy] = stack.policy_ledger.list_policies()
    assert policy.status == "rejected"
    assert "finite" in policy.gate["reason"]
    turn = await stack.get(f"/v1/turns/{bad[0]}")
    assert turn["state"] == "excluded"
    assert turn["reason"] == "the version trained on it did not pass its checks"
    assert any("rejected" in line for line in stack.said)
    worker._method_for = healthy
    await talk(stack, 4)
    await stack.judge()
    await run(worker)
    assert [(p.version, p.parent, p.status) for p in stack.policy_ledger.list_policies()] == [
        (2, 0, "serving"), (1, 0, "rejected"),
    ]  # fmt: skip
    assert stack.policy_ledger.policy(2).metrics["finite"]  # type: ignore[union-attr]


async def test_a_bad_version_promoted_by_hand_is_rolled_back_by_what_people_say(make: Make) -> None:
    stack = make(algo="binary", batch_size=1000)
    await talk(stack, 12, "good")
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    await stack.http.post("/v1/flush")
    await stack.judge()
    await run(worker)
    assert stack.policy_ledger.serving() == 1
    await stack.http.post("/v1/policies/0/promote")
    promoted = await stack.http.post("/v1/policies/1/promote")
    assert promoted.json() == {"version": 1, "status": "serving"}
    for n in range(20):
        await stack.chat(f"other {n}", "bad, less", seed=n)
        await stack.judge()
        await run(worker)
        if stack.policy_ledger.serving() == 0:
            break
    assert stack.policy_ledger.serving() == 0
    assert 3 <= n <= 15
    assert any("rolled back from version 1" in line for line in stack.said)


async def test_choosing_a_version_needs_the_owners_key_and_a_version_that_is_there(make: Make) -> None:
    stack = make()
    guest = stack.system.keys.add("guest")
    refused = await stack.http.post("/v1/policies/0/promote", headers={"authorization": f"Bearer {guest}"})
    assert refused.status_code == 403
    assert (await stack.http.post("/v1/policies/7/promote")).status_code == 404
    assert (await stack.http.post("/v1/policies/rollback")).status_code == 409


async def test_a_version_chosen_meanwhile_is_not_overwritten(make: Make) -> None:
    stack = make()
    await talk(stack, 4)
    await stack.judge()
    worker = stack.worker()
    await run(worker)
    await talk(stack, 4)
    await stack.judge()
    take_step = worker._take_step

    def with_a_rollback(*arguments: Any) -> Any:
        stack.policy_ledger.promote(0, "by hand")
        return take_step(*arguments)

    worker._take_step = with_a_rollback  # type: ignore[method-assign]
    await run(worker)
    assert stack.policy_ledger.serving() == 0
    assert stack.policy_ledger.policy(2).status == "rejected"  # type: ignore[union-attr]


async def test_settings_that_do_not_fit_the_last_version_cost_no_sample(make: Make) -> None:
    first = make(lora_rank=2)
    await talk(first, 4)
    await first.judge()
    await run(first.worker())
    await talk(first, 4)
    await first.judge()
    other = first.worker()
    other._make_trainer = lambda: learning_parts.build_trainer(
        load_config({"home": first.home, "lora_rank": 4, "device": "cpu"}, environment={}), first.model
    )
    with pytest.raises(ValueError, match="promote 0"):
        await run(other)
    assert first.policy_ledger.waiting()[0] == 4
    assert first.policy_ledger.unfinished() is None
    await run(first.worker())
    assert first.policy_ledger.serving() == 2


class Killed(BaseException):
    """Like kill -9, as far as one process can do it to itself."""


@pytest.mark.parametrize("point", ["step", "save", "trained", "gate", "update_manifest", "publish"])
async def test_whatever_a_step_dies_at_it_is_done_once(make: Make, point: str) -> None:
    """The same versions, samples and weights as of a process that lived."""
    through, dies = make("through"), make("dies")
    for stack in (through, dies):
        await talk(stack, 8)
        await stack.judge()
    await run(through.worker())
    worker = dies.worker()
    target: Any = {
        "step": worker, "save": worker._store, "trained": dies.policy_ledger, "gate": worker._gate,
        "update_manifest": worker._store, "publish": dies.policy_ledger,
    }[point]  # fmt: skip
    name = {"step": "_take_step", "save": "write", "gate": "check"}.get(point, point)
    original = getattr(target, name)

    def die(*arguments: Any, **more: Any) -> Any:
        setattr(target, name, original)
        raise Killed

    setattr(target, name, die)
    with pytest.raises(Killed):
        await run(worker)
    await run(dies.worker())
    assert facts(dies) == facts(through)
    for version in (1, 2):
        assert weights(dies, version) == weights(through, version)


def facts(stack: Stack) -> list[tuple[object, ...]]:
    """Versions with the questions they were trained on; ids of turns differ from run to run."""
    found: list[tuple[object, ...]] = []
    for policy in stack.policy_ledger.list_policies():
        turns = [
            stack.system.ledgers.serve.load_turn(i.source.turn_ids[0])
            for i in stack.policy_ledger.items(policy.version)
        ]
        asked = [turn.messages[0]["content"] for turn in turns if turn]
        found.append((policy.version, policy.parent, policy.status, policy.num_samples, *asked))
    return found


def weights(stack: Stack, version: int) -> bytes:
    return (stack.system.store.path(version) / "adapter_model.safetensors").read_bytes()


async def test_a_step_hears_everybody_who_is_talking(make: Make) -> None:
    """Four samples from one person; two more for each other one, counted in the order of the turns."""
    stack = make()

    def put(*users: str) -> None:
        start = stack.policy_ledger.waiting()[0]
        with stack.policy_ledger.db.begin() as connection:
            for number, user in enumerate(users, start):
                row = {"turn_id": f"t{number}", "user": user, "created_at": float(number), "status": "ready"}
                connection.execute(sa.insert(samples).values(verdict=0, policy_version=0, score=-1, **row))

    assert stack.policy_ledger.full_batch(4) == 4
    put("ann", "ben", "ann", "ann", "ann")
    assert stack.policy_ledger.full_batch(4) == 6
    put("cleo")
    assert stack.policy_ledger.full_batch(4) == 8
    put("ben", "ann", "dora", "dora")
    assert stack.policy_ledger.full_batch(4) == 8  # the first eight are enough, whoever comes after them
    assert stack.policy_ledger.full_batch(1) == 1


async def test_several_answers_to_one_request_are_peers(make: Make) -> None:
    stack = make(algo="binary", batch_size=64)
    asked = [{"role": "user", "content": "hello"}]
    body = {"model": "default", "max_tokens": 8, "messages": asked, "n": 3, "seed": 4}
    choices = (await stack.http.post("/v1/chat/completions", json=body)).json()["choices"]
    said = [*asked, choices[1]["message"], {"role": "user", "content": "bad, say less"}]
    await stack.http.post("/v1/chat/completions", json={**body, "n": 1, "messages": said})
    await stack.system.gateway.drain()
    await stack.judge()
    policies, ledger = stack.policy_ledger, stack.system.ledgers.serve
    turns = [turn for group, _ in ledger.iter_sessions() for turn in group]
    first = [turn for turn in turns if turn.continues is None]
    assert len(first) == 3
    judged = {turn.id: policies.judged(turn.id) for turn in first}
    scores = {turn_id: found[1].score for turn_id, found in judged.items() if found}
    assert list(scores.values()) == [-1], "the one that was answered"
    others = [turn for turn in first if turn.id not in scores]
    assert [policies.peers(turn) for turn in others] == [(-1,), (-1,)]
    assert policies.peers(next(turn for turn in first if turn.id in scores)) == ()
