"""Streams across weight swaps: do clients notice?

Clients stream conversations of several turns, first with nothing else running, then while the trainer steps
and versions are published; once, the learn process is killed. Measured are failed requests, truncated
streams, gaps between tokens, and the first-token time of a conversation's next turn, right after a swap and
otherwise. At the end, replies are rescored under the version they name.

    python bench/swap.py [--swaps 5] [--clients 2] [--save FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.testing import ServerProcess

ASK = ["Why is the sky blue?", "How do magnets work?", "What is a glacier?", "Tell me about whales."]
MORE = "Shorter! Just one short sentence, please."


@dataclass
class Log:
    phase: str = "idle"
    gaps: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, list[float]] = field(default_factory=dict)
    """First-token seconds of a conversation's later turns, with the ``same`` version or a ``swapped`` one."""
    failed: list[str] = field(default_factory=list)
    truncated: int = 0
    replies: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client(threading.Thread):
    """Holds conversations of four turns with a long shared prompt, until stopped."""

    def __init__(self, server: ServerProcess, log: Log, number: int, options: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self.headers = {"authorization": f"Bearer {server.key}"}
        self.url, self.log, self.number, self.stopped = server.url, log, number, False
        self.think_s = options.think_s
        self.system = f"You are agent {number}. " + "Be careful with files and polite to people. " * (
            options.system_words // 8
        )

    def run(self) -> None:
        with httpx.Client(base_url=self.url, headers=self.headers, timeout=120) as http:
            round_ = 0
            while not self.stopped:
                round_ += 1
                self.converse(http, ASK[(self.number + round_) % len(ASK)])

    def converse(self, http: httpx.Client, question: str) -> None:
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": question}]
        version = None
        for turn in range(4):
            if self.stopped:
                return
            answer = self.stream(http, messages, version if turn else None)
            if answer is None:
                return
            text, version = answer
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": MORE}]
            time.sleep(self.think_s)

    def stream(
        self, http: httpx.Client, messages: list[dict[str, str]], before: str | None
    ) -> tuple[str, str] | None:
        body = {
            "model": "default",
            "messages": messages,
            "stream": True,
            "max_tokens": 48,
            "temperature": 0.7,
        }
        log, phase, started = self.log, self.log.phase, time.monotonic()
        text, finished, last, gaps, first = "", False, None, [], None
        try:
            with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                version = answer.headers.get("x-policy-version", "")
                if answer.status_code != 200:
                    raise RuntimeError(f"status {answer.status_code}: {answer.read()[:200]!r}")
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        now = time.monotonic()
                        chunk = json.loads(line[6:])
                        if "error" in chunk:
                            raise RuntimeError(str(chunk["error"]))
                        piece = chunk["choices"][0]
                        if piece["delta"].get("content"):
                            text += piece["delta"]["content"]
                            if last is None:
                                first = now - started
                            else:
                                gaps.append(now - last)
                            last = now
                        finished = finished or piece["finish_reason"] is not None
        except Exception as error:
            with log.lock:
                log.failed.append(f"{type(error).__name__}: {error}")
            return None
        with log.lock:
            log.replies += 1
            log.truncated += not finished
            if phase == log.phase:
                log.gaps.setdefault(phase, []).extend(gaps)
                if before is not None and first is not None:
                    log.first.setdefault("same" if version == before else "swapped", []).append(first)
        return text, version


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--swaps", type=int, default=5)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--idle-s", type=float, default=40)
    parser.add_argument("--system-words", type=int, default=400, help="length of the prompt all turns share")
    parser.add_argument("--think-s", type=float, default=1.0, help="pause before each further message")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder) / "home")
    print(json.dumps(result, indent=2))
    if options.save:
        options.save.write_text(json.dumps(result, indent=2) + "\n")


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    log = Log()
    with ServerProcess(home, "--batch-size", "4", "--no-learn") as server:
        # First without a learn process: the baseline for gaps when nothing else runs.
        run_clients(server, log, options, lambda: time.sleep(options.idle_s))
        server.stop()
    log.phase = "learning"
    with ServerProcess(home, "--batch-size", "4", "--min-signal", "0") as server:
        http = httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {server.key}"}, timeout=60
        )

        def until_swapped() -> None:
            killed = False
            deadline = time.monotonic() + 1500
            while (version := http.get("/v1/status").json()["policy_version"]) < options.swaps:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"only {version} swaps within 25 minutes\n{server.log()[-2000:]}")
                if version >= options.swaps // 2 and not killed:
                    killed = kill_learning(server.pid)
                time.sleep(0.5)

        run_clients(server, log, options, until_swapped)
        status = http.get("/v1/status").json()
        server.stop()
    return report(log, home, status)


