"""Serving, judging and training on one GPU at once, within a limit of memory: how much is used, who waits.

    python bench/gpu_together.py [--gib 32] [--layers 36] [--seconds 40]

A random network of Qwen3-4B's shape. One stream with an adapter never ends, a judge scores texts of 600
tokens, and another process trains an adapter over the engine's own weights (CUDA IPC) on the list of
``gpu_train.py``, by the rules of the learn process: in what the engine leaves of the limit, and users first,
for at most a second before each row. The gaps between the stream's tokens are compared with those before
training. Prints JSON lines as it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu import DEVICE, make_adapter
from gpu_train import RAGGED, examples, make_config

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.sharing import offer_from_json, offer_to_json
from openclaw_rl.train.beside import Beside
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.types import Batch, GenerateRequest, SamplingParams, ScoreRequest, Weights

GIB = 2**30
STARTED = time.perf_counter()


def tell(**facts: Any) -> None:
    print(json.dumps({"at": round(time.perf_counter() - STARTED, 1), **facts}), flush=True)


def used_gib() -> float:
    """On the whole card, whoever uses it; the first call makes this process's own context."""
    if DEVICE == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def smi_mib() -> str:
    """All of the card's memory in use, contexts of processes included, as the driver counts it."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def quantiles(gaps: Sequence[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    at = {"median": 0.5, "p95": 0.95, "p99": 0.99, "largest": 1.0}
    found = (
        {name: 1e3 * ordered[min(len(gaps) - 1, int(s * len(gaps)))] for name, s in at.items()}
        if gaps
        else {}
    )
    return {"tokens": len(gaps), **{f"{name}_ms": round(value, 2) for name, value in found.items()}}


class Load:
    """One endless stream, one judge; what the card holds at most."""

    def __init__(self, engine: LocalEngine, vocab: int) -> None:
        self.engine, self.vocab = engine, vocab
        self.gaps: list[float] = []
        self.scored, self.errors, self.most_gib = 0, 0, 0.0
        self._tasks = [asyncio.create_task(each()) for each in (self._stream, self._judge, self._watch)]

    def _ids(self, length: int, seed: int) -> list[int]:
        return [10 + (seed * 7919 + n * 31) % (self.vocab - 20) for n in range(length)]

    async def _stream(self) -> None:
        number = 0
        while True:
            number += 1
            request = GenerateRequest(
                self._ids(200, number), SamplingParams(1000, seed=number), policy_version=1
            )
            last = 0.0
            async for _ in self.engine.generate(request):
                now = time.perf_counter()
                if last:
                    self.gaps.append(now - last)
                last = now

    async def _judge(self) -> None:
        number = 0
        while True:
            number += 1
            await self.engine.score(ScoreRequest(self._ids(600, -number), 590))
            self.scored += 1
            await asyncio.sleep(0.5)

    async def _watch(self) -> None:
        while True:
            self.most_gib = max(self.most_gib, used_gib())
            await asyncio.sleep(0.05)

    def take(self) -> dict[str, float]:
        gaps, self.gaps = self.gaps, []
        return quantiles(gaps)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.errors += sum(not isinstance(each, asyncio.CancelledError) for each in results)


async def serve(options: argparse.Namespace) -> None:
    from transformers import AutoModelForCausalLM

    config = make_config(options.layers, options.small)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        tell(smi_mib=smi_mib())
        before = used_gib()
        with torch.device(DEVICE):
            network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        network.save_pretrained(folder)
        adapter = make_adapter(network, folder / "adapter", 1)
        del network
        total = 1.0
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            total = torch.cuda.mem_get_info()[1] / GIB
        part = min(0.95, (options.gib + before - 0.2) / total)  # what others hold is theirs
        engine = LocalEngine(folder, LocalEngineOptions(device=DEVICE, gpu_memory=part))
        await engine.load(Weights.in_folder(1, adapter))
        tell(
            limit_gib=options.gib, held_before_gib=round(before, 2), engine_gib=round(used_gib() - before, 2)
        )
        load = Load(engine, config.vocab_size)
        await asyncio.sleep(3)
        load.take()
        await asyncio.sleep(options.idle)
        idle = load.take()
        tell(
            phase="stream and judge only",
            **idle,
            scored=load.scored,
            card_gib=round(load.most_gib - before, 2),
        )
        await train_beside(engine, load, folder, options, idle, before)
        await load.end()
        tell(errors=load.errors)
        await engine.close()


async def train_beside(
    engine: LocalEngine,
    load: Load,
    folder: Path,
    options: argparse.Namespace,
    idle: dict[str, float],
    held: float,
) -> None:
    offer = engine.on_gpu()
    live = folder / "live"
    live.write_bytes(b"\0")
    command = [sys.executable, __file__, "--child", str(folder), "--seconds", str(options.seconds)]
    command += ["--small"] * options.small
    child = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**24,
        env={**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"},  # as the learn process
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(None if offer is None else offer_to_json(offer)).encode())
    child.stdin.close()
    telling = asyncio.create_task(tell_live(engine, live))
    steps = 0
    load.most_gib = 0.0
    while line := await child.stdout.readline():
        said = json.loads(line)
        kind = said.pop("kind")
        gaps = load.take()
        if kind == "step":
            steps += 1
            ratio = round(gaps["p95_ms"] / idle["p95_ms"], 2) if "p95_ms" in gaps else None
            said["smi_mib"] = await asyncio.to_thread(smi_mib) if steps == 2 else None
            tell(phase="a step beside", **said, **gaps, p95_ratio=ratio, scored=load.scored,
                 card_gib=round(load.most_gib - held, 2))  # fmt: skip
        else:
            tell(phase=kind, **said, **gaps, card_gib=round(load.most_gib - held, 2))
    telling.cancel()
    tell(trainer_ended_with=await child.wait(), steps=steps, largest_card_gib=round(load.most_gib - held, 2))
    tell(smi_mib=smi_mib())


async def tell_live(engine: LocalEngine, file: Path) -> None:
    """What the learn process asks over the private socket."""
    with file.open("r+b", buffering=0) as opened:
        while True:
            opened.seek(0)
            opened.write(bytes([min(255, engine.num_live())]))
            await asyncio.sleep(0.005)


def train(options: argparse.Namespace) -> None:
    stated = sys.stdin.read()

    def say(kind: str, **facts: Any) -> None:
        print(json.dumps({"kind": kind, **facts}), flush=True)

    live = (options.child / "live").open("rb", buffering=0)

    def num_live() -> int:
        live.seek(0)
        return live.read(1)[0]

    offer = None if stated == "null" else (lambda: offer_from_json(json.loads(stated)))
    settings = LocalTrainerOptions(train_device=DEVICE, lora_rank=16)
    trainer = LocalTrainer(options.child, settings, beside=Beside(offer, num_live))
    own = torch.cuda.memory_allocated() / GIB if DEVICE == "cuda" else 0.0
    say("trainer is ready", own_gib=round(own, 2), row=trainer.options.micro_batch_tokens)
    items: list[Any] = examples([64, 32] if options.small else RAGGED, trainer._model.config.vocab_size)
    num = num_parameters(trainer._model.config)
    end, number = time.perf_counter() + options.seconds, 0
    while time.perf_counter() < end or number < 2:
        before = time.perf_counter()
        report = trainer.step(Batch(items), 0)
        took = time.perf_counter() - before
        busy = report.forward_s + report.backward_s
        number += 1
        own = torch.cuda.max_memory_allocated() / GIB if DEVICE == "cuda" else 0.0
        tflops = 4 * num * report.num_tokens / max(busy, 1e-9) / 1e12
        say("step", seconds=round(took, 2), busy_s=round(busy, 2), finite=report.finite,
            tflops=round(tflops, 1), own_peak_gib=round(own, 2))  # fmt: skip


def num_parameters(config: Any) -> int:
    """As in ``gpu_train.py``: what is multiplied, whatever form it is stored in."""
    heads = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim * 2
    layer = config.hidden_size * (heads + 3 * config.intermediate_size)
    return int(config.vocab_size * config.hidden_size + config.num_hidden_layers * layer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=32, help="memory of everything together")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--seconds", type=float, default=40, help="of training")
    parser.add_argument("--idle", type=float, default=8, help="seconds of serving before")
    parser.add_argument("--small", action="store_true", help="a small network, to try this script")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options)
    else:
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
