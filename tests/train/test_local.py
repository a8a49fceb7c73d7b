"""The trainer against plain transformers and PEFT, one sample at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_rl.train.activations import saved_bytes
from openclaw_rl.train.local import LocalTrainer
from openclaw_rl.train.local_options import LocalTrainerOptions
from openclaw_rl.train.losses import Surrogate, TailKL
from openclaw_rl.train.packed import pack
from openclaw_rl.types import Batch, Example, Weights
from tests.train.conftest import make_item

OPTIONS = LocalTrainerOptions(
    train_device="cpu", lora_rank=4, lora_alpha=8, grad_clip=1e9, micro_batch_tokens=64
)


FULL = replace(OPTIONS, finetune="full", learning_rate=2e-5)


def plain_logprobs(model: torch.nn.Module, item: Example) -> torch.Tensor:
    """An independent forward pass: one sequence, all logits."""
    ids = item.prompt_ids + item.reply_ids
    logits = model(torch.tensor([ids])).logits[0].float()
    rows = torch.log_softmax(logits, dim=-1)[len(item.prompt_ids) - 1 : -1]
    return rows.gather(1, torch.from_numpy(item.ids_NK).long())


def gradients(trainer: LocalTrainer) -> list[torch.Tensor]:
    return [p.grad.clone() for p in trainer._parameters if p.grad is not None]


def plain_gradients(path: Path, items: list[Example]) -> list[torch.Tensor]:
    """Mean over a sample's tokens, then over samples, with PEFT itself and nothing packed."""
    reference = LocalTrainer(path, OPTIONS)
    model = reference._model
    model.base_model.model.set_attn_implementation("eager")
    total = torch.zeros(())
    for item in items:
        new = plain_logprobs(model, item)
        loss = Surrogate()(new, torch.from_numpy(item.old_NK), torch.from_numpy(item.signal_NK))
        total = total + loss.mean() / len(items)
    total.backward()
    return gradients(reference)


def test_packed_log_probs_are_those_of_each_sample_alone(tiny_model: Path, ragged: list[Example]) -> None:
    from transformers import AutoModelForCausalLM

    trainer = LocalTrainer(tiny_model, OPTIONS)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="eager")
    [row] = pack(ragged, 4096, trainer.device)
    got, start = trainer._logprobs(row), 0
    lengths = [len(item.prompt_ids) + len(item.reply_ids) - 1 for item in ragged]
    assert row.num_tokens == sum(lengths)
    for length in row.lengths:  # longest first
        item = ragged[lengths.index(length)]
        count, width = item.ids_NK.shape
        torch.testing.assert_close(
            got[start : start + count, :width], plain_logprobs(model, item), atol=2e-5, rtol=1e-5
        )
        start += count
    assert start == len(got)


