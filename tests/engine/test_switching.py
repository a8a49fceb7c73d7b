"""New weights arrive: nobody waits, nobody gets an error, and every token is its version's own."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.testing import until
from openclaw_rl.types import EVERYONE, Token, Weights
from tests.engine.conftest import TOLERANCE, Reference, run_generation


def plain(reference: Reference, prompt: list[int], tokens: list[Token], version: int) -> list[float]:
    """The reply's log-probs by one plain forward pass."""
    rows = reference([*prompt, *(token.id for token in tokens)], version)
    first = len(prompt) - 1
    return [float(rows[first + i, token.id]) for i, token in enumerate(tokens)]


async def settle(engine: LocalEngine) -> None:
    await until(
        lambda: engine.status().num_running + engine.status().num_waiting == 0, "the engine is idle", 60
    )


async def test_a_conversation_stays_with_its_version_until_the_new_one_is_warm(
    engine: LocalEngine, adapters: dict[int, Path]
) -> None:
    history = list(range(1000, 1300))
    await run_generation(engine, history, max_tokens=4)
    await engine.load(Weights.in_folder(1, adapters[1]))
    long_prompt = [*history, *range(400, 410)]
    # Hold the engine back from warming up, to see the moment in between.
    scheduler = engine._scheduler
    warm, calls = scheduler.warm, []
    scheduler.warm = lambda *arguments: calls.append(arguments)  # type: ignore[method-assign]
    await engine.serve_version(1)
    await settle(engine)
    assert engine.pick_version(long_prompt) == 0
    assert engine.pick_version(list(range(2000, 2050))) == 1
    scheduler.warm = warm  # type: ignore[method-assign]
    engine._inbox.put(lambda: warm(*calls[0]))
    await until(lambda: engine.pick_version(long_prompt) == 1, "the new version has read it", 60)


async def test_after_a_minute_everybody_switches(
    engine: LocalEngine, adapters: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = list(range(1000, 1300))
    await run_generation(engine, history, max_tokens=4)
    await engine.load(Weights.in_folder(1, adapters[1]))
    monkeypatch.setattr(engine._scheduler, "warm", lambda *arguments: None)
    await engine.serve_version(1)
    assert engine.pick_version(history) == 0
    before, switched_at = engine._before[EVERYONE]
    engine._before[EVERYONE] = (before, switched_at - 61)
    assert engine.pick_version(history) == 1


async def test_replies_in_flight_keep_their_version_and_its_log_probs(
    engine: LocalEngine, adapters: dict[int, Path], reference: Reference
) -> None:
    """Six streams, a switch in the middle of each, every token re-scored under the version it names."""
    prompts = [list(range(50 * n, 50 * n + 30)) for n in range(1, 7)]
    for version in (1, 2):
        await engine.load(Weights.in_folder(version, adapters[version]))
    running = [asyncio.create_task(run_generation(engine, prompt, version=None)) for prompt in prompts]
    await until(lambda: engine.status().num_running >= 3, "replies are running")
    await engine.serve_version(1)
    later = [asyncio.create_task(run_generation(engine, [7, *prompt], version=None)) for prompt in prompts]
    await engine.serve_version(2)
    replies = await asyncio.gather(*running, *later)
    asked = [*prompts, *([7, *prompt] for prompt in prompts)]
    for prompt, tokens in zip(asked, replies, strict=True):
        versions = {token.policy_version for token in tokens}
        assert len(versions) == 1
        expected = plain(reference, prompt, tokens, versions.pop())
        assert [token.logprob for token in tokens] == pytest.approx(expected, abs=TOLERANCE)


async def test_other_files_under_the_same_number_replace_the_weights(
    engine: LocalEngine, adapters: dict[int, Path], reference: Reference
) -> None:
    prompt = list(range(300, 340))
    await engine.load(Weights.in_folder(5, adapters[1]))
    await run_generation(engine, prompt, max_tokens=2, version=5)
    await engine.load(Weights.in_folder(5, adapters[2]))
    tokens = await run_generation(engine, prompt, max_tokens=6, version=5)
    expected = plain(reference, prompt, tokens, 2)
    assert [token.logprob for token in tokens] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("end", ["lora_A", "lora_B"])
async def test_weights_of_another_model_are_refused_and_nothing_changes(
    end: str, engine: LocalEngine, adapters: dict[int, Path], tmp_path: Path
) -> None:
    shutil.copytree(adapters[1], tmp_path / "other")
    file = tmp_path / "other" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "q_proj" in name and end in name)
    tensors[name] = tensors[name][..., :-8, :] if end == "lora_B" else tensors[name][..., :-8]
    save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, file)
    with pytest.raises(ValueError, match="another model"):
        await engine.load(Weights.in_folder(9, tmp_path / "other"))
    assert 9 not in engine.status().versions
    assert await run_generation(engine, list(range(100, 120)), max_tokens=2)
