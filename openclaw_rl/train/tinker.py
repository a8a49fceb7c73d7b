"""Training through the Tinker protocol: the cloud service, or your own server such as SkyRL.

Each step first requests the current log-probs, computes our loss and its gradient with respect to each of
them locally, and sends that gradient as the advantages of a loss that every server has. So all our losses
work exactly, Python functions too; the price is one more forward pass, and one row per candidate column.

Everything a step depends on is in the server's checkpoint and in the version's URI, so a killed trainer
resumes from there. A client that failed is never used again.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from openclaw_rl.errors import EngineAway
from openclaw_rl.settings import TrainConfig
from openclaw_rl.tinker_service import TinkerService, within
from openclaw_rl.train import TINKER
from openclaw_rl.train.losses import loss_of
from openclaw_rl.train.tinker_probe import Reduction, norm_in, probe, settle
from openclaw_rl.types import Batch, Example, Json, StepReport, Weights


@dataclass(frozen=True)
class TinkerTrainerOptions(TrainConfig):
    """The training settings, plus those of Tinker: ``[train.tinker]``."""

    url: str = ""
    """Your own server, such as http://10.0.0.5:8000; by default the cloud service, with TINKER_API_KEY."""
    base_model: str = ""
    """The server's name for the model, if it differs from --model."""
    reduction: Literal["auto", "sum", "mean"] = "auto"
    """How the server reduces over rows and tokens; auto: measured on your own server, sum in the cloud."""
    beta1: float = 0.9
    """Adam's beta1."""
    beta2: float = 0.98
    """Adam's beta2."""
    patience_s: float = 600.0
    """Timeout of one call, in seconds."""
    name: str = ""
    """The model's name in the settings."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One candidate at every position of an example: a row of the request."""

    example: int
    column: int
    datum_ids: list[int]
    targets: list[int]


