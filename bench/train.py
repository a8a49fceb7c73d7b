"""Training speed compared on the same cores: plain PEFT loops and our trainer.

    python bench/train.py [--runs 3] [--threads 2] [--long 1] [--device cpu] [--save FILE.json]

One step (LoRA of rank 16 on all linear layers, fp32, clipped surrogate over five candidates per position,
AdamW) on samples with an agent's range of lengths: prompts of 60–300 tokens, ``--long`` of the ``--samples``
with 1,000–2,000; replies of 20–200. Lengths come from a fixed seed, ids are random; old log-probs and
candidates are the base model's own.

The plain loops are ``AutoModelForCausalLM`` with sdpa attention under PEFT, all logits, ``log_softmax`` and
``gather``, right-padded with a mask:

- *padded*: micro-batches of ``--micro-batch`` samples in arrival order;
- *sorted*: the same, of samples of similar length;
- *single*: one sample at a time, without padding.

*fp32* is our trainer without the native products for the frozen layers.

Each contender runs alone in its own process, in rotation; figures are medians over the runs. Tokens per
second count real tokens only. The gradients are compared too, and must agree.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from openclaw_rl.testing.examples import make_example
from openclaw_rl.types import Example, SamplingParams, Token, TurnRecord

RANK, ALPHA, LEARNING_RATE, BETAS = 16, 32, 1e-3, (0.9, 0.98)
CANDIDATES = 4
PLAIN = ("padded", "sorted", "single")
NAMES = (*PLAIN, "fp32", "ours")
ROWS = {
    "step_s": "step (s)",
    "tokens_per_s": "real tokens/s",
    "cpu_s": "CPU seconds of a step",
    "forward_s": "  forward (s)",
    "backward_s": "  backward (s)",
    "optimizer_s": "  optimizer (s)",
    "rest_s": "  rest (s)",
    "computed": "tokens computed for each real one",
    "memory_mb": "peak memory (MB)",
}
Figures = dict[str, float]


# --- data ------------------------------------------------------------------------------------


def draw_lengths(num_samples: int, num_long: int, seed: int) -> list[tuple[int, int]]:
    """(prompt, reply) lengths of each sample, the long ones at random positions."""
    rng = random.Random(seed)
    long = set(rng.sample(range(num_samples), num_long))
    return [
        (rng.randint(1000, 2000) if n in long else rng.randint(60, 300), rng.randint(20, 200))
        for n in range(num_samples)
    ]


def prepare(model: Path, folder: Path, options: argparse.Namespace) -> Figures:
    """Write samples with random ids; old log-probs and top candidates are the base model's."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(options.device)
    rng = np.random.default_rng(options.seed)
    arrays: dict[str, np.ndarray] = {}
    for n, (prompt, reply) in enumerate(draw_lengths(options.samples, options.long, options.seed)):
        ids = torch.from_numpy(rng.integers(3, network.config.vocab_size, prompt + reply))
        with torch.no_grad():
            hidden = network.model(ids[None].to(options.device)).last_hidden_state[0, prompt - 1 : -1]
            logprobs = network.lm_head(hidden).log_softmax(-1).cpu()
        candidates = torch.cat([ids[prompt:, None], logprobs.topk(CANDIDATES).indices], dim=1)
        arrays[f"prompt{n}"], arrays[f"ids{n}"] = ids[:prompt].numpy(), candidates.numpy()
        arrays[f"old{n}"] = logprobs.gather(1, candidates).numpy()
        arrays[f"signal{n}"] = rng.normal(0, 0.3, candidates.shape).astype(np.float32)
    np.savez(folder / "data.npz", **arrays)
    return {}


