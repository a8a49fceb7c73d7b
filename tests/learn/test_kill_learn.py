"""kill -9 of the learn process at random moments: the same facts in the end as without."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from openclaw_rl.capture.learn_ledger import LearnLedger
from openclaw_rl.capture.policy_ledger import PolicyLedger
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.testing import ServerProcess, clean_environment, command, tiny_model, wait_until

NUM_TURNS, BATCH = 6, 2
SETTINGS = (
    "--renderer", "qwen3", "--kernel", "float", "--num-threads", "1", "--no-learn",
    "--algo", "hybrid", "--batch-size", str(BATCH),
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def captured(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with conversations that nothing was learned from yet."""
    home = tmp_path_factory.mktemp("captured") / "home"
    with ServerProcess(home, "--model", str(tiny), *SETTINGS) as server:
        headers = {"authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            for number in range(NUM_TURNS):
                talk(client, number)
        server.stop()
    return home


def talk(client: httpx.Client, number: int) -> None:
    messages = [{"role": "user", "content": f"question {number}"}]
    body = {"model": "default", "max_tokens": 12, "seed": number, "messages": messages}
    reply = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    messages += [reply, {"role": "user", "content": "bad, say less"}]
    client.post("/v1/chat/completions", json=body).raise_for_status()


@contextmanager
def learning(home: Path, tiny: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``openclaw-rl learn`` beside a server, in a session of its own."""
    environment = clean_environment(home, {"OPENCLAW_RL_MODEL": str(tiny), "OPENCLAW_RL_TRAIN_THREADS": "1"})
    arguments = [
        command(), "learn", *SETTINGS, "--judge", "openclaw_rl.testing:WordJudge", "--held-out-share", "0",
        # One after the other, or a kill between four of them would change which samples share a step.
        "--lora-rank", "2", "--judge-concurrency", "1",
    ]  # fmt: skip
    with (home.parent / "learn.log").open("ab") as log:
        process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def learn_to_the_end(home: Path, tiny: Path, moments: random.Random, num_kills: int) -> int:
    """Returns how many kills found it at work."""
    killed = 0
    with ServerProcess(home, "--model", str(tiny), *SETTINGS) as server:
        deadline = time.monotonic() + 600  # a start takes seconds, many where other things run
        while time.monotonic() < deadline:
            with learning(home, tiny) as process:
                if killed < num_kills:
                    time.sleep(moments.uniform(2.0, 9.0))
                    assert process.poll() is None, (home.parent / "learn.log").read_text()
                    if is_done(home):
                        return killed
                    os.kill(process.pid, signal.SIGKILL)
                    killed += 1
                    continue
                wait_until(lambda: is_done(home), "everything was learned from", 300)
                wait_until(lambda: serves_what_the_ledger_says(server, home), "the server follows")
                return killed
    raise AssertionError((home.parent / "learn.log").read_text())


def is_done(home: Path) -> bool:
    with open_policy_ledger(home) as policy_ledger:
        counts = policy_ledger.counts()
        finished = sum(n for name, n in counts.items() if name.startswith(("trained", "excluded")))
        return finished == NUM_TURNS and policy_ledger.unfinished() is None


def serves_what_the_ledger_says(server: ServerProcess, home: Path) -> bool:
    headers = {"authorization": f"Bearer {server.key}"}
    status = httpx.get(f"{server.url}/v1/status", headers=headers).json()
    with open_policy_ledger(home) as policy_ledger:
        return bool(status["policy_version"] == policy_ledger.serving())


@contextmanager
def open_policy_ledger(home: Path) -> Iterator[PolicyLedger]:
    serve_ledger, learn_ledger = (
        ServeLedger(sqlite_url(home / "serve.db")),
        LearnLedger(sqlite_url(home / "learn.db")),
    )
    try:
        yield PolicyLedger(serve_ledger, learn_ledger)
    finally:
        learn_ledger.close()
        serve_ledger.close()


def facts(home: Path) -> dict[str, object]:
    """Every turn's verdicts and step, and every version."""
    with open_policy_ledger(home) as policy_ledger:
        turns = sorted(turn["id"] for turn in policy_ledger._serve_ledger.turns_after(0, 1000))
        with policy_ledger.db.connect() as connection:
            rows = connection.exec_driver_sql("SELECT turn_id, score, votes, hints FROM verdicts").all()
        return {
            "verdicts": sorted(map(tuple, rows)),
            "samples": {turn: policy_ledger.of_turn(turn) for turn in turns},
            "versions": [
                (p.version, p.parent, p.status, p.num_samples, p.gate["passed"])
                for p in policy_ledger.list_policies()
            ],
        }


def weights(home: Path, version: int) -> dict[str, np.ndarray]:
    return load_file(home / "policies" / str(version) / "adapter_model.safetensors")


def copy(captured: Path, home: Path) -> None:
    shutil.copytree(captured, home, ignore=shutil.ignore_patterns("*.sock"))


def check(captured: Path, tiny: Path, folder: Path, seed: int, num_kills: int) -> None:
    through = folder / "through" / "home"
    copy(captured, through)
    learn_to_the_end(through, tiny, random.Random(0), 0)
    expected = facts(through)
    assert len(expected["versions"]) == NUM_TURNS // BATCH  # type: ignore[arg-type]
    moments, killed, attempt = random.Random(seed), 0, 0
    while killed < num_kills:
        attempt += 1
        home = folder / str(attempt) / "home"
        copy(captured, home)
        killed += learn_to_the_end(home, tiny, moments, num_kills - killed)
        found = facts(home)
        assert json.dumps(found) == json.dumps(expected)
        for version in range(1, NUM_TURNS // BATCH + 1):
            for name, value in weights(through, version).items():
                np.testing.assert_allclose(weights(home, version)[name], value, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_kill(captured: Path, tiny: Path, tmp_path: Path) -> None:
    check(captured, tiny, tmp_path, seed=1, num_kills=1)


@pytest.mark.chaos
def test_fifty_kills(captured: Path, tiny: Path, tmp_path: Path) -> None:
    check(captured, tiny, tmp_path, seed=2, num_kills=50)
