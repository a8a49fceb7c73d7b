from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from openclaw_rl.commands.cli import main
from openclaw_rl.commands.setup import CHOICES, recommend
from openclaw_rl.config import load_config


def test_what_is_recommended_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    assert main(["setup", "--home", str(home)]) == 2
    assert "setup --yes" in capsys.readouterr().err, "nobody is there to answer"
    assert main(["setup", "--yes", "--home", str(home)]) == 0
    assert "openclaw-rl start" in capsys.readouterr().out
    stated = tomllib.loads((home / "config.toml").read_text())["engine"]["model"]
    assert load_config({"home": home}, {}).engine.model == stated
    assert main(["setup", "--yes", "--home", str(home)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    assert main(["setup", "--yes", "--model", "Qwen/Qwen3-4B", "--home", str(tmp_path)]) == 0
    assert load_config({"home": tmp_path}, {}).engine.model == "Qwen/Qwen3-4B"


def test_a_cpu_gets_the_small_one_and_a_gpu_what_leaves_half_of_it_free() -> None:
    assert recommend(64, on_gpu=False) == CHOICES[0]
    assert recommend(1, on_gpu=True) == CHOICES[0]
    for room in (8, 24, 80):
        chosen = recommend(room, on_gpu=True)
        assert chosen.needs_gib(True) <= room / 2
        assert all(other.needs_gib(True) > room / 2 for other in CHOICES[CHOICES.index(chosen) + 1 :])


@pytest.mark.parametrize(("allowed", "takes_over"), [("yes", True), ("", False)])
def test_the_provider_s_terms_are_asked_before_anything_is_learned(
    allowed: str, takes_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["1", "none", "https://api.example.com/v1", allowed])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert main(["setup", "--home", str(tmp_path)]) == 0
    serve = load_config({"home": tmp_path}, {}).serve
    assert (serve.take_over, serve.upstream is not None) == (takes_over, takes_over)
    assert serve.upstream_terms == ("allow-learning" if takes_over else "unknown")
