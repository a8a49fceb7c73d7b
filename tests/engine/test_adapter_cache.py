"""More people than there is memory for: who was away comes back the same, and nobody is let go in use."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.engine.adapter_cache import AdapterCache
from openclaw_rl.engine.local import LocalEngine
from openclaw_rl.engine.local_options import LocalEngineOptions
from openclaw_rl.engine.lora import Adapter
from openclaw_rl.testing import tiny_model, until
from openclaw_rl.testing.contracts.engine import collect
from openclaw_rl.types import BASE_VERSION, GenerateRequest, SamplingParams, ScoreRequest, Token, Weights

SEQUENCE = list(range(5, 25))


async def test_the_least_recently_used_leaves(tmp_path: Path) -> None:
    read: list[str] = []
    on_evict: list[Adapter] = []

    def read_one(path: Path) -> Adapter:
        read.append(path.name)
        return Adapter()

    adapter_cache = AdapterCache(2, read_one, on_evict.append)
    for version in (1, 2, 3):
        await adapter_cache.put(version, tmp_path / str(version))
    assert read == ["1", "2"], "the third is read when it is needed"
    async with adapter_cache.using(1), adapter_cache.using(2):
        async with adapter_cache.using(3) as third:
            assert third is not None
            assert adapter_cache.num_loaded == 3, "none of them can go while it is used"
        assert adapter_cache.loaded(3) is None
    async with adapter_cache.using(3):
        pass
    assert adapter_cache.loaded(1) is None, "1 was used least recently"
    assert (adapter_cache.num_loaded, len(on_evict)) == (2, 2)
    assert adapter_cache.versions == [1, 2, 3]
    adapter_cache.drop(2)
    assert 2 not in adapter_cache


async def test_requests_that_come_back_together_read_once(tmp_path: Path) -> None:
    read: list[str] = []
    may_read = threading.Event()

    def read_one(path: Path) -> Adapter:
        may_read.wait(30)
        read.append(path.name)
        return Adapter()

    adapter_cache = AdapterCache(1, read_one, lambda adapter: None)
    may_read.set()
    await adapter_cache.put(1, tmp_path / "1")
    await adapter_cache.put(2, tmp_path / "2")
    may_read.clear()
    found: list[Adapter | None] = []

    async def use() -> None:
        async with adapter_cache.using(2) as adapter:
            found.append(adapter)

    tasks = [asyncio.create_task(use()) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    may_read.set()
    assert isinstance((await asyncio.gather(*tasks, return_exceptions=True))[0], asyncio.CancelledError)
    assert read == ["1", "2"], "also if who asked first has left"
    assert len(found) == 3
    assert all(adapter is found[0] for adapter in found)


async def test_what_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    results: list[Adapter | Exception] = [Adapter(), ValueError("damaged"), Adapter()]

    def read_one(path: Path) -> Adapter:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    adapter_cache = AdapterCache(1, read_one, lambda adapter: None)
    await adapter_cache.put(1, tmp_path / "1")
    await adapter_cache.put(2, tmp_path / "2")
    with pytest.raises(ValueError, match="damaged"):
        async with adapter_cache.using(2):
            pass
    async with adapter_cache.using(2) as adapter:
        assert adapter is not None


async def test_a_version_without_an_adapter_has_none() -> None:
    adapter_cache = AdapterCache(1, lambda path: Adapter(), lambda adapter: None)
    async with adapter_cache.using(0) as nothing:
        assert nothing is None


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Weights]]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model, found = tiny_model(tmp_path_factory.mktemp("model")), []
    for version in range(1, 7):
        torch.manual_seed(version)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        folder = tmp_path_factory.mktemp("adapter")
        get_peft_model(base, config).save_pretrained(folder, save_embedding_layers=False)
        found.append(Weights.in_folder(version, folder))
    return model, found


async def test_everybody_is_answered_by_their_own_whoever_is_in_memory(
    people: tuple[Path, list[Weights]],
) -> None:
    model, weights = people
    roomy = LocalEngine(model, LocalEngineOptions(device="cpu", kernel="float"))
    narrow = LocalEngine(model, LocalEngineOptions(device="cpu", kernel="float", max_adapters=2))
    try:
        for engine in (roomy, narrow):
            for each in weights:
                await engine.load(each)
                await engine.serve_version(each.version, f"user:{each.version}")
        assert narrow.status().versions == roomy.status().versions
        assert narrow.status().serving == roomy.status().serving
        for _ in range(2):
            for each in weights:
                request = ScoreRequest(SEQUENCE, 1, policy_version=each.version)
                assert await narrow.score(request) == await roomy.score(request), each.version
        sampling = SamplingParams(4, temperature=0.0)
        replies = await asyncio.gather(
            *(
                collect(narrow, GenerateRequest(SEQUENCE, sampling, scope=f"user:{each.version}"))
                for each in weights
            )
        )
        assert [reply[0].policy_version for reply in replies] == [each.version for each in weights]
        scores = [(await roomy.score(ScoreRequest(SEQUENCE, 1, policy_version=w.version))) for w in weights]
        assert len({tuple(score.logprobs) for score in scores}) == len(weights), "they do differ"
    finally:
        await roomy.close()
        await narrow.close()


class SlowDisk(LocalEngine):
    """Whose adapters are read only once they may."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.may_read, self.waiting = threading.Event(), 0
        self.may_read.set()

    def _read_adapter(self, path: Path) -> Adapter:
        self.waiting += 1
        assert self.may_read.wait(60)
        return super()._read_adapter(path)


async def test_while_an_adapter_is_read_everybody_else_is_answered(
    people: tuple[Path, list[Weights]],
) -> None:
    """Also if more are read than asyncio has threads, of which every request needs one for the ledger."""
    model, [first, *others] = people
    engine = SlowDisk(model, LocalEngineOptions(device="cpu", kernel="float", max_adapters=1))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    try:
        for each in (first, *others):
            await engine.load(each)
        sampling = SamplingParams(4, temperature=0.0)

        def ask(version: int) -> asyncio.Task[list[Token]]:
            request = GenerateRequest(SEQUENCE, sampling, policy_version=version)
            return asyncio.create_task(collect(engine, request))

        engine.may_read.clear()
        away = [ask(each.version) for each in others]
        await until(lambda: engine.waiting > 3, "some of them are being read")
        for version in (first.version, BASE_VERSION):
            assert len(await asyncio.wait_for(ask(version), 60)) == 4
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "placed"), 60) == "placed"
        assert not any(task.done() for task in away)
        engine.may_read.set()
        replies = await asyncio.gather(*away)
        assert [reply[0].policy_version for reply in replies] == [each.version for each in others]
    finally:
        engine.may_read.set()
        await engine.close()
