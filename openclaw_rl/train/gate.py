"""May this version serve? Checks on things it was never trained on, each with its number and its bound.

A candidate is loaded beside the served version and asked, at low priority, what everyone can answer. A
style score alone would let a model through that has merely fallen apart, so what counts is whether its
answers still belong to their questions, whether the plain base model still finds them likely, and whether
it still knows known answers; then the user's own held-out turns.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources

from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Engine,
    GenerateRequest,
    Json,
    Message,
    Priority,
    Renderer,
    SamplingParams,
    Scope,
    ScoreRequest,
    StepReport,
    Tool,
    TurnRecord,
)

_TEMPERATURE, _MAX_TOKENS, _SEED = 0.7, 64, 1234
_MIN_HELD_OUT = 3
#: Probes asked at the same time: beside live traffic, a step of the engine costs the same for all of them.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Probe:
    ask: str
    answer: str
    tools: list[Tool] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        return [{"role": "user", "content": self.ask}]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a candidate may at most do. Set beforehand, not tuned; see docs/learning.md."""

    forgetting: float = 0.6
    """Nats a token by which known answers may become less likely than under the base."""
    forgetting_at_once: float = 0.3
    """The same against the version before."""
    degenerate: float = 0.15
    """Share of degenerate replies beyond the base's."""
    growth: float = 2.5
    """Times the longer of the base's and the parent's replies."""
    specificity: float = 0.4
    """Share of the base's that must be left: how much likelier an answer is to its own question."""
    strangeness: float = 1.5
    """Nats a token by which the base may find the replies less likely than its own."""
    held_out: float = 0.1
    """Nats a token by which held-out turns may move in the wrong direction."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    value: float
    bound: float
    passed: bool


@dataclass(frozen=True, slots=True)
class GateResult:
    passed: bool
    reason: str
    checks: tuple[Check, ...]

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measures:
    """One version on the probes."""

    answer_nll: float
    degenerate: float
    length: float
    specificity: float
    strangeness: float


class Gate:
    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        encode: Callable[[str], list[int]],
        degeneration: Callable[[str], str | None],
        bounds: Bounds | None = None,
        probes: Sequence[Probe] | None = None,
    ) -> None:
        self._engine, self._renderer, self._encode = engine, renderer, encode
        self._degeneration, self._bounds = degeneration, bounds or Bounds()
        self._probes = probes or load_probes()
        self._known: dict[int, Measures] = {}
        self._current: dict[Scope, set[int]] = {}
        """Versions that a scope's next check may ask for again."""
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def check(
        self,
        version: int,
        parent: int,
        report: StepReport,
        held_out: Sequence[tuple[TurnRecord, int]],
        scope: Scope = EVERYONE,
    ) -> GateResult:
        """``version`` must be loaded, unless the report says that it is not finite."""
        if not report.finite:
            return _result([Check("finite", 0.0, 1.0, False)])
        bounds = self._bounds
        base, before, now = [await self.measure(v) for v in (BASE_VERSION, parent, version)]
        checks = [
            Check("finite", 1.0, 1.0, True),
            _at_most("forgetting", now.answer_nll - base.answer_nll, bounds.forgetting),
            _at_most("forgetting at once", now.answer_nll - before.answer_nll, bounds.forgetting_at_once),
            _at_most("degenerate replies", now.degenerate - base.degenerate, bounds.degenerate),
            _at_most("length", now.length, bounds.growth * max(base.length, before.length)),
            _at_least("specificity", now.specificity, bounds.specificity * base.specificity),
            _at_most("strangeness", now.strangeness - base.strangeness, bounds.strangeness),
        ]
        if len(held_out) >= _MIN_HELD_OUT:
            value = await self._held_out(version, parent, held_out)
            checks.append(_at_least("held-out turns", value, -bounds.held_out))
        self._current[scope] = {parent, version}
        current = {BASE_VERSION}.union(*self._current.values())
        self._known = {v: m for v, m in self._known.items() if v in current}
        return _result(checks)

    async def measure(self, version: int) -> Measures:
        if version not in self._known:
            self._known[version] = await self._measure(version)
        return self._known[version]

    async def _measure(self, version: int) -> Measures:
        prompts = [self._renderer.render(probe.messages, probe.tools) for probe in self._probes]
        answers = [self._encode(probe.answer) for probe in self._probes]
        known = [self._mean(p, a, version) for p, a in zip(prompts, answers, strict=True)]
        answer_nll = [-value for value in await asyncio.gather(*known)]
        talks = [prompt for prompt, probe in zip(prompts, self._probes, strict=True) if not probe.tools]
        replies = await asyncio.gather(
            *(self._reply(prompt, version, _SEED + index) for index, prompt in enumerate(talks))
        )
        pairs = list(zip(talks, [talks[-1], *talks[:-1]], replies, strict=True))
        own = await asyncio.gather(*(self._mean(mine, reply, BASE_VERSION) for mine, _, reply in pairs))
        other = await asyncio.gather(*(self._mean(its, reply, BASE_VERSION) for _, its, reply in pairs))
        bad = [self._degeneration(self._text(reply)) is not None for reply in replies]
        return Measures(
            answer_nll=_mean(answer_nll),
            degenerate=_mean(bad),
            length=_mean([len(reply) for reply in replies]),
            specificity=_mean([a - b for a, b in zip(own, other, strict=True)]),
            strangeness=-_mean(own),
        )

    async def _reply(self, prompt_ids: list[int], version: int, seed: int) -> list[int]:
        request = GenerateRequest(
            prompt_ids,
            SamplingParams(_MAX_TOKENS, _TEMPERATURE, seed=seed),
            stop_ids=self._renderer.stop_ids,
            policy_version=version,
            priority=Priority.JUDGE,
            top_logprobs=0,
        )
        async with self._places:
            return [token.id async for token in self._engine.generate(request)]

    async def _mean(self, prompt_ids: list[int], reply_ids: list[int], version: int) -> float:
        async with self._places:
            scores = await self._engine.score(
                ScoreRequest([*prompt_ids, *reply_ids], len(prompt_ids), policy_version=version)
            )
        return _mean(scores.logprobs)

    def _text(self, ids: Sequence[int]) -> str:
        detokenizer = self._renderer.detokenizer()
        said = [i for i in ids if i not in self._renderer.stop_ids]
        return "".join(detokenizer.feed(i) for i in said) + detokenizer.finish()

    async def _held_out(self, version: int, parent: int, turns: Sequence[tuple[TurnRecord, int]]) -> float:
        """How far accepted replies became likelier and others less likely; a step should move both so."""
        moves = []
        for turn, score in turns:
            ids = [token.id for token in turn.tokens]
            now, before = [await self._mean(turn.prompt_ids, ids, v) for v in (version, parent)]
            moves.append(score * (now - before))
        return _mean(moves)


def load_probes() -> list[Probe]:
    text = resources.files(__package__).joinpath("probes.jsonl").read_text()
    return [Probe(**json.loads(line)) for line in text.splitlines()]


def _at_most(name: str, value: float, bound: float) -> Check:
    return Check(name, value, bound, value <= bound)


def _at_least(name: str, value: float, bound: float) -> Check:
    return Check(name, value, bound, value >= bound)


def _result(checks: list[Check]) -> GateResult:
    failed = [f"{c.name} {c.value:.2f} (bound {c.bound:.2f})" for c in checks if not c.passed]
    return GateResult(not failed, "; ".join(failed), tuple(checks))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
