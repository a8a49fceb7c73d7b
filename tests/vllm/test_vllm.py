"""A real vLLM on the default model: contract, exact log-probs, swaps under load, and its death."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.config import EngineConfig
from openclaw_rl.engine import EngineParts, create_engine
from openclaw_rl.engine.sampled_from import bounded
from openclaw_rl.engine.sampling import Sampler
from openclaw_rl.engine.vllm_server import VllmServer, server_flags
from openclaw_rl.models import DEFAULT_MODEL, default_cache_dir, resolve_model
from openclaw_rl.testing.contracts import EngineContract
from openclaw_rl.testing.waiting import until
from openclaw_rl.types import (
    BASE_VERSION,
    Engine,
    GenerateRequest,
    Priority,
    SamplingParams,
    ScoreRequest,
    Token,
    Weights,
)
from tests.faulty import FaultyLine, faulty_line

pytestmark = pytest.mark.vllm
PYTHON = Path(__file__).parents[2] / ".venv-engines" / "vllm" / "bin" / "python"
FLAGS = "--enforce-eager --dtype float32 --max-model-len 1024"
SPACE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve_model(DEFAULT_MODEL, default_cache_dir())


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """Six versions that differ, with weights large enough to show."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted: Any = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    found = []
    for version in range(1, 7):
        torch.manual_seed(version)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.02)
        folder = tmp_path_factory.mktemp("adapter")
        adapted.save_pretrained(folder, save_embedding_layers=False)
        found.append(Weights.in_folder(version, folder))
    return found


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[VllmServer]:
    """One for all tests: it takes a minute to start."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SPACE.items():
            patch.setenv(name, value)
        server = VllmServer(model, server_flags(16, 4, 16, FLAGS), str(PYTHON))
        yield server
        server.close()


@pytest.fixture
async def engine(server: VllmServer, model: Path) -> AsyncIterator[Engine]:
    options = {"url": f"unix://{server.socket}"}
    engine = create_engine(EngineParts(model, EngineConfig(engine="vllm", engine_options=options)))
    yield engine
    for version in engine.status().versions:
        if version != BASE_VERSION:
            for scope in engine.status().serving:
                await engine.serve_version(BASE_VERSION, scope)
            await engine.unload(version)
    await engine.close()


class TestVllm(EngineContract):
    tolerance = 1e-3

    @pytest.fixture
    def weights(self, adapters: list[Weights]) -> list[Weights]:
        return adapters[:2]


async def collect(engine: Engine, request: GenerateRequest) -> list[Token]:
    return [token async for token in engine.generate(request)]


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def raw_rows(reference: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(reference(torch.tensor([ids])).logits[0].float(), -1)


def drawn_from(params: SamplingParams, raw_V: torch.Tensor, before: list[int]) -> torch.Tensor:
    """Log-probs of the whole distribution sampled from, by the embedded engine's arithmetic."""
    sampler = Sampler(bounded(params))
    sampler._counts.update(before if sampler._penalised else [])
    scaled = sampler._changed(raw_V) / params.temperature
    ids, kept = sampler._truncate(torch.log_softmax(scaled, -1))
    row = torch.full_like(raw_V, -math.inf)
    row[torch.arange(len(raw_V)) if ids is None else ids] = kept
    return row


PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(40, seed=1),
        SamplingParams(40, temperature=0.2, top_p=0.9, seed=2),
        SamplingParams(40, temperature=0.7, seed=3),
        SamplingParams(40, temperature=0.8, top_p=0.95, seed=4),
        SamplingParams(40, temperature=1.0, top_k=40, seed=5),
        SamplingParams(40, temperature=1.3, min_p=0.05, seed=6),
        SamplingParams(40, temperature=0.9, presence_penalty=0.5, frequency_penalty=0.3, seed=7),
        SamplingParams(40, temperature=1.3, seed=8),
    ],
    ids=lambda p: f"T{p.temperature}-p{p.top_p}-k{p.top_k}-m{p.min_p}-f{p.frequency_penalty}",
)
async def test_log_probs_are_those_of_transformers(
    engine: Engine, reference: Any, params: SamplingParams, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = await collect(engine, GenerateRequest(PROMPT, params))
    ids = [token.id for token in tokens]
    rows = raw_rows(reference, PROMPT + ids)[len(PROMPT) - 1 : -1]
    raw = [abs(token.logprob - float(row[token.id])) for token, row in zip(tokens, rows, strict=True)]
    drawn = []
    for number, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        exact = float(drawn_from(params, row, ids[:number])[token.id])
        drawn.append(abs(token.sampled_logprob - exact))
    with capsys.disabled():
        print(f"\n{params}: raw within {max(raw):.1e}, sampled from within {max(drawn):.1e} nats")
    assert max(raw) < 1e-3
    assert max(drawn) < 2e-3


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1, temperature=1.3),
        SamplingParams(1, temperature=0.8, top_p=0.8),
        SamplingParams(1, temperature=1.5, top_k=30, top_p=0.7, min_p=0.02),
    ],
    ids=lambda p: f"T{p.temperature}-p{p.top_p}-k{p.top_k}-m{p.min_p}",
)
async def test_it_draws_from_what_we_say_it_draws_from(
    engine: Engine, reference: Any, params: SamplingParams
) -> None:
    """Our order of temperature, min-p, top-k and top-p is vLLM's: many first tokens come as often as said."""
    number, opening = 512, [*PROMPT, 28]
    exact = drawn_from(params, raw_rows(reference, opening)[-1], []).exp()
    drawn: list[Token] = []
    for start in range(0, number, 128):
        seeds = range(start, start + 128)
        requests = [GenerateRequest(opening, replace(params, seed=seed)) for seed in seeds]
        drawn += [reply[0] for reply in await asyncio.gather(*(collect(engine, each) for each in requests))]
    counts = torch.bincount(torch.tensor([token.id for token in drawn]), minlength=len(exact))
    assert int(counts[exact == 0].sum()) == 0, "something was drawn that is cut off"
    likely = exact > 0.01
    assert int(likely.sum()) >= 3, "the place is too sure to tell orders apart"
    spread = (number * exact * (1 - exact)).sqrt()
    assert float(((counts - number * exact).abs() / spread)[likely].max()) < 5


async def test_candidates_that_are_not_likely_are_scored_exactly(engine: Engine, reference: Any) -> None:
    chance = random.Random(0)
    ids = PROMPT + [chance.randrange(40_000) for _ in range(6)]
    rows = [[chance.randrange(40_000) for _ in range(4)] for _ in range(6)]
    scores = await engine.score(ScoreRequest(ids, len(PROMPT), top_k=8, candidates=rows))
    expected = raw_rows(reference, ids)[len(PROMPT) - 1 : -1]
    assert scores.candidate_logprobs is not None
    for row, want, told in zip(expected, rows, scores.candidate_logprobs, strict=True):
        assert told == pytest.approx([float(row[each]) for each in want], abs=1e-3)
    assert scores.top_ids[0] == expected[0].topk(8).indices.tolist()


async def test_versions_change_under_load_and_no_request_fails(
    engine: Engine, adapters: list[Weights], reference: Any
) -> None:
    """Each reply is of one version, and scored again by that version it has the very same log-probs."""
    replies: list[list[Token]] = []
    done = asyncio.Event()

    async def client(number: int) -> None:
        request = GenerateRequest(PROMPT, SamplingParams(24, temperature=0.8), owner=f"user-{number % 3}")
        while not done.is_set():
            replies.append(await collect(engine, request))

    clients = [asyncio.create_task(client(number)) for number in range(6)]
    for weights in adapters:
        before = len(replies)
        await engine.load(weights)
        await engine.serve_version(weights.version)
        while len(replies) < before + 4:
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in clients), "a request failed"
    done.set()
    await asyncio.gather(*clients)
    versions = [{token.policy_version for token in reply} for reply in replies]
    assert all(len(each) == 1 for each in versions)
    assert set.union(*versions) >= {weights.version for weights in adapters}
    for weights in adapters:
        reply = next(r for r in reversed(replies) if r[0].policy_version == weights.version)
        ids = [*PROMPT, *(token.id for token in reply)]
        again = await engine.score(ScoreRequest(ids, len(PROMPT), policy_version=weights.version))
        assert again.logprobs == pytest.approx([token.logprob for token in reply], abs=1e-3)
        other = await engine.score(ScoreRequest(ids, len(PROMPT)))
        assert max(abs(a - b) for a, b in zip(again.logprobs, other.logprobs, strict=True)) > 0.01


