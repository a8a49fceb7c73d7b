"""Do all engines and trainers learn alike? The same scripted conversations, with the same seeds, on each.

A user wants a "v" in every reply, and says after each whether there was one. The network is tiny and random
but for one sentence; each round is 24 conversations and one step of ``binary``. Judge and gate are scripted,
everything else is the real thing.

    python -m bench.engines run local        also: vllm, skyrl, skyrl+vllm; adds to docs/results/engines.json
    .venv-engines/fireworks/bin/python -m bench.engines run fireworks
    python -m bench.engines plot             draws docs/img/engines.svg

Servers come from ``make test-vllm``, ``make test-tinker`` and ``make test-fireworks``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.env_curves import chart
from openclaw_rl.capture.judge_queue import LedgerJudgeQueue
from openclaw_rl.config import load_config
from openclaw_rl.engine.vllm_server import VllmServer, server_flags
from openclaw_rl.judge.worker import JudgeWorker
from openclaw_rl.loop import build_learner, wire_serving
from openclaw_rl.processes import parts
from openclaw_rl.processes.learning_system import ServedModel
from openclaw_rl.sinks import Fan
from openclaw_rl.testing import FiniteGate, WordJudge, tiny_model
from openclaw_rl.types import BASE_VERSION, GenerateRequest, SamplingParams
from tests.faulty import faulty_line
from tests.tinker.server_process import ENVIRONMENTS, SkyRL, free_url, running

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PICTURE = DOCS / "results" / "engines.json", DOCS / "img" / "engines.svg"
ROUNDS, CONVERSATIONS, WISHED = 10, 24, "v"
FLAGS = (
    "--enforce-eager --dtype float32 --max-model-len 512 "
    "--lora-target-modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
)
LEARNING = {
    "algo": "binary",
    "batch_size": CONVERSATIONS,
    "lora_rank": 4,
    "learning_rate": 0.005,
    "held_out_share": 0.0,
}
Settings = dict[str, Any]


# --- the engines ---------------------------------------------------------------------------------


@contextmanager
def local(model: Path) -> Iterator[Settings]:
    yield {"kernel": "float", "num_threads": 1, "train_threads": 1}


@contextmanager
def vllm(model: Path) -> Iterator[Settings]:
    with _vllm(model) as server:
        yield {"engine": "vllm", "engine_options": {"url": f"unix://{server.socket}"}}


@contextmanager
def skyrl(model: Path) -> Iterator[Settings]:
    with running(_skyrl(model)) as server:
        yield _remote("tinker", server.url, model, assume_temperature_1=True)


@contextmanager
def skyrl_and_vllm(model: Path) -> Iterator[Settings]:
    adapters = tempfile.mkdtemp()
    resolver = {"VLLM_PLUGINS": "lora_filesystem_resolver", "VLLM_LORA_RESOLVER_CACHE_DIR": adapters}
    with _vllm(model, **resolver) as sampler, faulty_line(sampler.socket) as line:
        more = ("--external-inference-url", line.url, "--external-inference-lora-base", adapters)
        with running(_skyrl(model, more=more)) as server:
            yield _remote("tinker", server.url, model)


@contextmanager
def fireworks(model: Path) -> Iterator[Settings]:
    from tests.fireworks.service import KEY, PREFIX

    os.environ["FIREWORKS_API_KEY"] = KEY
    script = Path(__file__).parents[1] / "tests" / "fireworks" / "service.py"
    python = ENVIRONMENTS / "skyrl-json" / "bin" / "python"
    with running(_skyrl(model, python=python, script=script)) as server:
        yield _remote("fireworks", f"{server.url}{PREFIX}", model)


def _remote(name: str, url: str, model: Path, **engine_only: Any) -> Settings:
    place = {"url": url, "base_model": str(model)}
    engine = {"engine": name, "engine_options": {**place, **engine_only}}
    return {**engine, "trainer": name, "trainer_options": place}


def _skyrl(model: Path, **more: Any) -> SkyRL:
    return SkyRL(model, Path(tempfile.mkdtemp()), free_url(), num_adapters=64, **more)


@contextmanager
def _vllm(model: Path, **environment: str) -> Iterator[VllmServer]:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **environment}
    server = VllmServer(model, server_flags(8, 8, 16, FLAGS), str(ENVIRONMENTS / "vllm" / "bin" / "python"))
    try:
        yield server
    finally:
        server.close()


ARMS: dict[str, Callable[[Path], Any]] = {
    "local": local, "vllm": vllm, "skyrl": skyrl, "skyrl+vllm": skyrl_and_vllm, "fireworks": fireworks,
}  # fmt: skip
LABELS = {
    "local": "local",
    "vllm": "vLLM, local trainer",
    "skyrl": "SkyRL",
    "skyrl+vllm": "SkyRL with vLLM",
    "fireworks": "Fireworks' client",
}


# --- the conversations ---------------------------------------------------------------------------


class System:
    """The whole system in this process; it learns when it is told to."""

    def __init__(self, model: Path, settings: Settings) -> None:
        shared = {"home": Path(tempfile.mkdtemp()), "model": str(model), "renderer": "qwen3", "device": "cpu"}
        self._config, self._model = load_config({**shared, **LEARNING, **settings}, environment={}), model
        self.engine = parts.build_engine(self._config, model)
        answerer = parts.build_answerer(self._config, self.engine, parts.build_renderer(self._config, model))
        self._serving = wire_serving(self._config, parts.open_ledgers(self._config), self.engine, answerer)
        self._ledgers = self._serving.ledgers
        self._learner = self._new_learner()
        key = self._serving.keys.key_of("default")
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._serving.app()),
            base_url="http://here",
            headers={"authorization": f"Bearer {key}"},
            timeout=600,
        )

    def _new_learner(self) -> Any:
        encode = parts.text_encoder(parts.load_tokenizer(self._model))
        renderer = self._serving.gateway.renderer
        assert renderer is not None
        served = ServedModel(self.engine, self._model, renderer, encode)
        return build_learner(self._config, served, self._ledgers.policies, Fan([]), FiniteGate())

    async def talk(self, seed: int) -> bool:
        """One conversation; whether the reply was as wished."""
        messages = [{"role": "user", "content": f"question {seed % 100}"}]
        body = {"model": "default", "max_tokens": 8, "temperature": 1.0, "seed": seed}
        reply = (await self._post({**body, "messages": messages}))["choices"][0]["message"]
        is_good = WISHED in (reply["content"] or "")
        said = "good, thanks" if is_good else f"bad, I want a {WISHED} in it"
        await self._post({**body, "messages": [*messages, reply, {"role": "user", "content": said}]})
        return is_good

    async def _post(self, body: Any) -> Any:
        answer = await self._http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        return answer.json()

    async def learn(self) -> None:
        await self._serving.gateway.drain()
        queue = LedgerJudgeQueue(self._ledgers.serve, self._ledgers.learn, idle_s=1e12)
        for worker in (JudgeWorker(queue, WordJudge()), self._learner):
            while await worker.step():
                pass

    def mismatches(self) -> list[float]:
        """Of each step: how far the trainer's log-probs are from those of the sampler, in nats."""
        found = [each.metrics.get("mismatch") for each in self._ledgers.policies.list_policies()]
        return [float(value) for value in found if value is not None]

    async def close(self) -> None:
        await self._http.aclose()
        await self._serving.close()