def read_items(folder: Path) -> list[Example]:
    arrays, items = np.load(folder / "data.npz"), []
    for n in range(len(arrays.files) // 4):
        ids, old = arrays[f"ids{n}"], arrays[f"old{n}"]
        tokens = [
            Token(int(i), float(p), float(p), (), (), 0) for i, p in zip(ids[:, 0], old[:, 0], strict=True)
        ]
        turn = TurnRecord(
            f"t{n}", "s", "ann", "chat", "main", [], None, {}, {}, arrays[f"prompt{n}"].tolist(),
            tokens, SamplingParams(256), 0, "stop", float(n),
        )  # fmt: skip
        items.append(make_example(turn, 1, ids.astype(np.int32), old, arrays[f"signal{n}"]))
    return items


# --- contenders ------------------------------------------------------------------------------


def wake_adapters(named: Sequence[tuple[str, Any]]) -> None:
    """Set B to small noise: fresh adapters have B = 0, and A would have no gradient to compare."""
    import torch

    for n, (name, parameter) in enumerate(sorted(named, key=lambda pair: pair[0])):
        if "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)) * 0.002
            with torch.no_grad():
                parameter.copy_(noise)


class Ours:
    def __init__(self, name: str, model: Path, options: argparse.Namespace) -> None:
        from openclaw_rl.engine.frozen import native_linear
        from openclaw_rl.train.local import LocalTrainer
        from openclaw_rl.train.local_options import LocalTrainerOptions

        self.trainer = LocalTrainer(
            model,
            LocalTrainerOptions(
                lora_rank=RANK, lora_alpha=ALPHA, learning_rate=LEARNING_RATE, betas=BETAS, grad_clip=1e9,
                train_threads=options.threads, train_device=options.device,
            ),
            native_linear if name == "ours" else None,
        )  # fmt: skip
        self.named = self.trainer._named
        wake_adapters(self.named)
        self.optimizer_s: list[float] = []
        self.trainer._optimizer.step = self.timed(self.trainer._optimizer.step)  # type: ignore[method-assign]

    def timed(self, optimizer_step: Callable[[], Any]) -> Any:
        def step() -> None:
            started = now(self.trainer.device)
            optimizer_step()
            self.optimizer_s[:] = [now(self.trainer.device) - started]

        return step

    def step(self, items: list[Example]) -> Figures:
        from openclaw_rl.types import Batch

        report = self.trainer.step(Batch(items), 0)
        return {
            "forward_s": report.forward_s,
            "backward_s": report.backward_s,
            "optimizer_s": sum(self.optimizer_s),
            "computed_tokens": report.num_tokens,
        }


class Plain:
    """The usual loop with PEFT and a padding collator."""

    def __init__(self, name: str, model: Path, options: argparse.Namespace) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        self.sorted = name == "sorted"
        self.micro_batch = 1 if name == "single" else options.micro_batch
        self.device = torch.device(options.device)
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(base, config).to(self.device).train()  # no dropout
        self.named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        wake_adapters(self.named)
        self.parameters = [p for _, p in self.named]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)

    def step(self, items: list[Example]) -> Figures:
        import torch

        forward_s = backward_s = 0.0
        computed = 0
        self.optimizer.zero_grad(set_to_none=True)
        for rows in self.micro_batches(items):
            started = now(self.device)
            loss, size = self.loss(rows, len(items))
            forwarded = now(self.device)
            loss.backward()
            forward_s, backward_s = forward_s + forwarded - started, backward_s + now(self.device) - forwarded
            computed += size
        torch.nn.utils.clip_grad_norm_(self.parameters, 1e9)
        started = now(self.device)
        self.optimizer.step()
        optimizer_s = now(self.device) - started
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "optimizer_s": optimizer_s,
            "computed_tokens": computed,
        }

    def micro_batches(self, items: list[Example]) -> Iterator[list[Example]]:
        if self.sorted:
            items = sorted(items, key=num_tokens)
        for start in range(0, len(items), self.micro_batch):
            yield items[start : start + self.micro_batch]

    def loss(self, items: list[Example], batch_size: int) -> tuple[Any, int]:
        """The same as the trainer's: mean over a sample's tokens, then over the batch's samples."""
        import torch

        from openclaw_rl.train.losses import Surrogate

        shape = (len(items), max(map(num_tokens, items)))
        ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        for row, item in enumerate(items):
            sequence = item.prompt_ids + item.reply_ids
            ids[row, : len(sequence)], mask[row, : len(sequence)] = torch.tensor(sequence), 1
        logits = self.model(ids.to(self.device), attention_mask=mask.to(self.device), use_cache=False).logits
        logprobs = torch.log_softmax(logits, dim=-1)
        total = torch.zeros((), device=self.device)
        for row, item in enumerate(items):
            first, last = len(item.prompt_ids) - 1, num_tokens(item) - 1
            new = logprobs[row, first:last].gather(1, self.tensor(item.ids_NK).long())
            losses = Surrogate()(new, self.tensor(item.old_NK), self.tensor(item.signal_NK))
            total = total + losses.mean() / batch_size
        return total, ids.numel()

    def tensor(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(array).to(self.device)


def num_tokens(item: Example) -> int:
    return len(item.prompt_ids) + len(item.reply_ids)


def now(device: Any) -> float:
    """The time after all pending work on the device is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def run(name: str, model: Path, folder: Path, options: argparse.Namespace) -> Figures:
    import torch

    torch.set_num_threads(options.threads)
    items = read_items(folder)
    contender: Any = (Plain if name in PLAIN else Ours)(name, model, options)
    first = [parameter.detach().clone() for _, parameter in contender.named]
    contender.step(sorted(items, key=num_tokens)[:2])  # warms up threads, buffers and optimizer
    with torch.no_grad():
        for (_, parameter), value in zip(contender.named, first, strict=True):
            parameter.copy_(value)
    device, cpu_s = torch.device(options.device), time.process_time()
    started = now(device)
    figures: Figures = contender.step(items)
    step_s = now(device) - started
    figures["step_s"], figures["cpu_s"] = step_s, time.process_time() - cpu_s
    split = ("forward_s", "backward_s", "optimizer_s")
    figures["rest_s"] = step_s - sum(figures[key] for key in split)
    figures["tokens_per_s"] = sum(map(num_tokens, items)) / step_s
    figures["computed"] = figures.pop("computed_tokens") / sum(map(num_tokens, items))
    figures["memory_mb"] = peak_memory_mb(device)
    torch.save({n: p.grad.cpu() for n, p in contender.named}, folder / f"{name}.pt")
    return figures


def peak_memory_mb(device: Any) -> float:
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def difference(folder: Path, name: str, other: str) -> float:
    """The largest gradient difference, relative to each tensor's largest entry."""
    import torch

    a, b = torch.load(folder / f"{name}.pt"), torch.load(folder / f"{other}.pt")
    assert a.keys() == b.keys()
    return max(float((a[key] - b[key]).abs().max() / b[key].abs().max()) for key in b)


# --- the table -------------------------------------------------------------------------------


def run_in_child(name: str, folder: Path, options: argparse.Namespace) -> Figures:
    command = [sys.executable, __file__, "--contender", name, "--folder", str(folder)]
    for key in ("threads", "device", "samples", "long", "seed", "micro_batch", "model"):
        command += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    result: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def contend(options: argparse.Namespace) -> Figures:
    from openclaw_rl.models import default_cache_dir, resolve_model

    model = resolve_model(options.model, default_cache_dir())
    if options.contender == "prepare":
        return prepare(model, options.folder, options)
    return run(options.contender, model, options.folder, options)


def parse() -> argparse.Namespace:
    from openclaw_rl.models import DEFAULT_MODEL

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--samples", type=int, default=8, help="of a batch")
    parser.add_argument("--long", type=int, default=1, help="how many of them have long prompts")
    parser.add_argument("--micro-batch", type=int, default=2, help="samples of a padded micro-batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(NAMES), help="contenders, separated by commas")
    parser.add_argument("--save", type=Path, help="also write the medians as JSON")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.contender:
        print(json.dumps(contend(options)))
        return
    names = options.only.split(",")
    results: dict[str, list[Figures]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run_in_child("prepare", folder, options)
        for _ in tqdm(range(options.runs), desc="runs"):
            for name in tqdm(names, desc="contenders", leave=False):
                results[name].append(run_in_child(name, folder, options))
        differences = {name: difference(folder, name, names[-1]) for name in names[:-1]}
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in ROWS}
        for name, runs in results.items()
    }
    caption = f"{machine(options)}, median of {options.runs} runs"
    print_table(caption, medians, differences, draw_lengths(options.samples, options.long, options.seed))
    if options.save:
        saved = {"machine": caption, "medians": medians, "gradient_difference": differences}
        options.save.write_text(json.dumps(saved, indent=1) + "\n")


def print_table(
    caption: str, medians: dict[str, Figures], differences: Figures, lengths: list[tuple[int, int]]
) -> None:
    names = list(medians)
    ours = medians[names[-1]]
    print(f"\n{caption}\n\nprompt + reply: {', '.join(f'{p} + {r}' for p, r in lengths)}\n")
    print(f"| | {' | '.join(names)} |" + "".join(f" ours ÷ {name} |" for name in names[:-1]))
    print("|---" * (2 * len(names)) + "|")
    for key, label in ROWS.items():
        cells = [shown(medians[name][key]) for name in names]
        ratios = [f"{ours[key] / medians[name][key]:.2f}" for name in names[:-1]]
        print(f"| {label} | {' | '.join(cells)} | {' | '.join(ratios)} |")
    for name, value in differences.items():
        print(f"\nlargest relative difference of gradients, {names[-1]} and {name}: {value:.1e}")


def shown(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def machine(options: argparse.Namespace) -> str:
    import platform

    import torch
    import transformers

    if options.device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if "model name" in x), platform.processor())
        name += f", {options.threads} threads"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}, {versions}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