async def test_it_is_killed_in_the_middle_of_replies_and_nobody_notices(
    engine: Engine, server: VllmServer, adapters: list[Weights]
) -> None:
    """Adapters are loaded again, replies go on where they were."""
    await engine.load(adapters[0])
    await engine.serve_version(adapters[0].version)
    request = GenerateRequest(PROMPT, SamplingParams(60, temperature=0.8, seed=1))
    begun = asyncio.Event()

    async def reply() -> list[Token]:
        tokens = []
        async for token in engine.generate(request):
            tokens.append(token)
            if len(tokens) == 5:
                begun.set()
        return tokens

    work = asyncio.create_task(reply())
    await begun.wait()
    os.killpg(server._child.pid, signal.SIGKILL)
    scoring = asyncio.create_task(engine.score(ScoreRequest(PROMPT, 1, priority=Priority.JUDGE)))
    tokens = await work
    assert len(tokens) == 60
    assert {token.policy_version for token in tokens} == {adapters[0].version}
    ids = [*PROMPT, *(token.id for token in tokens)]
    again = await engine.score(ScoreRequest(ids, len(PROMPT), policy_version=adapters[0].version))
    assert again.logprobs == pytest.approx([token.logprob for token in tokens], abs=1e-3)
    assert len((await scoring).logprobs) == len(PROMPT) - 1
    assert server.num_restarts == 1


@pytest.fixture
async def through_line(server: VllmServer, model: Path) -> AsyncIterator[tuple[Engine, FaultyLine]]:
    with faulty_line(server.socket) as line:
        options = {"url": line.url, "patience_s": 60}
        engine = create_engine(EngineParts(model, EngineConfig(engine="vllm", engine_options=options)))
        yield engine, line
        await engine.close()


@pytest.mark.parametrize("trouble", ["cut", "silence", "500"])
async def test_the_network_fails_in_the_middle_of_replies_and_nobody_notices(
    through_line: tuple[Engine, FaultyLine], trouble: str
) -> None:
    engine, line = through_line
    params = [SamplingParams(48, temperature=0.8, seed=1), SamplingParams(48, presence_penalty=0.4, seed=2)]
    begun = [asyncio.Event() for _ in params]

    async def reply(number: int) -> list[Token]:
        tokens = []
        async for token in engine.generate(GenerateRequest(PROMPT, params[number])):
            tokens.append(token)
            if len(tokens) == 5:
                begun[number].set()
        return tokens

    work = [asyncio.create_task(reply(number)) for number in range(len(params))]
    await asyncio.gather(*(each.wait() for each in begun))
    if trouble == "500":
        line.answer(500, times=2)
    elif trouble == "cut":
        line.cut()
    else:
        line.silence()
    if trouble != "500":
        await asyncio.sleep(30 if trouble == "cut" else 3)
        assert not any(each.done() for each in work)
        line.mend()
    for tokens in await asyncio.gather(*work):
        assert len(tokens) == 48
        ids = [*PROMPT, *(token.id for token in tokens)]
        again = await engine.score(ScoreRequest(ids, len(PROMPT)))
        assert again.logprobs == pytest.approx([token.logprob for token in tokens], abs=1e-3)


async def test_it_leaves_nothing_behind(server: VllmServer) -> None:
    """Last: it stops the server that the others used."""
    group = server._child.pid

    def living() -> list[str]:
        """Of its process group; one that is dead may be listed until init has noticed."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it ended meanwhile
                state, _, of_group, *_ = stat.read_text().rpartition(")")[2].split()
                found += [state] * (int(of_group) == group and state != "Z")
        return found

    assert living()
    server.close()
    await until(lambda: not living(), "all of its processes are gone")
    assert not server.socket.exists()
