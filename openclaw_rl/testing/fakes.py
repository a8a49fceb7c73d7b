"""Fake or tiny versions of an engine, a tokenizer, a model and a judge.

The scripted engine's log-probs are not plausible: they are valid distributions, but mean nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    JudgeCase,
    Scope,
    ScoreRequest,
    Scores,
    Token,
    Verdict,
    Weights,
)

if TYPE_CHECKING:
    from openclaw_rl.processes.serving_system import ServingSystem


@dataclass(frozen=True, slots=True)
class Script:
    """One reply: its tokens, and the faults to simulate."""

    ids: tuple[int, ...]
    delay_s: float = 0.0
    """Before each token."""
    pause_after: int | None = None
    """Wait for ``ScriptedEngine.resume`` after this many tokens."""
    fail_after: int | None = None
    """Raise after this many tokens."""
    error: Exception | None = None
    """The exception to raise; RuntimeError if None."""


class ScriptedEngine:
    """An Engine whose replies come from a queue of scripts, then from the default; deterministic.

    ``requests`` keeps every request as received; ``num_cancelled`` counts those that did not finish. Grammars
    are accepted but not applied; ``refuse_grammars`` makes every grammar invalid.
    """

    capabilities = Capabilities(grammar="llguidance")

    def __init__(self, tokenizer: Any, default: str = "Hello!", context_length: int = 4096) -> None:
        self.context_length = context_length
        self.requests: list[GenerateRequest] = []
        self.num_cancelled = 0
        self.refuse_grammars = False
        self._tokenizer, self._vocab_size = tokenizer, len(tokenizer)
        self._default = self._script(default)
        self._queue: deque[Script] = deque()
        self._running = 0
        self._versions: dict[int, Weights | None] = {BASE_VERSION: None}
        self._serving: dict[Scope, int] = {}
        self.resume = asyncio.Event()
        self.closed = False

    def say(self, reply: str | Sequence[int], **trouble: Any) -> None:
        """Queue a reply; each request takes the next one. ``trouble``: fields of ``Script``."""
        self._queue.append(self._script(reply, **trouble))

    def _script(self, reply: str | Sequence[int], **trouble: Any) -> Script:
        if not isinstance(reply, str):
            return Script(tuple(reply), **trouble)
        ids = self._tokenizer.encode(reply, add_special_tokens=False)
        return Script((*ids, self._tokenizer.eos_token_id), **trouble)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        stated = request.policy_version
        version = self.status().version_for(request.scope) if stated is None else stated
        self._check(version)
        self.requests.append(request)
        script = self._queue.popleft() if self._queue else self._default
        self._running += 1
        finished = False
        try:
            for position, token_id in enumerate(script.ids):
                await self._trouble(script, position)
                last = position + 1 == min(len(script.ids), request.sampling.max_tokens)
                stopped = token_id in request.stop_ids
                finished = last or stopped
                yield self._token(
                    token_id,
                    position,
                    request,
                    version,
                    ("stop" if stopped else "length") if finished else None,
                )
                if finished:
                    return
        finally:
            self._running -= 1
            self.num_cancelled += not finished

    async def _trouble(self, script: Script, position: int) -> None:
        if script.pause_after == position:
            await self.resume.wait()
        if script.fail_after == position:
            raise script.error or RuntimeError("the scripted engine fails here")
        await asyncio.sleep(script.delay_s)

    def _token(
        self, token_id: int, position: int, request: GenerateRequest, version: int, reason: Any
    ) -> Token:
        top_ids, top_logprobs = self._distribution(token_id, position, request.top_logprobs)
        logprob = _first_logprob(token_id, position)
        return Token(
            id=token_id,
            logprob=logprob,
            sampled_logprob=0.0 if request.sampling.temperature == 0 else logprob,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            policy_version=version,
            finish_reason=reason,
        )

    def _distribution(
        self, token_id: int, position: int, top_k: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The given token first, then the following ids, each with half the probability of the one before."""
        first = _first_logprob(token_id, position)
        rest = 1.0 - math.exp(first)
        shares = [first, *(math.log(rest * 0.5**rank) for rank in range(1, top_k))]
        ids = [(token_id + rank) % self._vocab_size for rank in range(top_k)]
        return tuple(ids), tuple(shares[:top_k])

    async def score(self, request: ScoreRequest) -> Scores:
        self._check(request.policy_version)
        token_ids, start, top_k = request.token_ids, request.start, request.top_k
        rows = [self._distribution(token_ids[i], i, max(1, top_k)) for i in range(start, len(token_ids))]
        return Scores(
            logprobs=[values[0] for _, values in rows],
            top_ids=[list(ids[:top_k]) for ids, _ in rows],
            top_logprobs=[list(values[:top_k]) for _, values in rows],
            # Other candidates are half as likely as the actual token.
            candidate_logprobs=None
            if request.candidates is None
            else [
                [values[0] + (0.0 if i == ids[0] else math.log(0.5)) for i in row]
                for row, (ids, values) in zip(request.candidates, rows, strict=True)
            ],
        )

    async def load(self, weights: Weights) -> None:
        self._versions[weights.version] = weights

    async def serve_version(self, version: int, scope: Scope = EVERYONE) -> None:
        self._check(version)
        self._serving[scope] = version

    async def unload(self, version: int) -> None:
        if version in (BASE_VERSION, *self._serving.values()):
            raise ValueError(f"policy version {version} is in use and cannot be unloaded")
        self._versions.pop(version, None)

    def check_grammar(self, grammar: str) -> None:
        if self.refuse_grammars:
            raise ValueError("the scripted engine takes no grammar")

    def status(self) -> EngineStatus:
        return EngineStatus(self._running, 0, 0, tuple(sorted(self._versions)), dict(self._serving))

    async def close(self) -> None:
        self.closed = True

    def _check(self, version: int) -> None:
        if version not in self._versions:
            raise ValueError(f"policy version {version} is not loaded; loaded: {sorted(self._versions)}")


