"""A custom trainer: plain PEFT and gradient descent, one example per backward pass.

openclaw-rl serve --trainer my_trainer:SgdTrainer
"""

import json
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from openclaw_rl.train import TrainerParts
from openclaw_rl.train.losses import LOSSES, loss_of
from openclaw_rl.types import Batch, Example, Json, StepReport, TrainerCapabilities, Weights


class SgdTrainer:
    capabilities = TrainerCapabilities(frozenset(LOSSES), custom_losses=True)

    def __init__(self, parts: TrainerParts) -> None:
        settings = parts.settings
        torch.manual_seed(settings.seed)
        base = AutoModelForCausalLM.from_pretrained(parts.model, dtype=torch.float32)
        lora = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules="all-linear")
        self._model = get_peft_model(base, lora).eval()
        self._model.peft_config["default"].base_model_name_or_path = parts.name
        self._named = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._first = {name: p.detach().clone() for name, p in self._named.items()}
        self._rate = 100 * settings.learning_rate  # plain gradients are much smaller than Adam's steps
        self.state: Json = {}

    def resume(self, weights: Weights | None) -> None:
        if weights is None:
            self._put(self._first)
            self.state = {}
            return
        saved = load_file(weights.folder / "adapter_model.safetensors")
        self._put({name: saved[name.replace(".default", "")] for name in self._named})
        self.state = json.loads((weights.folder / "state.json").read_text())

    def step(self, batch: Batch, version: int) -> StepReport:
        started, loss_function, total, changes = time.monotonic(), loss_of(batch), 0.0, []
        self._model.zero_grad()
        for example in batch.examples:
            new = self._logprobs(example)
            old, signal = torch.from_numpy(example.old_NK), torch.from_numpy(example.signal_NK)
            share = example.weight / (max(1, example.num_free) * len(batch.examples))
            loss = loss_function(new, old, signal).sum() * share
            loss.backward()
            total += float(loss.detach())
            if example.source.policy_version == version:
                changes.append((new[:, 0] - old[:, 0]).detach().abs().mean())
        norm = torch.nn.utils.clip_grad_norm_(self._named.values(), 1.0)
        rate = self._rate * batch.scale
        with torch.no_grad():
            for parameter in self._named.values():
                parameter -= rate * parameter.grad
        return StepReport(
            loss=total,
            grad_norm=float(norm),
            finite=bool(torch.isfinite(norm)) and total == total,
            learning_rate=rate,
            num_samples=len(batch.examples),
            num_tokens=sum(len(e.prompt_ids) + len(e.reply_ids) - 1 for e in batch.examples),
            num_reply_tokens=sum(len(e.reply_ids) for e in batch.examples),
            mismatch=float(sum(changes) / len(changes)) if changes else None,
            ratio=1.0,
            forward_s=0.0,
            backward_s=0.0,
            total_s=time.monotonic() - started,
        )

    def save(self, folder: Path, state: Json) -> None:
        self.state = json.loads(json.dumps(state))
        self._model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "state.json").write_text(json.dumps(self.state))

    def _logprobs(self, example: Example) -> torch.Tensor:
        ids = torch.tensor([example.prompt_ids + example.reply_ids])
        rows = torch.log_softmax(self._model(ids).logits[0, len(example.prompt_ids) - 1 : -1], -1)
        return rows.gather(1, torch.from_numpy(example.ids_NK).long())

    def _put(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(weights[name])
