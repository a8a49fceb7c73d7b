"""Samples in a policy ledger, without an algorithm that makes them."""

from __future__ import annotations

import numpy as np

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger
from openclaw_rl.types import Example, Source, TurnRecord, Verdict

COMPLAINT = Verdict(-1, 1.0, "feedback", hints=("Be brief.",))


def add_sample(
    serve: ServeLedger, learn: LearnLedger, turn: TurnRecord, verdict: Verdict = COMPLAINT
) -> PolicyLedger:
    """A judged turn whose sample is ready."""
    serve.append([turn])
    return settle_sample(serve, learn, turn, verdict)


def settle_sample(
    serve: ServeLedger, learn: LearnLedger, turn: TurnRecord, verdict: Verdict = COMPLAINT
) -> PolicyLedger:
    policies = PolicyLedger(serve, learn)
    with learn.db.begin() as connection:
        learn._add_verdict(connection, turn.id, verdict)
    [(seq, _)] = policies.pending(10)
    policies.settle(seq, turn, verdict, [example_of(turn, verdict)])
    return policies


def example_of(turn: TurnRecord, verdict: Verdict) -> Example:
    ids = np.array([[token.id] for token in turn.tokens], np.int32)
    ones = np.ones(ids.shape, np.float32)
    source = Source("own", (turn.id,), turn.user, verdict.score, None, turn.policy_version)
    reply = [token.id for token in turn.tokens]
    return Example(turn.prompt_ids, reply, ids, -ones, ones, source, len(reply), strength=1.0)
