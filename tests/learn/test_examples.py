"""The worked examples of everything that can be plugged in, all at once, on a real server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from openclaw_rl.testing import ServerProcess, tiny_model, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_examples_make_a_system(tmp_path: Path) -> None:
    arguments = (
        "--model", str(tiny_model(tmp_path / "model")), "--renderer", "qwen3", "--kernel", "float",
        "--algo", "my_algo:PraiseOnly", "--loss", "my_loss:reinforce", "--judge", "my_judge:ShortIsGood",
        "--engine", "my_engine:TransformersEngine", "--trainer", "my_trainer:SgdTrainer",
        "--generate", "my_generate:best_of_two", "--rollout", "my_rollout:curious_user",
        "--batch-size", "2", "--held-out-share", "0", "--min-signal", "0",
    )  # fmt: skip
    server = ServerProcess(tmp_path / "home", *arguments, environment={"PYTHONPATH": str(EXAMPLES)})
    with server, httpx.Client(base_url=server.url, timeout=30) as client:
        client.headers["authorization"] = f"Bearer {server.key}"

        def trained() -> bool:
            return bool(client.get("/v1/status").json()["funnel"]["by_state"]["trained"])

        wait_until(trained, f"the example learned something\n{server.log()}", 300)
        session = client.get("/v1/sessions").json()["data"][-1]
        first = client.get(f"/v1/sessions/{session['id']}").json()["turns"][0]
        assert first["verdict"]["reason"].endswith("words")
        assert first["verdict"]["score"] == 1


@pytest.mark.parametrize(
    "flag", ["--engine", "--trainer", "--algo", "--loss", "--judge", "--generate", "--rollout"]
)
def test_a_plug_in_that_is_not_there_is_named(flag: str, tmp_path: Path) -> None:
    from openclaw_rl.plugins import load_object

    with pytest.raises(ValueError, match="no_such_module"):
        load_object(flag.strip("-"), "no_such_module:Thing")
