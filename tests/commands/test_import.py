"""``openclaw-rl import``: folders of transcripts, and adapters that fit or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from openclaw_rl.algo.base import example
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands import cli
from openclaw_rl.commands.import_adapter import check_adapter
from openclaw_rl.config import load_config
from openclaw_rl.testing import tiny_model
from openclaw_rl.types import OFF_POLICY, Lesson, Verdict

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"},
        {"role": "user", "content": "Too long!"}]  # fmt: skip


WHOLE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello there"},
    {"role": "user", "content": "Too long!"},
    {"role": "assistant", "content": "Hi"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model)
    folder = tmp_path_factory.mktemp("adapter")
    settings = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(base, settings).save_pretrained(folder, save_embedding_layers=False)
    return folder


def flags(home: Path, model: Path) -> list[str]:
    return [
        "--home",
        str(home),
        "--model",
        str(model),
        "--renderer",
        "qwen3",
        "--device",
        "cpu",
        "--kernel",
        "float",
    ]


def test_a_folder_is_read_and_the_same_again_adds_nothing(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "old" / "deep"
    folder.mkdir(parents=True)
    (folder / "talk.jsonl").write_text(json.dumps({"messages": TALK}))
    (folder / "settings.json").write_text("{}")
    for _ in range(2):
        assert (
            cli.main(["import", str(tmp_path / "old"), "--user", "ann", *flags(tmp_path / "home", model)])
            == 0
        )
    said = capsys.readouterr().err
    assert "1 conversation of OpenAI's messages; 1 other file left alone" in said
    assert "1 reply imported\nWhile a server runs" in said
    assert "0 replies imported; 1 conversation was there already" in said
    ledger = ServeLedger(sqlite_url(tmp_path / "home" / "serve.db"))
    [row] = ledger.turns_after(0, 9)
    turn = ledger.load_turn(row["id"])
    ledger.close()
    assert turn is not None
    assert (turn.user, turn.reply["content"]) == ("ann", "Hello there")
    assert cli.main(["import", str(folder / "settings.json"), *flags(tmp_path / "home", model)]) == 2
    assert "no conversation of a known format" in capsys.readouterr().err


def test_an_adapter_waits_for_the_gate(
    tmp_path: Path, model: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["import", "adapter", str(adapter), *flags(tmp_path, model)]) == 0
    assert "version 1: the learn process checks it now" in capsys.readouterr().out
    assert cli.main(["policy", "show", "1", "--home", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["parent"], shown["num_samples"]) == ("candidate", 0, 0)
    settings = json.loads((tmp_path / "policies" / "1" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(model)


def changed(adapter: Path, folder: Path, **settings: object) -> Path:
    folder.mkdir()
    for file in adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    now = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**now, **settings}))
    return folder


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"r": 8}, "--lora-rank 8"),
        ({"lora_alpha": 7}, "--lora-alpha 7"),
        ({"use_dora": True}, "no plain LoRA adapter .use_dora."),
        ({"peft_type": "IA3"}, "no plain LoRA adapter .IA3."),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, model: Path, adapter: Path, settings: dict[str, object], problem: str
) -> None:
    config = load_config({"model": str(model), "home": tmp_path}, environment={})
    assert check_adapter(adapter, model, config)["r"] == 16
    with pytest.raises(ValueError, match=problem):
        check_adapter(changed(adapter, tmp_path / "other", **settings), model, config)


def test_an_adapter_of_another_model_or_other_layers_is_refused(
    tmp_path: Path, model: Path, adapter: Path
) -> None:
    config = load_config({"model": str(model), "home": tmp_path}, environment={})
    other = tmp_path / "model"
    other.mkdir()
    (other / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    with pytest.raises(ValueError, match="for another model"):
        check_adapter(adapter, other, config)
    fewer = load_config({"model": str(model), "home": tmp_path, "lora_targets": "attention"}, environment={})
    with pytest.raises(ValueError, match="--lora-targets "):
        check_adapter(adapter, model, fewer)
    with pytest.raises(ValueError, match="is missing"):
        check_adapter(tmp_path, model, config)


def test_they_are_scored_by_the_model_and_marked(tmp_path: Path, model: Path) -> None:
    from transformers import AutoModelForCausalLM

    file = tmp_path / "talks.json"
    file.write_text(json.dumps([{"messages": WHOLE, "score": 0.9, "user": "ann"}]))
    flags = ["--home", str(tmp_path), "--model", str(model), "--renderer", "qwen3", "--device", "cpu"]
    for _ in range(2):  # the same again adds nothing
        assert cli.main(["data", "import", str(file), *flags, "--kernel", "float"]) == 0
    ledger = ServeLedger(sqlite_url(tmp_path / "serve.db"))
    try:
        first, second = [ledger.load_turn(row["id"]) for row in ledger.turns_after(0, 9)]
        events = [(event.kind, event.messages, event.data) for event in ledger.events_after(0, 9)]
    finally:
        ledger.close()
    assert first is not None
    assert second is not None
    assert (first.user, first.reply, second.continues) == ("ann", WHOLE[2], first.id)
    assert [kind for kind, *_ in events] == ["next_state", "closed", "feedback"]
    assert events[0][1] == [WHOLE[3]]
    assert events[2][2] == {"score": 1}
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for turn in (first, second):
        assert turn.params == {OFF_POLICY: True}
        ids = [*turn.prompt_ids, *(token.id for token in turn.tokens)]
        with torch.inference_mode():
            rows = torch.log_softmax(
                reference(torch.tensor([ids])).logits[0, len(turn.prompt_ids) - 1 : -1], -1
            )
        exact = [float(row[token.id]) for row, token in zip(rows, turn.tokens, strict=True)]
        assert [token.logprob for token in turn.tokens] == pytest.approx(exact, abs=1e-3)
        lesson = Lesson(turn, Verdict(1, 1.0, "feedback"), lambda hint: None)
        ids_NK = torch.tensor([[token.id] for token in turn.tokens]).int().numpy()
        made = example(lesson, ids_NK, ids_NK.astype("float32"), ids_NK.astype("float32"))
        assert made.source.policy_version is None, "no version of ours said it"
