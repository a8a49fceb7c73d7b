"""The embedded trainer: LoRA or all weights of one model, on a CPU or one GPU.

Everything a step depends on is saved with its result (weights, optimizer, random state, step count, the
algorithm's own state), so a killed trainer resumes bit for bit.
"""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.models import pick_device
from openclaw_rl.packing import ATTENTION, attach, prove
from openclaw_rl.sizes import defaults_of, sized
from openclaw_rl.train import LOCAL
from openclaw_rl.train.activations import Activations
from openclaw_rl.train.beside import Beside
from openclaw_rl.train.export import copy_tokenizer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.lora import store_in_fp16, with_lora
from openclaw_rl.train.losses import loss_of
from openclaw_rl.train.masters import Masters
from openclaw_rl.train.memory import Budget
from openclaw_rl.train.packed import Packed, head_of, logprobs, pack, working_bytes
from openclaw_rl.train.policies import AVERAGE, TRAINER_STATE
from openclaw_rl.train.tally import Clock, Tally
from openclaw_rl.train.trial import fused_layers
from openclaw_rl.types import Batch, Json, StepReport, Weights
from openclaw_rl.types.lora import ADAPTER_CONFIG, ADAPTER_FILE

FrozenLinear = Callable[[torch.nn.Linear], torch.nn.Module]
BaseLoader = Callable[[Path, torch.dtype, torch.device], Any]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: Bytes per trained parameter: its gradient, and the optimizer's two moments.
_STEP_BYTES = 12
_NEW_LINE = "or start a new line from the base: openclaw-rl policy promote 0"
log = logging.getLogger(__name__)


