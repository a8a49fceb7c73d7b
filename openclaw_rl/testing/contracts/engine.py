"""The Engine protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import cast
from urllib.parse import urlsplit

import pytest

from openclaw_rl.testing.waiting import until
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Engine,
    FollowsGrammars,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
    SwitchesWarm,
    Token,
    Weights,
)

pytestmark = pytest.mark.asyncio


async def collect(engine: Engine, request: GenerateRequest) -> list[Token]:
    return [token async for token in engine.generate(request)]


class EngineContract:
    """Fixtures: ``engine``, ready to use, and closed afterwards; ``weights``, two versions it can load.

    ``weights`` is needed only if the capabilities claim adapters or full weights.
    """

    prompt: list[int] = [5, 6, 7, 8, 9, 10]  # noqa: RUF012
    tolerance = 0.05
    """Largest allowed difference between sampled and scored log-probs, in nats."""

    @pytest.fixture
    def weights(self) -> list[Weights]:
        return []

    def request(self, max_tokens: int = 8, temperature: float = 1.0, **more: object) -> GenerateRequest:
        sampling = SamplingParams(max_tokens, temperature=temperature, seed=3)
        return GenerateRequest(self.prompt, sampling, **more)  # type: ignore[arg-type]

    async def test_tokens_come_with_raw_log_probs(self, engine: Engine) -> None:
        tokens = await collect(engine, self.request(top_logprobs=4))
        assert 0 < len(tokens) <= 8
        for token in tokens:
            assert token.logprob <= 1e-6
            assert token.policy_version == BASE_VERSION
            assert len(token.top_ids) == len(token.top_logprobs)
            if not engine.capabilities.top_logprobs:
                assert token.top_ids == ()
                continue
            assert len(token.top_ids) == 4
            assert list(token.top_logprobs) == sorted(token.top_logprobs, reverse=True)
            if token.id in token.top_ids:
                place = token.top_ids.index(token.id)
                assert token.top_logprobs[place] == pytest.approx(token.logprob, abs=1e-3)
            else:
                assert token.logprob <= token.top_logprobs[-1] + 1e-3

    async def test_only_the_last_token_says_why_it_ended(self, engine: Engine) -> None:
        tokens = await collect(engine, self.request(max_tokens=3))
        assert [token.finish_reason for token in tokens[:-1]] == [None] * (len(tokens) - 1)
        assert tokens[-1].finish_reason in ("stop", "length")
        if len(tokens) == 3 and tokens[-1].finish_reason == "length":
            again = await collect(engine, self.request(max_tokens=2))
            assert again[-1].finish_reason == "length"

    async def test_a_stop_id_ends_the_reply_and_is_part_of_it(self, engine: Engine) -> None:
        first = (await collect(engine, self.request(temperature=0.0)))[0]
        tokens = await collect(engine, self.request(temperature=0.0, stop_ids=frozenset({first.id})))
        assert [token.id for token in tokens] == [first.id]
        assert tokens[0].finish_reason == "stop"

    async def test_temperature_zero_repeats_itself(self, engine: Engine) -> None:
        once, twice = [await collect(engine, self.request(temperature=0.0)) for _ in range(2)]
        assert [token.id for token in once] == [token.id for token in twice]

    async def test_scores_agree_with_what_was_sampled(self, engine: Engine) -> None:
        tokens = await collect(engine, self.request())
        ids = [token.id for token in tokens]
        rows = [[token.id, 3] for token in tokens] if engine.capabilities.scores_candidates else None
        scores = await engine.score(ScoreRequest([*self.prompt, *ids], len(self.prompt), candidates=rows))
        assert scores.logprobs == pytest.approx([token.logprob for token in tokens], abs=self.tolerance)
        if rows is not None:
            assert scores.candidate_logprobs is not None
            own = [row[0] for row in scores.candidate_logprobs]
            assert own == pytest.approx(scores.logprobs, abs=self.tolerance)

    async def test_hidden_states_where_claimed(self, engine: Engine) -> None:
        if engine.capabilities.hidden_states:
            request = ScoreRequest([*self.prompt, 3], len(self.prompt), hidden_layer=0)
            whole = await engine.score(request)
            only = await engine.score(replace(request, hidden_only=True))
            assert whole.hidden
            assert only.hidden == pytest.approx(whole.hidden, abs=self.tolerance)
            assert (await engine.score(request)).logprobs == whole.logprobs  # its caches are its own

    async def test_closing_a_stream_ends_the_work(self, engine: Engine) -> None:
        stream = cast("AsyncGenerator[Token]", engine.generate(self.request(max_tokens=64)))
        await anext(stream)
        await stream.aclose()
        await until(lambda: engine.status().num_running == 0, "the work has ended")

    async def test_versions_are_loaded_served_and_let_go(
        self, engine: Engine, weights: list[Weights]
    ) -> None:
        if not (engine.capabilities.adapters or engine.capabilities.full_weights):
            return
        first, second = weights
        assert urlsplit(first.uri).scheme in engine.capabilities.loads
        await engine.load(first)
        await engine.load(first)  # loading the same weights again does nothing
        await engine.load(second)
        await engine.serve_version(first.version)
        assert {first.version, second.version} <= set(engine.status().versions)
        [token] = await collect(engine, self.request(max_tokens=1, policy_version=second.version))
        assert token.policy_version == second.version
        with pytest.raises(ValueError):
            await engine.unload(first.version)  # it is serving
        await engine.unload(second.version)
        assert second.version not in engine.status().versions
        await engine.serve_version(BASE_VERSION)

    async def test_a_reply_keeps_the_version_it_began_with(
        self, engine: Engine, weights: list[Weights]
    ) -> None:
        if not (engine.capabilities.adapters or engine.capabilities.full_weights):
            return
        stream = engine.generate(self.request(max_tokens=6))
        tokens = [await anext(stream)]
        await engine.load(weights[0])
        await engine.serve_version(weights[0].version)
        tokens += [token async for token in stream]
        assert {token.policy_version for token in tokens} == {BASE_VERSION}
        assert engine.status().version_for() == weights[0].version

    async def test_two_scopes_are_served_two_versions_at_once(
        self, engine: Engine, weights: list[Weights]
    ) -> None:
        if not (engine.capabilities.adapters or engine.capabilities.full_weights):
            return
        first, second = weights
        for each, scope in ((first, "user:ann"), (second, "user:ben")):
            await engine.load(each)
            await engine.serve_version(each.version, scope)
        requests = [self.request(scope=scope) for scope in ("user:ann", "user:ben", "user:new", EVERYONE)]
        replies = await asyncio.gather(*(collect(engine, request) for request in requests))
        answered_by = [{token.policy_version for token in tokens} for tokens in replies]
        assert answered_by == [{first.version}, {second.version}, {BASE_VERSION}, {BASE_VERSION}]
        status = engine.status()
        served = [status.version_for(request.scope) for request in requests]
        assert served == [first.version, second.version, BASE_VERSION, BASE_VERSION]
        for each in weights:
            with pytest.raises(ValueError):
                await engine.unload(each.version)
        await engine.serve_version(BASE_VERSION, "user:ann")
        await engine.unload(first.version)
        assert engine.status().version_for("user:ben") == second.version

    async def test_a_version_that_is_not_loaded_is_refused(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="77"):
            await collect(engine, self.request(policy_version=77))
        with pytest.raises(ValueError, match="77"):
            await engine.serve_version(77)

    async def test_claims_have_their_methods(self, engine: Engine) -> None:
        if engine.capabilities.warm_switching:
            assert cast(SwitchesWarm, engine).pick_version(self.prompt) in engine.status().versions
        if engine.capabilities.grammar:
            cast(FollowsGrammars, engine).check_grammar('start: "a"')
        assert engine.context_length > len(self.prompt)
