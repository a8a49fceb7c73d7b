"""A data folder with versions that were really trained, step by step and without the learn process."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import torch

from openclaw_rl.capture.events import TurnEvent
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.policies import PolicyStore
from openclaw_rl.types import Batch, Example, Verdict
from tests.train.conftest import make_item, make_turn

OPTIONS = LocalTrainerOptions(train_device="cpu", lora_rank=4, lora_alpha=8, learning_rate=1e-2, name="tiny")
PASSED = {"passed": True, "reason": "", "checks": []}
WORSE = {"passed": False, "reason": "replies got worse", "checks": []}


def plain_logprobs(model: torch.nn.Module, item: Example) -> torch.Tensor:
    """Of the reply, by a forward pass that knows nothing of ours."""
    ids = item.prompt_ids + item.reply_ids
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    return rows[len(item.prompt_ids) - 1 : -1].gather(1, torch.tensor(ids[-len(item.reply_ids) :])[:, None])


class Home:
    def __init__(self, home: Path, trainer: LocalTrainer) -> None:
        self.serve_ledger, self.learn_ledger = (
            ServeLedger(sqlite_url(home / "serve.db")),
            LearnLedger(sqlite_url(home / "learn.db")),
        )
        self.policy_ledger, self.store = (
            PolicyLedger(self.serve_ledger, self.learn_ledger),
            PolicyStore(home / "policies"),
        )
        self.judge_queue = LedgerJudgeQueue(self.serve_ledger, self.learn_ledger, idle_s=1e12)
        self.trainer = trainer

    def step(self, passes: bool = True) -> int:
        """A turn, its verdict, its sample, a step on it, and what the gate says."""
        version = self.claim()
        self.train(version)
        if passes:
            self.policy_ledger.publish(version, PASSED)
        else:
            self.policy_ledger.reject(version, WORSE)
        return version

    def claim(self) -> int:
        number = len(self.policy_ledger.list_policies()) + 1
        turn, item = make_turn(number, 12, 6), make_item(number, 12, 6)
        said = TurnEvent(turn.id, "next_state", time.time(), [{"role": "user", "content": "Thanks"}])
        self.serve_ledger.append([turn, said])
        self.judge_queue.pull()
        self.judge_queue.settle(turn.id, Verdict(1, 0.9, "votes"))
        [(seq, turn_id)] = self.policy_ledger.pending(2)
        judged = self.policy_ledger.judged(turn_id)
        assert judged is not None
        self.policy_ledger.settle(seq, *judged, examples=[item])
        policy = self.policy_ledger.claim(8, self.policy_ledger.serving(), "0123456789abcdef")
        assert policy is not None
        return policy.version

    def train(self, version: int) -> None:
        policy = self.policy_ledger.policy(version)
        assert policy is not None
        parent, items = policy.parent or 0, self.policy_ledger.items(version)
        self.trainer.resume(self.store.weights(parent) if parent else None)
        metrics = asdict(self.trainer.step(Batch(items), parent))
        manifest = {
            "version": version,
            "parent": parent,
            "samples": [item.source.turn_ids[0] for item in items],
            "config_hash": policy.config_hash,
            "metrics": metrics,
            "created_at": time.time(),
        }
        self.store.write(version, lambda folder: self.trainer.save(folder, {"version": version}), manifest)
        self.policy_ledger.trained(version, metrics)

    def close(self) -> None:
        self.learn_ledger.close()
        self.serve_ledger.close()