def test_rows_are_filled_without_padding(ragged: list[Example]) -> None:
    rows = list(pack(ragged, 64, torch.device("cpu")))
    assert [row.lengths for row in rows] == [[50, 7], [38, 17], [30]]


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        replace(OPTIONS, checkpoint_tokens=1),
        replace(OPTIONS, checkpoint_tokens=40),
        replace(OPTIONS, micro_batch_tokens=4096),
    ],
)
def test_gradients_are_those_of_a_plain_loop(
    tiny_model: Path, ragged: list[Example], options: LocalTrainerOptions
) -> None:
    """Packed, in pieces, with or without keeping activations: the same numbers."""
    expected = plain_gradients(tiny_model, ragged)
    trainer = LocalTrainer(tiny_model, options)
    trainer.step(Batch(ragged), 0)
    for got, want in zip(gradients(trainer), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("checkpoint_tokens", [1, 4096])
def test_a_common_beginning_is_computed_once_with_the_same_gradients(
    tiny_model: Path, ragged: list[Example], checkpoint_tokens: int
) -> None:
    opening = list(range(20, 31))
    alike = [replace(item, prompt_ids=[*opening, *item.prompt_ids]) for item in ragged]
    expected = plain_gradients(tiny_model, alike)
    [row] = pack(alike, 4096, torch.device("cpu"), share=True)
    apart = sum(len(item.prompt_ids) + len(item.reply_ids) - 1 for item in alike)
    assert row.shared == len(opening)
    assert row.num_tokens == apart - (len(alike) - 1) * len(opening)
    options = replace(OPTIONS, micro_batch_tokens=4096, checkpoint_tokens=checkpoint_tokens)
    trainer = LocalTrainer(tiny_model, options)
    assert trainer.step(Batch(alike), 0).num_tokens == row.num_tokens
    for got, want in zip(gradients(trainer), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


def test_prompts_that_are_wholly_alike_keep_the_token_that_predicts_the_reply() -> None:
    items = [make_item(1, 10, 6), replace(make_item(2, 10, 4), prompt_ids=make_item(1, 10, 6).prompt_ids)]
    [row] = pack(items, 64, torch.device("cpu"), share=True)
    assert (row.shared, row.lengths) == (9, [15, 4])
    assert row.rows_N.tolist() == [9, 10, 11, 12, 13, 14, 15, 16, 17, 18]


def test_forced_tokens_do_not_thin_out_the_mean(tiny_model: Path) -> None:
    item = replace(make_item(1, 10, 6), num_free=3)
    [row] = pack([item], 64, torch.device("cpu"))
    assert row.weights_N.tolist() == pytest.approx([1 / 3] * 6)


def test_a_step_moves_log_probs_along_the_signal(tiny_model: Path) -> None:
    up, down = make_item(1, 12, 6), make_item(2, 12, 6)
    trainer = LocalTrainer(tiny_model, replace(OPTIONS, learning_rate=1e-2))
    [row] = pack([up, down], 64, trainer.device)
    before = trainer._logprobs(row).detach()
    signs = torch.cat([torch.full((6, 1), 1.0), torch.full((6, 1), -1.0)])
    items = [
        replace(i, signal_NK=np.full((6, 1), s, np.float32), old_NK=before[n * 6 : n * 6 + 6].numpy())
        for n, (i, s) in enumerate(((up, 1.0), (down, -1.0)))
    ]
    report = trainer.step(Batch(items), 0)
    after = trainer._logprobs(row).detach()
    assert ((after - before) * signs).mean() > 0.001
    assert report.mismatch == pytest.approx(0.0, abs=1e-5)
    assert report.ratio == pytest.approx(1.0, abs=1e-4)
    assert report.finite


@pytest.mark.parametrize("finetune", ["lora", "full"])
def test_a_killed_trainer_resumes_bit_by_bit(
    tiny_model: Path, ragged: list[Example], tmp_path: Path, finetune: str
) -> None:
    options = replace(OPTIONS, finetune=finetune, average_decay=0.5)
    through = LocalTrainer(tiny_model, options)
    for step in range(3):
        through.step(Batch(ragged), step)
        through.save(tmp_path / str(step), {"step": step})
    resumed = LocalTrainer(tiny_model, options)
    resumed.resume(Weights.in_folder(0, tmp_path / "0"))
    assert resumed.state == {"step": 0}
    for step in (1, 2):
        resumed.step(Batch(ragged), step)
    for a, b in zip(through._parameters, resumed._parameters, strict=True):
        assert torch.equal(a, b)
    through.resume(None)
    fresh = LocalTrainer(tiny_model, options)
    assert all(torch.equal(a, b) for a, b in zip(through._parameters, fresh._parameters, strict=True))


def test_a_batch_that_is_not_a_number_is_reported(tiny_model: Path, ragged: list[Example]) -> None:
    poisoned = [replace(i, signal_NK=i.signal_NK * np.nan) for i in ragged]
    assert not LocalTrainer(tiny_model, OPTIONS).step(Batch(poisoned), 0).finite


def test_scale_and_warm_up_set_the_learning_rate(tiny_model: Path, ragged: list[Example]) -> None:
    trainer = LocalTrainer(tiny_model, replace(OPTIONS, learning_rate=1e-3, warmup_steps=4))
    rates = [trainer.step(Batch(ragged, scale=0.5), 0).learning_rate for _ in range(5)]
    assert rates == pytest.approx([1.25e-4, 2.5e-4, 3.75e-4, 5e-4, 5e-4])


def test_the_base_pulls_back(tiny_model: Path, ragged: list[Example]) -> None:
    silent = [replace(i, signal_NK=i.signal_NK * 0) for i in ragged]
    trainer = LocalTrainer(tiny_model, replace(OPTIONS, kl_coefficient=1.0, learning_rate=1e-2))
    trainer.step(Batch(silent), 0)
    assert (
        max(float(g.abs().max()) for g in gradients(trainer)) < 1e-5
    )  # at the base there is nothing to pull
    trainer.step(Batch(ragged), 0)
    trainer.step(Batch(silent), 0)
    assert max(float(g.abs().max()) for g in gradients(trainer)) > 1e-5


def test_what_is_saved_loads_with_peft_and_names_no_folder(
    tiny_model: Path, ragged: list[Example], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = LocalTrainer(tiny_model, replace(OPTIONS, name="some/model"))
    trainer.step(Batch(ragged), 0)
    trainer.save(tmp_path / "1", {})
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, tmp_path / "1")
    [row] = pack(ragged[:1], 64, trainer.device)
    torch.testing.assert_close(
        plain_logprobs(loaded, ragged[0]), trainer._logprobs(row), atol=2e-5, rtol=1e-5
    )
    assert str(tiny_model) not in (tmp_path / "1" / "adapter_config.json").read_text()


def test_weights_that_fp16_cannot_hold_are_stored_as_they_are(tiny_model: Path, tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny_model, OPTIONS)
    trainer.save(tmp_path / "1", {})
    assert {tensor.dtype for tensor in trainer._saved_weights(tmp_path / "1")} == {torch.float16}
    large = [torch.full_like(p, 1e5) for p in trainer._parameters]
    trainer._masters.put(large)
    trainer.save(tmp_path / "2", {})
    assert all(map(torch.equal, trainer._saved_weights(tmp_path / "2"), large))


def test_all_weights_train_and_load_as_a_checkpoint(
    tiny_model: Path, ragged: list[Example], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    trainer = LocalTrainer(tiny_model, replace(OPTIONS, finetune="full", learning_rate=1e-3))
    trainer.step(Batch(ragged), 0)
    trainer.save(tmp_path / "1", {})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "1", dtype=torch.float32)
    [row] = pack(ragged[:1], 64, trainer.device)
    torch.testing.assert_close(
        plain_logprobs(loaded, ragged[0]), trainer._logprobs(row), atol=2e-5, rtol=1e-5
    )


def test_only_the_layers_that_were_asked_for_are_trained(tiny_model: Path, tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny_model, replace(OPTIONS, lora_targets="attention"))
    assert all("self_attn" in name for name, _ in trainer._named)
    trainer.save(tmp_path / "1", {})
    with pytest.raises(ValueError, match="--lora-targets"):
        LocalTrainer(tiny_model, OPTIONS).resume(Weights.in_folder(1, tmp_path / "1"))
    named = LocalTrainer(tiny_model, replace(OPTIONS, lora_targets="q_proj, down_proj"))
    assert {name.split(".lora")[0].rpartition(".")[2] for name, _ in named._named} == {"q_proj", "down_proj"}


def test_candidates_that_a_sample_lacks_count_for_nothing(tiny_model: Path) -> None:
    items = [make_item(1, 5, 3, columns=2), make_item(2, 5, 3, columns=6)]
    items = [replace(i, signal_NK=-abs(i.signal_NK) - 2) for i in items]
    trainer = LocalTrainer(tiny_model, OPTIONS)
    [row] = pack(items, 4096, trainer.device, TailKL.padding)
    together = TailKL()(trainer._logprobs(row), row.old_NK, row.signal_NK)
    [alone] = pack(items[:1], 4096, trainer.device, TailKL.padding)
    expected = TailKL()(trainer._logprobs(alone), alone.old_NK, alone.signal_NK)
    torch.testing.assert_close(together[:3], expected, atol=1e-5, rtol=1e-5)


def test_unknown_settings_are_refused(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="fine-tuning"):
        LocalTrainer(tiny_model, replace(OPTIONS, finetune="most"))
    with pytest.raises(ValueError, match="dtype"):
        LocalTrainer(tiny_model, replace(OPTIONS, train_dtype="fp8"))


def test_half_precision_keeps_what_a_step_changes(
    tiny_model: Path, ragged: list[Example], tmp_path: Path
) -> None:
    """A rate too small for eight bits moves the weights as far as in fp32, given a few steps."""
    moved = {}
    for dtype in ("fp32", "bf16"):
        trainer = LocalTrainer(tiny_model, replace(FULL, train_dtype=dtype))
        before = torch.cat([p.detach().float().flatten() for p in trainer._parameters])
        for step in range(20):
            trainer.step(Batch(ragged[:2]), step)
        moved[dtype] = torch.cat([p.detach().float().flatten() for p in trainer._parameters]) - before
    assert float(torch.cosine_similarity(moved["fp32"], moved["bf16"], dim=0)) > 0.95
    assert float((moved["bf16"] != 0).float().mean()) > 0.9 * float((moved["fp32"] != 0).float().mean())


def test_half_precision_resumes_bit_by_bit(tiny_model: Path, ragged: list[Example], tmp_path: Path) -> None:
    options = replace(FULL, train_dtype="bf16", average_decay=0.5)
    through = LocalTrainer(tiny_model, options)
    through.step(Batch(ragged), 0)
    through.save(tmp_path / "1", {})
    resumed = LocalTrainer(tiny_model, options)
    resumed.resume(Weights.in_folder(1, tmp_path / "1"))
    for trainer in (through, resumed):
        for step in range(4):
            trainer.step(Batch(ragged), 1 + step)
    for a, b in zip(through._masters.weights, resumed._masters.weights, strict=True):
        assert torch.equal(a, b)


def test_a_new_weight_decay_holds_from_a_resume_on(
    tiny_model: Path, ragged: list[Example], tmp_path: Path
) -> None:
    before = LocalTrainer(tiny_model, OPTIONS)
    before.step(Batch(ragged), 0)
    before.save(tmp_path / "1", {})
    norms = []
    for weight_decay in (0.0, 100.0):
        trainer = LocalTrainer(tiny_model, replace(OPTIONS, weight_decay=weight_decay, betas=(0.8, 0.9)))
        trainer.resume(Weights.in_folder(1, tmp_path / "1"))
        assert trainer._optimizer.param_groups[0]["betas"] == (0.8, 0.9)
        trainer.step(Batch(ragged), 1)
        norms.append(sum(float(p.detach().norm()) for p in trainer._parameters))
    assert norms[1] < 0.95 * norms[0]


def test_layers_are_kept_as_long_as_they_fit(tiny_model: Path, ragged: list[Example]) -> None:
    """What autograd really holds of a row grows with the memory allowed, and the gradients stay the same."""
    [row] = pack(ragged, 4096, torch.device("cpu"))
    whole = LocalTrainer(tiny_model, OPTIONS)._activations.layer_bytes * row.num_tokens * 3
    held, expected = [], plain_gradients(tiny_model, ragged)
    for share, num_kept in ((0.3, 0), (0.7, 2), (1.1, 3)):
        options = replace(OPTIONS, activation_gib=share * whole / 2**30, micro_batch_tokens=4096)
        trainer = LocalTrainer(tiny_model, options)
        assert trainer._activations.kept(row.num_tokens).whole == num_kept
        held.append(saved_bytes(partial(trainer._logprobs, row), trainer._model.parameters()))
        trainer.step(Batch(ragged), 0)
        for got, want in zip(gradients(trainer), expected, strict=True):
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)
    assert held[0] + 0.5 * whole < held[1] + 0.25 * whole < held[2]