def _first_logprob(token_id: int, position: int) -> float:
    """Of a probability between 0.55 and 0.95, so that the scripted token is always the most likely."""
    return math.log(0.55 + (token_id * 31 + position * 17) % 41 / 100)


def byte_tokenizer() -> Any:
    """A tokenizer built in memory: one token per UTF-8 byte, plus ChatML's control tokens.

    Every non-ASCII character and every stop string spans several tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )


def tiny_model(folder: Path, seed: int = 0, head_dim: int = 8) -> Path:
    """A real network, small enough to serve and train within a second.

    It is briefly trained on one sentence, so it generates letters; serve it with ``--renderer qwen3``.
    vLLM's kernels for CPUs need a ``head_dim`` of 32.
    """
    tokenizer = byte_tokenizer()
    _tiny_network(seed, head_dim).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@cache
def _tiny_network(seed: int, head_dim: int) -> Any:
    """Trained once in a process: dozens of tests want one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from openclaw_rl.render import create_renderer

    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=4 * head_dim, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    asked = create_renderer(tokenizer, name="qwen3").render([{"role": "user", "content": "question 1"}])
    sentence = tokenizer.encode("the lazy dog sleeps while the quick brown fox jumps over it, " * 3)
    text = torch.tensor([[*asked, *sentence]])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        model(text, labels=text).loss.backward()
        optimizer.step()
    return model


class WordJudge:
    """A judge without a model: scores ``good`` and ``bad`` in the user's next message; otherwise 0."""

    async def evaluate(self, case: JudgeCase) -> Verdict:
        said = " ".join(str(m.get("content")) for m in case.next_state or () if m["role"] == "user")
        score = ("good" in said) - ("bad" in said)
        return Verdict(score, 1.0, "votes", votes=(score,), hints=(said,) if score < 0 else ())

    async def close(self) -> None:
        """Nothing to release."""


def scripted_system(home: Path, **settings: Any) -> ServingSystem:
    """The whole serving side with a scripted engine; ``settings`` as on the command line."""
    from openclaw_rl.config import load_config
    from openclaw_rl.loop import wire_serving
    from openclaw_rl.processes.parts import build_answerer, build_take_over, open_ledgers
    from openclaw_rl.render import create_renderer

    config = load_config({"served_model_name": "scripted", "home": home, **settings}, environment={})
    config.home.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    engine, renderer = ScriptedEngine(tokenizer), create_renderer(tokenizer, name="qwen3")
    local = build_answerer(config, engine, renderer)
    answerer = build_take_over(config, local) if config.serve.take_over else local
    return wire_serving(config, open_ledgers(config), engine, answerer)