def run_clients(server: ServerProcess, log: Log, options: argparse.Namespace, body: Any) -> None:
    clients = [Client(server, log, number, options) for number in range(options.clients)]
    for client in clients:
        client.start()
    try:
        body()
    finally:
        for client in clients:
            client.stopped = True
        for client in clients:
            client.join(120)


def kill_learning(parent: int) -> bool:
    """kill -9 the server's child processes."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True
    ).stdout.split()
    for pid in found:
        os.kill(int(pid), signal.SIGKILL)
    return bool(found)


def report(log: Log, home: Path, status: dict[str, Any]) -> dict[str, Any]:
    quantile = lambda values, q: statistics.quantiles(values, n=100)[q - 1]  # noqa: E731
    idle, busy = log.gaps["idle"], log.gaps["learning"]
    same, swapped = log.first.get("same", []), log.first.get("swapped", [])
    scored = rescore(home)
    return {
        "replies": log.replies,
        "failed": log.failed,
        "truncated": log.truncated,
        "versions_served": status["policy_version"],
        "learn_restarts": status["learn"]["num_restarts"],
        "gap_p50_idle_ms": 1000 * statistics.median(idle),
        "gap_p95_idle_ms": 1000 * quantile(idle, 95),
        "gap_p95_learning_ms": 1000 * quantile(busy, 95),
        "gap_p95_ratio": quantile(busy, 95) / quantile(idle, 95),
        "gap_max_learning_ms": 1000 * max(busy),
        "first_token_same_s": statistics.median(same),
        "first_token_swapped_s": statistics.median(swapped) if swapped else None,
        "first_token_ratio": statistics.median(swapped) / statistics.median(same) if swapped else None,
        "num_swapped_turns": len(swapped),
        **scored,
    }


def rescore(home: Path) -> dict[str, Any]:
    """Score a sample of stored replies under the version they name, with plain transformers and PEFT."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model

    base = AutoModelForCausalLM.from_pretrained(
        resolve_model(DEFAULT_MODEL, default_cache_dir()), dtype=torch.float32
    )
    ledger = ServeLedger(sqlite_url(home / "serve.db"))
    turns = [turn for group, _ in ledger.iter_sessions() for turn in group if turn.tokens]
    versions = sorted({turn.policy_version for turn in turns})
    model: Any = base
    for version in [v for v in versions if v]:
        folder = home / "policies" / str(version)
        if model is base:
            model = PeftModel.from_pretrained(base, folder, adapter_name=str(version))
        else:
            model.load_adapter(folder, adapter_name=str(version))
    differences, wrong = [], 0
    for turn in turns[:: max(1, len(turns) // 120)]:
        ids = [token.id for token in turn.tokens]
        wrong += any(token.policy_version != turn.policy_version for token in turn.tokens)
        with torch.inference_mode():
            inputs = torch.tensor([turn.prompt_ids + ids])
            if turn.policy_version == 0 and model is not base:
                with model.disable_adapter():
                    logits = model(inputs).logits[0]
            else:
                if turn.policy_version:
                    model.set_adapter(str(turn.policy_version))
                logits = model(inputs).logits[0]
        rows = torch.log_softmax(logits[len(turn.prompt_ids) - 1 : -1].float(), -1)
        exact = rows.gather(1, torch.tensor(ids).unsqueeze(1))[:, 0]
        differences.append(float((exact - torch.tensor([t.logprob for t in turn.tokens])).abs().mean()))
    return {
        "versions_seen": versions,
        "rescored": len(differences),
        "mixed_versions": wrong,
        "logprob_difference_mean": statistics.mean(differences),
        "logprob_difference_worst_reply": max(differences),
    }


if __name__ == "__main__":
    main()
