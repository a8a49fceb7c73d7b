"""Judges for an ablation: what is a hint worth, compared with the user's own message?

    openclaw-rl eval personalize --serve-flags "--judge openclaw_rl.evals.personalize.ablation:RawFollowUp"

Both score every turn as the default judge does; only the teacher's hint differs.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.judge import JUDGES, JudgeParts, RuleFirstJudge
from openclaw_rl.judge.exchange import CaseTexts
from openclaw_rl.types import JudgeCase, Verdict


class RawFollowUp(RuleFirstJudge):
    """Uses the user's whole follow-up message, verbatim, instead of the hint extracted from it."""

    def __init__(self, parts: JudgeParts) -> None:
        super().__init__(JUDGES["label"](parts))

    async def evaluate(self, case: JudgeCase) -> Verdict:
        verdict = await super().evaluate(case)
        return replace(verdict, hints=(CaseTexts(case).user_text,)) if verdict.hints else verdict


class NoHint(RawFollowUp):
    """Keeps the score, without hints."""

    async def evaluate(self, case: JudgeCase) -> Verdict:
        return replace(await super().evaluate(case), hints=())
