"""Hand-written conversations: read, scored with the model, marked, and learned from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from openclaw_rl.algo.base import example
from openclaw_rl.capture.serve_ledger import ServeLedger, sqlite_url
from openclaw_rl.commands import cli
from openclaw_rl.commands.trajectories import read_conversations
from openclaw_rl.testing import tiny_model
from openclaw_rl.types import OFF_POLICY, Lesson, Verdict

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello there"},
    {"role": "user", "content": "Too long!"},
    {"role": "assistant", "content": "Hi"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_they_are_scored_by_the_model_and_marked(tmp_path: Path, model: Path) -> None:
    from transformers import AutoModelForCausalLM

    file = tmp_path / "talks.json"
    file.write_text(json.dumps([{"messages": TALK, "score": 0.9, "user": "ann"}]))
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
    assert (first.user, first.reply, second.continues) == ("ann", TALK[2], first.id)
    assert [kind for kind, *_ in events] == ["next_state", "closed", "feedback"]
    assert events[0][1] == [TALK[3]]
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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "neither JSON nor JSON lines"),
        ('{"prompt": "x"}', "conversation 1 has no 'messages'"),
        ('[{"messages": [{"role": "bot", "content": "x"}]}]', "role is one of system, user"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no reply of an assistant"),
        ('{"messages": [{"role": "assistant", "content": "x"}], "score": 7}', "between -1 and 1"),
    ],
)
def test_what_is_no_conversation_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_conversations(text)


def test_lines_and_lists_are_read_alike() -> None:
    lines = "\n".join(json.dumps({"messages": TALK}) for _ in range(2))
    assert read_conversations(lines) == read_conversations(json.dumps([{"messages": TALK}] * 2))
