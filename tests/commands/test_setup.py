from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from openclaw_rl.commands.cli import main
from openclaw_rl.commands.estimate import Speeds, tokens_per_step
from openclaw_rl.commands.fit import Machine
from openclaw_rl.commands.setup import CHOICES, recommend, table
from openclaw_rl.config import load_config
from openclaw_rl.connect import CLIENTS
from openclaw_rl.connect.client import ServerAddress
from openclaw_rl.serve.auth import KeyRing
from openclaw_rl.types import Needs


def answer(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Somebody at the terminal who says this; the questions they were asked."""
    left, asked = iter(answers), list[str]()

    def say(question: str) -> str:
        asked.append(question)
        return next(left)

    monkeypatch.setattr("builtins.input", say)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    return asked


def test_what_is_recommended_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    assert main(["setup", "--home", str(home)]) == 2
    assert "setup --yes" in capsys.readouterr().err, "nobody is there to answer"
    assert main(["setup", "--yes", "--home", str(home)]) == 0
    assert "openclaw-rl start" in capsys.readouterr().out
    stated = tomllib.loads((home / "config.toml").read_text())["engine"]["model"]
    assert load_config({"home": home}, {}).engine.model == stated
    assert main(["setup", "--yes", "--home", str(home)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    assert main(["setup", "--yes", "--model", "Qwen/Qwen3-4B", "--home", str(tmp_path)]) == 0
    assert load_config({"home": tmp_path}, {}).engine.model == "Qwen/Qwen3-4B"


@pytest.mark.parametrize("model", ["C:\\models\\new", 'say "hi"', "a\x7fb\tc\n😀"])
def test_any_model_name_is_written_so_that_it_is_read_again(tmp_path: Path, model: str) -> None:
    assert main(["setup", "--yes", "--model", model, "--home", str(tmp_path)]) == 0
    assert load_config({"home": tmp_path}, {}).engine.model == model
    codex = (
        CLIENTS["codex"]
        .explain(ServerAddress("http://127.0.0.1:1", "sk", model, max_tokens=256))
        .partition("\n\n")[2]
    )
    assert tomllib.loads(codex.rpartition("\n\nThen")[0])["model"] == model


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
    answer(monkeypatch, "1", "none", "ask", "https://api.example.com/v1", allowed)
    assert main(["setup", "--home", str(tmp_path)]) == 0
    serve = load_config({"home": tmp_path}, {}).serve
    assert (serve.take_over, serve.upstream is not None) == (takes_over, takes_over)
    assert serve.notes == "ask"
    assert serve.upstream_terms == ("allow-learning" if takes_over else "unknown")


def test_notes_are_on_unless_somebody_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "1", "none", "", "none")
    assert main(["setup", "--home", str(tmp_path / "one")]) == 0
    assert "notes" not in (tmp_path / "one" / "config.toml").read_text()
    assert load_config({"home": tmp_path / "one"}, {}).serve.notes == "on"
    answer(monkeypatch, "1", "none", "always", "none")
    assert main(["setup", "--home", str(tmp_path / "two")]) == 2


def test_the_folder_and_the_client_are_asked_for_and_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    asked = answer(monkeypatch, "~/my data", "2", "codex", "", "none", "")
    assert main(["setup"]) == 0
    home = tmp_path / "my data"
    assert load_config({"home": home}, {}).engine.model == "Qwen/Qwen3-0.6B"
    assert ".openclaw-rl" in asked[0], "the usual folder is offered"
    said = capsys.readouterr().out
    assert f"openclaw-rl start --home '{home}'" in said, "it is not where a start without a flag looks"
    settings = tomllib.loads((tmp_path / "codex" / "openclaw-rl.config.toml").read_text())
    assert settings["model"] == "Qwen3-0.6B"
    key = KeyRing.in_home(home, create=False).key_of("default")
    assert key in settings["model_providers"]["openclaw-rl"]["http_headers"]["Authorization"]


@pytest.mark.parametrize(("client", "refusal"), [("codex", "no"), ("env", None)])
def test_nothing_of_a_client_is_changed_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    client: str, refusal: str | None,
) -> None:  # fmt: skip
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    home = tmp_path / "home"
    answer(monkeypatch, "1", client, "on", "none", *([refusal] if refusal else []))
    assert main(["setup", "--home", str(home)]) == 0
    said = capsys.readouterr().out
    assert not (tmp_path / "codex").exists()
    wanted = f"Later: openclaw-rl connect codex --write --home {home}" if refusal else "OPENAI_BASE_URL="
    assert wanted in said


def test_the_table_computes_speed_from_what_was_measured() -> None:
    speeds = Speeds(Machine("cpu", 16e9, 20e9), products=100e9, has_kernels=True)
    assert speeds.tokens_per_s(CHOICES[0].model, 1e9) == pytest.approx(20 / 0.625)
    assert speeds.tokens_per_s("other/model", 1e9) == pytest.approx(10), "16 bits a weight"
    assert speeds.step_s(1e9, 100) == pytest.approx(100 * 4e9 / 50e9)
    hinted = Needs(steps=8, step_examples=8, anchors=4)
    assert tokens_per_step(hinted) == 8 * tokens_per_step(Needs(batch_size=8, replay=4)) == 8 * 12 * 50
    lines = list(table(16, False, speeds, 1000))
    assert len(lines) == 1 + len(CHOICES) + 2
    assert lines[0].split() == ["model", "memory", "tokens/s", "a", "step"]
    assert "recommended" in lines[1]
    assert "does not fit" in lines[5]
    assert "≤ 237" in lines[1]
    assert "11 s" in lines[1]
    assert "computed, from what was measured now: 20 GB/s of memory, 100 GFLOP/s" in lines[-2]
