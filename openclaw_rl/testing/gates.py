"""A gate for tests of everything else: the real one asks a version dozens of questions, for seconds."""

from __future__ import annotations

from openclaw_rl.train.gate import Gate, GateCheck, GateResult
from openclaw_rl.types import StepReport


class FiniteGate(Gate):
    """Passes every version with finite weights. A tiny random network could not pass more."""

    def __init__(self) -> None:
        self.everywhere = False

    async def check(self, version: int, parent: int, report: StepReport, *_: object) -> GateResult:
        passed = report.finite
        reason = "" if passed else "the weights are not finite"
        return GateResult(passed, reason, (GateCheck("finite", float(passed), 1.0, passed),))
