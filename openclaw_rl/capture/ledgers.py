"""The three ledgers together: served turns, verdicts, and samples with policy versions."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger


@dataclass(frozen=True, slots=True)
class Ledgers:
    """All stored data, wherever it is stored."""

    serve: ServeLedger
    """Sessions, turns and events; written by the serve process."""
    learn: LearnLedger
    """Turns that wait for the judge, and verdicts; written by the learn process."""
    policies: PolicyLedger
    """Samples and policy versions, in the learn process's database."""

    @classmethod
    def of(cls, serve: ServeLedger, learn: LearnLedger) -> Ledgers:
        return cls(serve, learn, PolicyLedger(serve, learn))

    def close(self) -> None:
        self.learn.close()
        self.serve.close()
