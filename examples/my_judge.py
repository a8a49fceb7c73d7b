"""A custom judge, hence a custom reward: short replies are good, whatever the user says next.

openclaw-rl serve --judge my_judge:ShortIsGood
"""

from openclaw_rl.types import JudgeCase, Verdict


class ShortIsGood:
    async def evaluate(self, case: JudgeCase) -> Verdict:
        words = len((case.reply.get("content") or "").split())
        score = 1 if words <= 20 else -1
        return Verdict(score, confidence=1.0, source="votes", votes=(score,), reason=f"{words} words")

    async def close(self) -> None:
        pass
