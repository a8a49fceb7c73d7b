"""``learn`` on another host: nothing in common with the server but PostgreSQL and the policies' folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from openclaw_rl.testing import ServerProcess, clean_environment, command, tiny_model, wait_until

pytestmark = pytest.mark.postgres


def test_another_host_learns_and_this_one_serves_it(postgres, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    url = postgres.new_database()
    shared = [
        "--model", str(tiny_model(tmp_path / "model")), "--renderer", "qwen3", "--kernel", "float",
        "--num-threads", "1", "--ledger-url", url, "--policies", str(tmp_path / "shared" / "policies"),
        "--algo", "hybrid", "--batch-size", "2",
    ]  # fmt: skip
    other = tmp_path / "other-host"
    other.mkdir()
    with ServerProcess(tmp_path / "this-host", *shared, "--no-learn") as server:
        headers = {"authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as http:
            for number in range(2):
                said = [{"role": "user", "content": f"question {number}"}]
                body = {"model": "default", "max_tokens": 12, "seed": number, "messages": said}
                reply = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
                said += [reply, {"role": "user", "content": "bad, say less"}]
                http.post("/v1/chat/completions", json=body).raise_for_status()
            assert http.get("/v1/status").json()["policy_version"] == 0
            arguments = [
                command(), "learn", *shared, "--own-engine", "--judge", "openclaw_rl.testing:WordJudge",
                "--held-out-share", "0", "--lora-rank", "2",
            ]  # fmt: skip
            with (tmp_path / "learn.log").open("wb") as log:
                learn = subprocess.Popen(arguments, env=clean_environment(other), stdout=log, stderr=log)
            try:
                wait_until(
                    lambda: http.get("/v1/status").json()["policy_version"] == 1 or learn.poll() is not None,
                    "the server follows what the other host learned",
                    180,
                )
                assert learn.poll() is None, (tmp_path / "learn.log").read_text()
            finally:
                learn.terminate()
                learn.wait(60)
            answer = http.post("/v1/chat/completions", json={**body, "messages": said[:1]})
            assert answer.headers["x-policy-version"] == "1"
            assert http.get("/v1/status").json()["funnel"]["by_state"]["trained"] == 2
    assert not (tmp_path / "this-host" / "policies").exists()
    assert not (other / "policies").exists()