class TinkerTrainer:
    """Trainer protocol over the Tinker client."""

    capabilities = TINKER
    kind: ClassVar = TinkerService()
    keeps_sessions: ClassVar = True
    """Some servers sample from a version only while the session that made it is open."""

    def __init__(self, options: TinkerTrainerOptions) -> None:
        self.options = options
        self._service: Any = None
        self._sessions: list[Any] = []
        self._client: Any = None
        self._model: Any = None
        """The client; kept after it failed, so that its model can be released."""
        self._steps = 0
        self._state: Json = {}
        service = self._reached(lambda: self.kind.connect(options))
        self._reached(lambda: self.kind.offered_models(service, options))
        self.kind.let_go(options, service, None)
        self.options = replace(options, reduction=self._find_reduction())

    def _find_reduction(self) -> Reduction:
        options = self.options
        if not options.url:
            return "mean" if options.reduction == "mean" else "sum"
        self._connect(None)
        try:
            findings = probe(self._client, self._call, self.kind.sdk)
        finally:
            self.kind.let_go(options, self._service, self._model)
            self._service = self._client = self._model = None
            self._sessions = []
        try:
            return settle(findings, options.reduction, options.grad_clip)
        except ValueError as error:
            raise EngineAway(str(error)) from None

    @property
    def state(self) -> Json:
        saved: Json = json.loads(json.dumps(self._state))
        return saved

    # --- the server --------------------------------------------------------------------------

    def _reached(self, call: Callable[[], Any]) -> Any:
        """The engine's start checked the settings. What is wrong now may pass, and is no step's fault."""
        try:
            return call()
        except ValueError as error:
            raise EngineAway(str(error)) from None

    def _connect(self, state: str | None) -> None:
        """Create a new model on the server: weights can be loaded only before anything else happens.

        SkyRL's JAX backend (``mean``) has few slots, and the engine keeps its own copies of versions there.
        """
        keeps = self.keeps_sessions and self.options.reduction != "mean"
        if not keeps and self._service is not None:
            self.kind.let_go(self.options, self._service, self._model)
        self._client = self._model = None
        self._service = self._reached(lambda: self.kind.connect(self.options))
        self._sessions = [self._service, *(self._sessions if keeps else ())]
        self._client = self._model = self._in_time(lambda: self._create(state))

    def _create(self, state: str | None) -> Any:
        """A client of a new model: the base's, or what was saved under ``state``."""
        o = self.options
        if state is not None:
            return self._service.create_training_client_from_state_with_optimizer(state)
        return self._service.create_lora_training_client(
            o.base_model or o.name, rank=o.lora_rank, seed=o.seed, train_unembed=False
        )

    def _in_time(self, work: Callable[[], Any]) -> Any:
        service = f"the {self.kind.title} service"
        try:
            return within(self.options.patience_s, work, service)
        except EngineAway:
            raise
        except TimeoutError:
            raise EngineAway(f"{service} does not answer") from None
        except Exception as error:
            raise self.kind.raised(error) from None

    def _call(self, call: Any, *arguments: Any) -> Any:
        """A client that failed may hold gradients of half a step, so it is discarded."""
        try:
            return self._in_time(lambda: call(*arguments).result(self.options.patience_s))
        except Exception:
            self._client = None
            raise

    def resume(self, weights: Weights | None) -> None:
        """RuntimeError if the service cannot load what was saved, which no waiting brings back."""
        facts = {} if weights is None else self.kind.facts_of(weights.uri)
        try:
            self._connect(facts.get("state"))
        except ValueError as error:
            if weights is None:
                raise
            raise RuntimeError(
                f"the {self.kind.title} service cannot load the saved state of version {weights.version} "
                f"({error}); go back to another one with 'openclaw-rl policy promote'"
            ) from None
        self._steps, self._state = facts.get("steps", 0), facts.get("algorithm", {})

    def save(self, folder: Path, state: Json) -> str:
        """Saves on the server; the returned URI holds what ``resume`` needs."""
        self._state = json.loads(json.dumps(state))
        kept = self._call(self._client.save_state, _name()).path
        sampler = self._call(self._client.save_weights_for_sampler, _name()).path
        return self.kind.weights_uri(sampler, {"state": kept, "steps": self._steps, "algorithm": self._state})

    # --- one step ----------------------------------------------------------------------------

    def step(self, batch: Batch, version: int) -> StepReport:
        started, loss = time.monotonic(), loss_of(batch)
        if self._service is None:
            self._connect(None)  # ``resume`` was not called: start from the base
        if self._client is None:
            raise EngineAway(f"the last call to the {self.kind.title} service failed")
        padding = getattr(loss, "padding", 0.0)
        columns = [each for i, e in enumerate(batch.examples) for each in _columns(i, e, padding)]
        now = self._call(self._client.forward, _data(self.kind.sdk, columns, None, None), "cross_entropy")
        new = [torch.tensor(list(out["logprobs"].data), dtype=torch.float32) for out in now.loss_fn_outputs]
        forwarded = time.monotonic()
        total, gradients, differences, ratios = _differentiate(batch, loss, columns, new, version)
        data = _data(
            self.kind.sdk, columns, new, [self._scaled(gradient, len(columns)) for gradient in gradients]
        )
        rate = self.options.learning_rate * batch.scale * self._warmup()
        # Submit both before waiting for either, as the protocol requires.
        passing = self._submit(self._client.forward_backward, data, "importance_sampling")
        stepping = self._submit(self._client.optim_step, self._adam(rate))
        self._call(lambda: passing)
        metrics = self._call(lambda: stepping).metrics or {}
        self._steps += 1
        return StepReport(
            loss=total,
            grad_norm=norm_in(metrics),
            finite=math.isfinite(total) and all(bool(row.isfinite().all()) for row in new),
            learning_rate=rate,
            num_samples=len(batch.examples),
            num_tokens=sum(len(e.prompt_ids) + len(e.reply_ids) - 1 for e in batch.examples),
            num_reply_tokens=sum(len(e.reply_ids) for e in batch.examples),
            mismatch=float(torch.cat(differences).mean()) if differences else None,
            ratio=float(torch.cat(ratios).mean()) if ratios else 1.0,
            forward_s=forwarded - started,
            backward_s=time.monotonic() - forwarded,
            total_s=time.monotonic() - started,
        )

    def _submit(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            self._client = None
            raise self.kind.raised(error) from None

    def _warmup(self) -> float:
        return min(1.0, (self._steps + 1) / max(1, self.options.warmup_steps))

    def _adam(self, rate: float) -> Any:
        o = self.options
        return self.kind.sdk.AdamParams(
            learning_rate=rate, beta1=o.beta1, beta2=o.beta2, eps=1e-8, weight_decay=o.weight_decay,
            grad_clip_norm=o.grad_clip,
        )  # fmt: skip

    def _scaled(self, gradient: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Undo the division by the row's tokens and the number of rows that a ``mean`` server does."""
        return gradient * len(gradient) * num_rows if self.options.reduction == "mean" else gradient


def _columns(index: int, example: Example, padding: float) -> list[_Column]:
    """The reply's own tokens, and every other column that carries signal."""
    ids = [*example.prompt_ids, *example.reply_ids]
    made = []
    for column in range(example.ids_NK.shape[1]):
        if column and bool((example.signal_NK[:, column] == padding).all()):
            continue
        # Prompt tokens are scored too, but get no gradient.
        targets = [*ids[1 : len(example.prompt_ids)], *example.ids_NK[:, column].tolist()]
        made.append(_Column(index, column, ids[:-1], targets))
    return made


def _differentiate(
    batch: Batch, loss: Any, columns: Sequence[_Column], new: Sequence[torch.Tensor], version: int
) -> tuple[float, list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """The loss; its gradient with respect to each row's log-probs; how far log-probs have moved."""
    rows = {(each.example, each.column): row for each, row in zip(columns, new, strict=True)}
    total, found, differences, ratios = 0.0, {}, [], []
    for index, example in enumerate(batch.examples):
        before, number = len(example.prompt_ids) - 1, example.ids_NK.shape[1]
        old_NK, signal_NK = torch.from_numpy(example.old_NK), torch.from_numpy(example.signal_NK)
        silent = torch.zeros(len(example.reply_ids))
        parts = [rows[index, k][before:] if (index, k) in rows else silent for k in range(number)]
        new_NK = torch.stack(parts, dim=1).requires_grad_()
        share = example.weight / (max(1, example.num_free) * len(batch.examples))
        value = loss(new_NK, old_NK, signal_NK).sum() * share
        [gradient_NK] = torch.autograd.grad(value, new_NK)
        total += float(value.detach())
        for k in range(number):
            found[index, k] = torch.cat([torch.zeros(before), gradient_NK[:, k]])
        change = (new_NK[:, 0] - old_NK[:, 0]).detach()[old_NK[:, 0] <= 0]
        if len(change):
            ratios.append(change.clamp(-20, 20).exp())
            if example.source.policy_version == version:
                differences.append(change.abs())
    return total, [found[each.example, each.column] for each in columns], differences, ratios


def _data(
    sdk: Any,
    columns: Sequence[_Column],
    new: Sequence[torch.Tensor] | None,
    gradients: Sequence[torch.Tensor] | None,
) -> list[Any]:
    """The rows of a request: to be scored, or with the gradients to apply."""
    made = []
    for number, each in enumerate(columns):
        inputs: dict[str, Any] = {"target_tokens": each.targets}
        if new is None or gradients is None:
            inputs["weights"] = [1.0] * len(each.targets)
        else:
            inputs["logprobs"] = new[number].tolist()
            inputs["advantages"] = (-gradients[number]).tolist()
        made.append(sdk.Datum(sdk.ModelInput.from_ints(each.datum_ids), inputs))
    return made


def _name() -> str:
    return f"openclaw-rl-{uuid.uuid4().hex}"