class LocalTrainer:
    """Trainer protocol over transformers and PEFT."""

    capabilities = LOCAL

    def __init__(
        self,
        model: Path,
        options: LocalTrainerOptions | None = None,
        frozen_linear: FrozenLinear | None = None,
        load_base: BaseLoader | None = None,
        beside: Beside | None = None,
    ) -> None:
        """``frozen_linear`` replaces the layers under adapters with faster ones that compute the same.

        ``load_base`` gets the base from elsewhere than its files; ``beside`` is the engine on the same GPU.
        """
        options = options or LocalTrainerOptions()
        self._frozen_linear, self._load_base = frozen_linear, load_base or read_base
        self._beside = beside or Beside()
        if options.finetune not in ("lora", "full"):
            raise ValueError(f"unknown way of fine-tuning {options.finetune!r}; known: lora, full")
        if options.train_dtype not in (*_DTYPES, "auto"):
            raise ValueError(f"unknown dtype {options.train_dtype!r}; known: auto, {', '.join(_DTYPES)}")
        if options.train_threads:
            torch.set_num_threads(options.train_threads)
        self.device = torch.device(pick_device(options.train_device))
        self.options = options = _sized(options, model, self.device)
        self._path = model
        self._load()

    def _load(self) -> None:
        options = self.options
        torch.manual_seed(options.seed)
        wanted = (self._path, _DTYPES[options.train_dtype], self.device)
        shares = options.finetune == "lora" and self.device.type == "cuda"
        base = (self._beside.base(*wanted) if shares else None) or self._load_base(*wanted)
        base.config.use_cache = False
        if self.device.type == "cuda":  # the same adapter, wherever the base came from
            torch.manual_seed(options.seed)
        self._model: Any = with_lora(base, options, options.name) if options.finetune == "lora" else base
        self._model.to(self.device).eval()  # eval turns dropout off; gradients still flow
        self._decoder, self._head = base.get_decoder(), head_of(base)
        self._packing = attach(self._decoder)
        try:
            prove(base, self._packing, self._packed)
        except ValueError as error:
            raise ValueError(f"the local trainer cannot train {type(base).__name__}: {error}") from error
        self._speed_up_base()
        self._named = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        self._parameters = [parameter for _, parameter in self._named]
        can_fuse = options.fused and options.finetune == "lora" and self.device.type == "cuda"
        self._fused = fused_layers(self._decoder, self._packing, self._parameters) if can_fuse else []
        self._masters = Masters(self._parameters)
        self._first = [p.detach().clone() for p in self._parameters]
        self._begin()
        self._plan_memory()

    def _plan_memory(self) -> None:
        on_gpu, options = self.device.type == "cuda", self.options
        offer = self._beside.offer
        self._budget = Budget(self.device, options.train_gpu_gib, offer) if on_gpu else None
        self._activations = Activations(
            self._model, self._decoder, self._packing, options, self._fused,
            self._free_bytes if on_gpu else None,
        )  # fmt: skip
        if not options.micro_batch_tokens:
            tokens = self._activations.longest_row()
            log.info("rows of up to %d tokens, fused layers: %s", tokens, bool(self._fused))
            self.options = replace(options, micro_batch_tokens=tokens)

    def _free_bytes(self) -> float:
        """Memory for a row, beside the optimizer's, which is allocated in the first step."""
        assert self._budget is not None
        step = 0 if self._optimizer.state else _STEP_BYTES * sum(p.numel() for p in self._parameters)
        return self._budget.activations(step + working_bytes(self._head))

    def _speed_up_base(self) -> None:
        for module in self._model.modules():
            layer = getattr(module, "base_layer", None)
            if self._frozen_linear and isinstance(layer, torch.nn.Linear):
                module.base_layer = self._frozen_linear(layer)

    def _begin(self) -> None:
        """Reset to the state before the first step."""
        options = self.options
        self._masters.put(self._first)
        self._optimizer = torch.optim.AdamW(
            self._masters.weights,
            lr=options.learning_rate,
            betas=options.betas,
            weight_decay=options.weight_decay,
        )
        self._average = self._copies() if options.average_decay else None
        self._steps = 0
        self._state: Json = {}

    @property
    def state(self) -> Json:
        """The algorithm's state, as last saved."""
        saved: Json = json.loads(json.dumps(self._state))
        return saved

    def _copies(self) -> list[torch.Tensor]:
        return [master.detach().clone() for master in self._masters.weights]

    # --- one step ----------------------------------------------------------------------------

    def step(self, batch: Batch, version: int) -> StepReport:
        while True:
            try:
                return self._step(batch, version)
            except torch.OutOfMemoryError as error:
                if self._budget is None:
                    raise
                self._budget.shrink(error)
                self._model.zero_grad(set_to_none=True)  # of the row that failed

    def _step(self, batch: Batch, version: int) -> StepReport:
        options = self.options
        started, clock, tally = time.monotonic(), Clock(self.device), Tally(version)
        self._optimizer.zero_grad(set_to_none=True)
        batch_loss = loss_of(batch)
        padding = getattr(batch_loss, "padding", 0.0)
        share = self._packing.can_share
        for packed in pack(batch.examples, options.micro_batch_tokens, self.device, padding, share):
            if self.device.type == "cuda":
                self._beside.wait_for_users()
            before = clock.now()
            new = self._logprobs(packed)
            loss = (batch_loss(new, packed.old_NK, packed.signal_NK) * packed.weights_N).sum()
            if options.kl_coefficient:
                loss = loss + options.kl_coefficient * self._kl_to_base(packed, new)
            forwarded = clock.now()
            loss.backward()
            self._masters.take_gradients()
            tally.time(before, forwarded, clock.now())
            tally.add(packed, new, loss)
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters.weights, options.grad_clip))
        rate = self._learning_rate() * batch.scale
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._masters.round_off()
        self._steps += 1
        if self._average is not None:
            with torch.no_grad():
                torch._foreach_lerp_(self._average, self._masters.weights, 1 - options.average_decay)
        loss_sum = tally.loss()
        forward_s, backward_s = tally.seconds(clock)
        return StepReport(
            loss=loss_sum,
            grad_norm=norm,
            finite=self._is_finite() and loss_sum == loss_sum,
            learning_rate=rate,
            num_samples=len(batch.examples),
            num_tokens=tally.num_tokens,
            num_reply_tokens=tally.num_reply,
            mismatch=tally.mismatch(),
            ratio=tally.ratio(),
            forward_s=forward_s,
            backward_s=backward_s,
            total_s=time.monotonic() - started,
        )

    def _learning_rate(self) -> float:
        options = self.options
        return options.learning_rate * min(1.0, (self._steps + 1) / max(1, options.warmup_steps))

    def _logprobs(self, packed: Packed) -> torch.Tensor:
        with self._activations.keeping(packed.num_tokens):
            self._packing.describe(packed.lengths, shared=packed.shared)
            hidden_1TH = self._decoder(
                input_ids=packed.ids_1T, position_ids=packed.positions_1T, use_cache=False
            ).last_hidden_state
        return logprobs(hidden_1TH[0, packed.rows_N], self._head, packed.targets_NK)

    @torch.inference_mode()
    def _packed(self, sequences: list[list[int]]) -> torch.Tensor:
        """Log-probs of every position."""
        self._packing.describe([len(ids) for ids in sequences])
        ids, places = [i for s in sequences for i in s], [i for s in sequences for i in range(len(s))]
        ids_1T, positions_1T = (torch.tensor([row], device=self.device) for row in (ids, places))
        hidden_1TH = self._decoder(
            input_ids=ids_1T, position_ids=positions_1T, use_cache=False
        ).last_hidden_state
        return self._head.logits(hidden_1TH[0]).log_softmax(-1)

    def _kl_to_base(self, packed: Packed, new_NK: torch.Tensor) -> torch.Tensor:
        """k3 estimate of the KL on the sampled tokens."""
        if self.options.finetune != "lora":
            raise ValueError("KL to the base needs LoRA: full fine-tuning keeps no copy of the base")
        with torch.no_grad(), self._model.disable_adapter():
            base = self._logprobs(packed)[:, 0]
        gap = base - new_NK[:, 0]
        return ((gap.exp() - gap - 1) * packed.weights_N).sum()

    def _is_finite(self) -> bool:
        return bool(torch.stack([p.isfinite().all() for p in self._parameters]).all())

    # --- saving ------------------------------------------------------------------------------

    def save(self, folder: Path, state: Json) -> None:
        """Save a PEFT adapter or a whole checkpoint, and what ``resume`` needs."""
        self._state = json.loads(json.dumps(state))
        folder.mkdir(parents=True, exist_ok=True)
        self._save_weights(folder)
        if self._average is not None:
            self._save_average(folder / AVERAGE, self._average)
        torch.save(
            {
                "average": None if self._average is None else [a.cpu() for a in self._average],
                "masters": [m.cpu() for m in self._copies()] if self._rounds else None,
                "optimizer": self._optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "steps": self._steps,
                "state": json.dumps(self._state),
            },
            folder / TRAINER_STATE,
        )

    @property
    def _rounds(self) -> bool:
        """Whether the stored weights are less precise than those that are trained."""
        return self._masters.are_copies or self.options.finetune == "lora"

    def _save_average(self, folder: Path, average: list[torch.Tensor]) -> None:
        """Saved as ordinary weights, so that an engine can load them."""
        folder.mkdir(exist_ok=True)
        now = self._copies()
        self._masters.put(average)
        self._save_weights(folder)
        self._masters.put(now)

    def _save_weights(self, folder: Path) -> None:
        if self.options.finetune == "full":
            self._model.config.use_cache = True  # what programs that load it expect
            self._model.save_pretrained(folder)
            self._model.config.use_cache = False
            copy_tokenizer(self._path, folder)
        else:
            # By default, PEFT asks the hub whether the base has another vocabulary.
            self._model.save_pretrained(folder, save_embedding_layers=False)
            store_in_fp16(folder / ADAPTER_FILE)
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's model card template

    def resume(self, weights: Weights | None) -> None:
        """If a version's trainer state is missing, training continues with a new optimizer."""
        folder = None if weights is None else weights.folder
        saved_weights = None if folder is None else self._saved_weights(folder)
        self._begin()
        torch.manual_seed(self.options.seed)
        if folder is None or saved_weights is None:
            return
        self._masters.put(saved_weights)
        if self._average is not None:
            self._average = self._copies()
        if not (folder / TRAINER_STATE).exists():
            log.warning("version %s is trained on with a new optimizer: its own was freed", folder.name)
            return
        try:
            saved = torch.load(folder / TRAINER_STATE, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            log.warning("version %s is trained on with a new optimizer: %s", folder.name, error)
            return
        if self._average is not None and saved["average"] is not None:
            self._average = [a.to(self.device) for a in saved["average"]]
        if self._rounds and saved.get("masters"):
            self._masters.put(saved["masters"])
        stated = [{**group} for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(saved["optimizer"])
        for group, own in zip(self._optimizer.param_groups, stated, strict=True):
            # Keep the saved moments, but use the current settings.
            group.update({name: own[name] for name in ("betas", "weight_decay")})
        torch.set_rng_state(saved["random"])
        self._steps = saved["steps"]
        self._state = json.loads(saved["state"])

    def _saved_weights(self, folder: Path) -> list[torch.Tensor]:
        """A version's weights in the order of ``_named``; ValueError if they do not match."""
        if not (folder / ADAPTER_FILE).exists() and not any(folder.glob("model*.safetensors")):
            raise ValueError(f"the weights of version {folder.name} are gone; promote another, {_NEW_LINE}")
        _check_kind(folder, self.options)
        tensors = _read_adapter(folder) if self.options.finetune == "lora" else self._read_checkpoint(folder)
        names = [name.replace(".default.", ".") for name, _ in self._named]
        shapes = {name: p.shape for name, p in zip(names, self._parameters, strict=True)}
        if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
            raise ValueError(
                f"version {folder.name} was trained from another model or on other layers; "
                f"name those with --model and --lora-targets, {_NEW_LINE}"
            )
        return [tensors[name] for name in names]

    def _read_checkpoint(self, folder: Path) -> dict[str, torch.Tensor]:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=_DTYPES[self.options.train_dtype])
        return {name: p.detach() for name, p in model.named_parameters()}


def read_base(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The transformers model of a folder. It is moved to the device later, with its adapters."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would end up in the log
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=ATTENTION)


def _read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / ADAPTER_FILE)