async def curve(model: Path, settings: Settings, seed: int) -> dict[str, Any]:
    system = await asyncio.to_thread(System, model, settings)
    shares, began = [], time.monotonic()
    for number in range(ROUNDS):
        first = 10_000 * seed + CONVERSATIONS * number
        good = await asyncio.gather(*(system.talk(first + each) for each in range(CONVERSATIONS)))
        shares.append(sum(good) / len(good))
        await system.learn()
        print(f"  round {number}: {shares[-1]:.0%}", flush=True)
    exact = await largest_error(system, model)
    mismatch = max(system.mismatches(), default=float("nan"))
    await system.close()
    seconds = round(time.monotonic() - began)
    return {"shares": shares, "largest_error": exact, "largest_mismatch": mismatch, "seconds": seconds}


async def largest_error(system: System, model: Path) -> float:
    """Of the raw log-probs of the base's sampled tokens, against transformers in fp32, in nats."""
    import torch
    from transformers import AutoModelForCausalLM

    network, worst = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), 0.0
    prompt = list(range(40, 80))
    for seed in range(8):
        request = GenerateRequest(prompt, SamplingParams(16, seed=seed), policy_version=BASE_VERSION)
        tokens = [token async for token in system.engine.generate(request)]
        ids = torch.tensor([[*prompt, *(token.id for token in tokens)]])
        with torch.inference_mode():
            rows = torch.log_softmax(network(ids).logits[0, len(prompt) - 1 : -1], -1)
        worst = max(worst, *(abs(t.logprob - float(r[t.id])) for t, r in zip(tokens, rows, strict=True)))
    return worst


# --- results ---------------------------------------------------------------------------------------


def measure(arm: str, seeds: int) -> None:
    model = Path(tempfile.mkdtemp())
    tiny_model(model, head_dim=32)
    with ExitStack() as stack:
        settings = stack.enter_context(ARMS[arm](model))
        runs = []
        for seed in range(seeds):
            print(f"{arm}, seed {seed}", flush=True)
            runs.append(asyncio.run(curve(model, settings, seed)))
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"arms": {}}
    saved |= {"rounds": ROUNDS, "conversations": CONVERSATIONS}
    saved["machine"] = f"{os.cpu_count()} threads, Python {platform.python_version()}"
    saved["arms"] = {name: saved["arms"].get(name) for name in ARMS if name in saved["arms"]} | {arm: runs}
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


def plot() -> None:
    saved = json.loads(RESULTS.read_text())
    curves = [
        (LABELS[arm], [(float(number), share, share, share) for number, share in enumerate(run["shares"])])
        for arm in ARMS
        for run in saved["arms"].get(arm, ())
    ]
    PICTURE.write_text(chart(curves, across="steps"))
    for arm in ARMS:
        if runs := saved["arms"].get(arm):
            first, last = (statistics.mean(run["shares"][at] for run in runs) for at in (0, -1))
            error = max(run["largest_error"] for run in runs)
            apart = max(run["largest_mismatch"] for run in runs)
            print(f"{LABELS[arm]}: {first:.0%} → {last:.0%}, error {error:.1e}, mismatch {apart:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("arm", choices=ARMS)
    run.add_argument("--seeds", type=int, default=2)
    commands.add_parser("plot")
    options = parser.parse_args()
    if options.command == "plot":
        plot()
    else:
        measure(options.arm, options.seeds)


if __name__ == "__main__":
    main()
