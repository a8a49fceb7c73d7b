"""Judges: from a turn and its next state to a verdict with hints.

``create_judge`` is the entry point. A new judge is one file and one line in ``JUDGES``; a class outside this
package works too, by its dotted path. For every judge, the deterministic rules run first and take precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from openclaw_rl.config import JudgeConfig
from openclaw_rl.judge.exchange import bounded_case
from openclaw_rl.judge.hints import complains, verbatim_hints
from openclaw_rl.judge.label import LabelJudge
from openclaw_rl.judge.llm import EndpointJudge
from openclaw_rl.judge.model_judge import AnswerJudge, Loaded, ModelJudge
from openclaw_rl.judge.rules import LAST_RULES, RULES, CutOff, Rule, apply_rules
from openclaw_rl.plugins import create
from openclaw_rl.types import Engine, Judge, JudgeCase, JudgeError, Renderer, Verdict

__all__ = [
    "JUDGES",
    "AnswerJudge",
    "EndpointJudge",
    "JudgeParts",
    "LabelJudge",
    "ModelJudge",
    "RuleFirstJudge",
    "RulesJudge",
    "create_judge",
]


@dataclass(frozen=True, slots=True)
class JudgeParts:
    """What judges are built from; each uses what it needs."""

    settings: JudgeConfig = JudgeConfig()
    engine: Engine | None = None
    encode: Callable[[str], list[int]] | None = None
    """Plain text to token ids, without special tokens."""
    renderer: Renderer | None = None
    model: str = ""
    """The local model to load if there is no engine and the settings name no model."""
    load: Callable[[str], Loaded] | None = None
    """Loads another local model; the judge that called it closes the engine."""


class RulesJudge:
    """Only the rules; a turn that no rule covers stays unjudged."""

    def __init__(self, rules: tuple[Rule, ...] = (*RULES, *LAST_RULES)) -> None:
        self._rules = rules

    async def evaluate(self, case: JudgeCase) -> Verdict:
        case = bounded_case(case)
        if (verdict := apply_rules(case, self._rules)) is None:
            raise JudgeError("no rule applies")
        return _with_hints(verdict, case)

    async def close(self) -> None:
        """Nothing to release."""


class RuleFirstJudge:
    """The rules, then the votes of another judge; both give hints."""

    def __init__(self, votes: Judge, rules: tuple[Rule, ...] = RULES) -> None:
        self.votes, self._rules = votes, rules

    async def evaluate(self, case: JudgeCase) -> Verdict:
        case = bounded_case(case)
        if (verdict := apply_rules(case, self._rules)) is not None:
            return _with_hints(verdict, case)
        return await self.votes.evaluate(case)

    async def close(self) -> None:
        await self.votes.close()


def _with_hints(verdict: Verdict, case: JudgeCase) -> Verdict:
    if verdict.score >= 0 or not verdict.trainable or not case.next_state:
        return verdict
    if verdict.source == f"rule:{CutOff.name}" and not complains(case):
        return verdict
    return replace(verdict, hints=verbatim_hints(case))


def _label(parts: JudgeParts) -> Judge:
    load, model = parts.load, parts.settings.judge_model or (parts.model if parts.engine is None else "")
    if load is not None and model:
        return ModelJudge(lambda: load(model), True, parts.settings)
    if parts.engine is None or parts.encode is None or parts.renderer is None:
        raise ValueError("the label judge needs an engine, an encoder and a renderer")
    given = parts.engine, parts.encode, parts.renderer
    return ModelJudge(lambda: given, False, parts.settings)


JUDGES: dict[str, Callable[[JudgeParts], Judge]] = {
    "label": _label,
    "endpoint": lambda parts: EndpointJudge(parts.settings),
    "rules": lambda parts: RulesJudge(),
}


def create_judge(name: str, parts: JudgeParts) -> Judge:
    """The judge called ``name``, or the class at a path 'pkg.module:Class', run after the rules.

    A custom class is called with the parts, or without arguments if it takes none.
    """
    judge: Judge = create("judge", name, JUDGES, parts)
    return judge if isinstance(judge, (RulesJudge, RuleFirstJudge)) else RuleFirstJudge(judge)