def _sized(options: LocalTrainerOptions, model: Path, device: torch.device) -> LocalTrainerOptions:
    """The rows of a GPU are sized once the model is loaded."""
    on_gpu, tokens, dtype = device.type == "cuda", options.micro_batch_tokens, options.train_dtype
    if not tokens and not on_gpu:
        tokens = defaults_of(model).micro_batch_tokens
    if dtype == "auto":
        dtype = "bf16" if on_gpu else "fp32"
    return replace(sized(options, model), micro_batch_tokens=tokens, train_dtype=dtype)


def _check_kind(folder: Path, options: LocalTrainerOptions) -> None:
    """Tensors of the right shape may still belong to another rank, scale or base."""
    kind = "lora" if (folder / ADAPTER_FILE).exists() else "full"
    facts: list[tuple[str, object, object]] = [("finetune", kind, options.finetune)]
    if kind == options.finetune == "lora":
        saved = json.loads((folder / ADAPTER_CONFIG).read_text())
        facts += [
            ("lora-rank", saved["r"], options.lora_rank),
            ("lora-alpha", saved["lora_alpha"], options.lora_alpha),
        ]
        if options.name:
            facts.append(("model", saved["base_model_name_or_path"], options.name))
    for flag, then, now in facts:
        if then != now:
            raise ValueError(
                f"version {folder.name} was trained with --{flag} {then}, not {now}: "
                f"set that again, {_NEW_LINE}"
            )
