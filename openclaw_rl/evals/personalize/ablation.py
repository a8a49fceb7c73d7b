"""Judges for one question: what is a hint worth, beside what the user really said?

    openclaw-rl eval personalize --serve-flags "--judge openclaw_rl.evals.personalize.ablation:RawFollowUp"

Both score every turn as the default judge does; only what the teacher is told differs.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.judge import JUDGES, JudgeParts, RuleFirstJudge
from openclaw_rl.judge.exchange import Exchange
from openclaw_rl.types import JudgeCase, Verdict


class RawFollowUp(RuleFirstJudge):
    """The whole message that followed, as it was written, in place of the hint taken from it."""

    def __init__(self, parts: JudgeParts) -> None:
        super().__init__(JUDGES["label"](parts))

    async def evaluate(self, case: JudgeCase) -> Verdict:
        verdict = await super().evaluate(case)
        return replace(verdict, hints=(Exchange(case).user_text,)) if verdict.hints else verdict


class NoHint(RawFollowUp):
    """Only the score."""

    async def evaluate(self, case: JudgeCase) -> Verdict:
        return replace(await super().evaluate(case), hints=())
