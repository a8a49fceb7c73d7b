"""Environments of the verifiers library, with the library itself, in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs import EnvironmentParts, create_environment

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
PYTHON = ROOT / ".venv-envs/verifiers/bin/python"
GYM = {
    "id": "verifiers.envs.integrations.reasoninggym_env:ReasoningGymEnv",
    "args": {"gym": "leg_counting", "num_train_examples": 20, "num_eval_examples": 10},
}


def python(*arguments: str) -> Any:
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [PYTHON, *arguments], env=variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.strip().rpartition("\n")[2])


def episode(tasks: Path | str, *actions: Any) -> Any:
    return python(str(HERE / "episode.py"), "verifiers", str(tasks), json.dumps(actions))


@pytest.mark.env_adapters
def test_one_question_of_reasoning_gym(tmp_path: Path) -> None:
    file = tmp_path / "gym.json"
    file.write_text(json.dumps(GYM))
    made = "import json, reasoning_gym as r; e = r.create_dataset('leg_counting', size=30, seed=0)[0]"
    entry = python("-c", f"{made}; print(json.dumps([e['question'], e['answer']]))")
    right = episode(file, f"<answer>{entry[1]}</answer>")
    assert right["asked"][-1] == entry[0]
    assert (right["solved"], right["score"], right["done"], right["same"], right["steady"]) == (
        True, 1.0, True, True, True,
    )  # fmt: skip
    assert right["splits"] == {"train": 20, "validation": 5, "test": 5}
    wrong = episode(file, "<answer>-1</answer>")
    assert (wrong["solved"], wrong["done"]) == (False, True)
    assert wrong["score"] < 0


@pytest.mark.env_adapters
def test_several_steps_on_a_frozen_lake() -> None:
    """By its name, as ``load_environment`` finds it; what it answers is the next observation."""
    moves = ["down", "down", "right", "right", "down", "right"]
    found = episode("frozen-lake", *moves, "thanks")  # it ends with the reply after the last move
    assert "You are in field 0" in found["asked"][-1]
    assert [said[0].split(" of")[0] for said in found["said"][:6]] == [
        f"You are in field {n}" for n in (4, 8, 9, 10, 14, 15)
    ]
    assert (found["done"], found["solved"], found["facts"]["steps"]) == (True, True, 7)
    drowned = episode("frozen-lake", "right", "down", "oh")
    assert (drowned["done"], drowned["solved"]) == (True, False)
    unfinished = episode("frozen-lake", "down")
    assert (unfinished["done"], unfinished["solved"], unfinished["facts"]["over"]) == (False, False, False)


def test_without_the_library_it_is_said_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pip install 'verifiers"):
        create_environment("verifiers", EnvironmentParts("wordle"))
    with pytest.raises(ValueError, match="which environment of verifiers"):
        create_environment("verifiers")
    file = tmp_path / "x.json"
    file.write_text("[]")
    with pytest.raises(ValueError, match=r'is not \{"id"'):
        create_environment("verifiers", EnvironmentParts(str(file)))
