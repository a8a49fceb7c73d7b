"""Serving speed compared on the same cores: transformers, llama.cpp and our engine.

    python bench/serve.py [--runs 3] [--threads 2] [--gguf MODEL.gguf] [--kernel native@avx2 ...]

``--kernel`` adds our engine with that kernel, to show its speed on processors without a better one.

Each contender runs alone in its own process, in rotation, and every figure is the median over the runs.
llama.cpp takes part if ``--gguf`` names the default model's file; it needs ``xllamacpp``. Prints a Markdown
table; the ratios matter more than the absolute figures, which depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

NEW_TOKENS = 128
PROMPT_TOKENS = 2000
STORY = "The ferry left the harbour at six, and nobody on board had slept. "
ROWS = {
    "decode_1": "decode, 1 stream (tok/s)",
    "decode_8": "decode, 8 streams (tok/s)",
    "first_cold_s": f"first token, cold {PROMPT_TOKENS}-token prompt (s)",
    "first_next_s": "first token, next turn of that conversation (s)",
    "next_over_cold": "  … as a share of the cold one",
    "memory_mb": "peak memory (MB)",
}
Figures = dict[str, float]


def prompts(tokenizer: Any) -> tuple[list[int], list[list[int]], list[int], list[int]]:
    """A short prompt, eight different ones, a long one, and the text that the next turn adds to it."""
    short = tokenizer(STORY).input_ids
    eight = [tokenizer(f"Story {i}. {STORY}").input_ids for i in range(8)]
    long = (tokenizer(STORY).input_ids * (PROMPT_TOKENS // 8))[:PROMPT_TOKENS]
    return short, eight, long, tokenizer(" What happened then? Tell me more about the captain.").input_ids


def peak_memory_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


# --- contenders ------------------------------------------------------------------------------


def run_transformers(model: Path) -> Figures:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    short, eight, long, tail = prompts(tokenizer)

    def generate(batch: list[list[int]], count: int) -> float:
        width = max(map(len, batch))
        ids = torch.tensor([[2] * (width - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
        start = time.perf_counter()
        network.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=2,
        )
        return time.perf_counter() - start

    generate([short], 8)
    one = (generate([short], NEW_TOKENS) - generate([short], 1)) / (NEW_TOKENS - 1)
    many = (generate(eight, NEW_TOKENS) - generate(eight, 1)) / (NEW_TOKENS - 1)
    cold = generate([long], 1)
    following = generate([long + [5] * 16 + tail], 1)
    return figures(1 / one, 8 / many, cold, following)


def run_llama(model: Path, gguf: str, threads: int) -> Figures:
    import xllamacpp
    from transformers import AutoTokenizer

    short, eight, long, tail = prompts(AutoTokenizer.from_pretrained(model))
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = gguf, 8 * 4096, 8
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def complete(ids: list[int], count: int) -> tuple[float, dict[str, Any]]:
        request = {
            "prompt": ids,
            "n_predict": count,
            "temperature": 1.0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        start = time.perf_counter()
        answer = server.handle_completions({**request, "return_tokens": True})
        elapsed = time.perf_counter() - start
        return elapsed, json.loads(answer) if isinstance(answer, str | bytes) else answer

    complete(short, 8)
    one = complete(short, NEW_TOKENS)[1]["timings"]["predicted_per_second"]
    start = time.perf_counter()
    threads_ = [threading.Thread(target=complete, args=(ids, NEW_TOKENS)) for ids in eight]
    for thread in threads_:
        thread.start()
    for thread in threads_:
        thread.join()
    many = 8 * NEW_TOKENS / (time.perf_counter() - start)
    cold = complete(long, 1)[0]
    reply = complete(long, 16)[1].get("tokens") or []
    following = complete([*long, *reply, *tail], 1)[0]
    return figures(one, many, cold, following)


def run_ours(model: Path, threads: int, kernel: str) -> Figures:
    return asyncio.run(_ours(model, threads, kernel))


async def _ours(model: Path, threads: int, kernel: str) -> Figures:
    from transformers import AutoTokenizer

    from openclaw_rl.engine.local import LocalEngine
    from openclaw_rl.engine.local_options import LocalEngineOptions
    from openclaw_rl.types import GenerateRequest, SamplingParams

    short, eight, long, tail = prompts(AutoTokenizer.from_pretrained(model))
    engine = LocalEngine(model, LocalEngineOptions(num_threads=threads, kernel=kernel))

    async def generate(ids: list[int], count: int) -> tuple[list[float], list[int]]:
        start, times, tokens = time.perf_counter(), [], []
        async for token in engine.generate(GenerateRequest(ids, SamplingParams(count))):
            times.append(time.perf_counter() - start)
            tokens.append(token.id)
        return times, tokens

    await generate(short, 8)
    times, _ = await generate(short, NEW_TOKENS)
    one = (len(times) - 1) / (times[-1] - times[0])
    start = time.perf_counter()
    results = await asyncio.gather(*(generate(ids, NEW_TOKENS) for ids in eight))
    first = max(times[0] for times, _ in results)
    many = 8 * (NEW_TOKENS - 1) / (time.perf_counter() - start - first)
    cold_times, reply = await generate(long, 16)
    following, _ = await generate([*long, *reply, *tail], 1)
    kernel = engine.kernel
    await engine.close()
    return {**figures(one, many, cold_times[0], following[0]), "kernel": kernel}  # type: ignore[dict-item]


def figures(one: float, many: float, cold_s: float, next_s: float) -> Figures:
    return {
        "decode_1": one,
        "decode_8": many,
        "first_cold_s": cold_s,
        "first_next_s": next_s,
        "next_over_cold": next_s / cold_s,
        "memory_mb": peak_memory_mb(),
    }


# --- the gateway -----------------------------------------------------------------------------


def run_gateway(threads: int) -> Figures:
    """Decode rate over HTTP, streaming."""
    import httpx

    from openclaw_rl.testing import ServerProcess

    with tempfile.TemporaryDirectory() as home:
        server = ServerProcess(Path(home), "--num-threads", str(threads), "--no-learn")
        server.start()
        try:
            client = httpx.Client(
                base_url=server.url, headers={"authorization": f"Bearer {server.key}"}, timeout=300
            )
            stream_once(client, 8)
            rates = [stream_once(client, NEW_TOKENS) for _ in range(3)]
            return {"http_1": statistics.median(rates)}
        finally:
            server.stop()


def stream_once(client: Any, count: int) -> float:
    """Tokens per second between the first and the last chunk of one streamed reply."""
    body = {
        "model": "default", "stream": True, "max_tokens": count, "temperature": 1.0, "seed": 3,
        "messages": [{"role": "user", "content": f"Write a long story. {STORY}"}],
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    times, tokens = [], 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                tokens = (chunk["usage"] or {}).get("completion_tokens", tokens)
                if chunk["choices"] and chunk["choices"][0]["finish_reason"] is None:
                    times.append(time.perf_counter())
    return (tokens - 1) / (times[-1] - times[0])


# --- the table -------------------------------------------------------------------------------


def run_in_child(name: str, options: argparse.Namespace) -> Figures:
    command = [sys.executable, __file__, "--contender", name, "--threads", str(options.threads)]
    if options.gguf:
        command += ["--gguf", options.gguf]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    result: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def contender(options: argparse.Namespace) -> Figures:
    import torch

    from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model

    if options.contender == "transformers":
        torch.set_num_threads(options.threads)
    model = resolve_model(DEFAULT_MODEL, default_cache_dir())
    if options.contender == "transformers":
        return run_transformers(model)
    if options.contender == "llama.cpp":
        return run_llama(model, options.gguf, options.threads)
    if options.contender == "gateway":
        return run_gateway(options.threads)
    return run_ours(model, options.threads, options.contender.removeprefix("ours").strip() or "auto")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gguf", help="the default model as GGUF, for llama.cpp")
    parser.add_argument("--kernel", action="append", default=[], help="run ours with this kernel too")
    parser.add_argument("--save", type=Path, help="also write the medians as JSON, for bench/plot.py")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(contender(options)))
        return
    names = ["transformers", *(["llama.cpp"] if options.gguf else [])]
    names += ["ours", *(f"ours {kernel}" for kernel in options.kernel), "gateway"]
    results: dict[str, list[Figures]] = {name: [] for name in names}
    for _ in tqdm(range(options.runs), desc="runs"):
        for name in tqdm(names, desc="contenders", leave=False):
            results[name].append(run_in_child(name, options))
    print_table(names, results, options)
    if options.save:
        medians = {
            name: {key: statistics.median(run[key] for run in runs) for key in ROWS}
            for name, runs in results.items()
            if name != "gateway"
        }
        caption = f"{machine()}, {options.threads} threads, median of {options.runs} runs"
        options.save.write_text(json.dumps({"machine": caption, "medians": medians}, indent=1) + "\n")


def print_table(names: list[str], results: dict[str, list[Figures]], options: argparse.Namespace) -> None:
    def median(name: str, key: str) -> float:
        return statistics.median(run[key] for run in results[name])

    shown = [name for name in names if name != "gateway"]
    print(f"\n{machine()}, {options.threads} threads, median of {options.runs} runs\n")
    pairs = [
        (mine, other)
        for mine in shown
        if mine.startswith("ours")
        for other in shown
        if not other.startswith("ours")
    ]
    print(f"| | {' | '.join([*shown, *(f'{mine} ÷ {other}' for mine, other in pairs)])} |")
    print("|---" * (len(shown) + len(pairs) + 1) + "|")
    for key, label in ROWS.items():
        values = {name: median(name, key) for name in shown}
        cells = [f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in values.values()]
        ratios = [f"{values[mine] / values[other]:.2f}" for mine, other in pairs]
        print(f"| {label} | {' | '.join(cells)} | {' | '.join(ratios)} |")
    over = 1 - median("gateway", "http_1") / median("ours", "decode_1")
    print(f"\nkernel {results['ours'][0]['kernel']}; over HTTP {median('gateway', 'http_1'):.1f} tok/s, "
          f"{100 * over:.1f} % below the bare engine")  # fmt: skip


def machine() -> str:
    import torch
    import transformers

    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{cpu}, {versions}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
