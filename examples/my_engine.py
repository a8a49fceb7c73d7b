"""An engine of one's own: any causal model that transformers can run, one request at a time.

openclaw-rl serve --engine my_engine:TransformersEngine --algo binary
"""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from openclaw_rl.engine import EngineParts
from openclaw_rl.types import (
    BASE_VERSION,
    Capabilities,
    EngineStatus,
    GenerateRequest,
    ScoreRequest,
    Scores,
    Token,
    Weights,
)


class TransformersEngine:
    capabilities = Capabilities(adapters=True, scores_candidates=True)

    def __init__(self, parts: EngineParts) -> None:
        base = AutoModelForCausalLM.from_pretrained(parts.model, dtype=torch.float32).eval()
        self._base, self._model, self.context_length = base, None, base.config.max_position_embeddings
        self._versions, self._serving, self._running = {BASE_VERSION}, BASE_VERSION, 0
        self._turn = asyncio.Lock()

    @torch.inference_mode()
    def _forward(self, ids: list[int], version: int, past: object = None) -> tuple[torch.Tensor, object]:
        model = self._base
        if self._model is not None:
            model = self._model if version != BASE_VERSION else self._model.get_base_model()
            if version != BASE_VERSION:
                self._model.set_adapter(str(version))
            (self._model.enable_adapter_layers if version else self._model.disable_adapter_layers)()
        out = model(torch.tensor([ids]), past_key_values=past, use_cache=True)
        return torch.log_softmax(out.logits[0].float(), -1), out.past_key_values

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        version = self._serving if request.policy_version is None else request.policy_version
        self._check(version)
        sampling, ids, past = request.sampling, list(request.prompt_ids), None
        generator = torch.Generator().manual_seed(0 if sampling.seed is None else sampling.seed)
        self._running += 1
        try:
            for position in range(sampling.max_tokens):
                async with self._turn:  # one step at a time, so that streams take turns
                    rows, past = await asyncio.to_thread(self._forward, ids, version, past)
                token = self._sample(rows[-1], request, version, generator)
                is_last = position + 1 == sampling.max_tokens
                reason = "stop" if token.id in request.stop_ids else "length" if is_last else None
                yield replace(token, finish_reason=reason)
                if reason:
                    return
                ids = [token.id]
        finally:
            self._running -= 1

    def _sample(
        self, raw: torch.Tensor, request: GenerateRequest, version: int, generator: torch.Generator
    ) -> Token:
        temperature = request.sampling.temperature
        if temperature == 0:
            chosen, sampled = int(raw.argmax()), 0.0
        else:
            shares = torch.softmax(raw / temperature, -1)
            chosen = int(torch.multinomial(shares, 1, generator=generator))
            sampled = math.log(float(shares[chosen]))
        top = raw.topk(request.top_logprobs)
        return Token(
            chosen,
            float(raw[chosen]),
            sampled,
            tuple(top.indices.tolist()),
            tuple(top.values.tolist()),
            version,
        )

    async def score(self, request: ScoreRequest) -> Scores:
        self._check(request.policy_version)
        ids = list(request.token_ids)
        async with self._turn:
            rows, _ = await asyncio.to_thread(self._forward, ids[:-1], request.policy_version)
        rows = rows[request.start - 1 :]
        top = rows.topk(request.top_k)
        asked = [
            [float(row[i]) for i in want] for row, want in zip(rows, request.candidates or [], strict=False)
        ]
        own = [float(row[i]) for row, i in zip(rows, ids[request.start :], strict=True)]
        return Scores(own, top.indices.tolist(), top.values.tolist(), None, asked or None)

    async def load(self, weights: Weights) -> None:
        from peft import PeftModel

        async with self._turn:
            if self._model is None:
                self._model = PeftModel.from_pretrained(self._base, weights.folder, str(weights.version))
            elif weights.version not in self._versions:
                self._model.load_adapter(weights.folder, str(weights.version))
            self._versions.add(weights.version)

    async def serve_version(self, version: int) -> None:
        self._check(version)
        self._serving = version

    async def unload(self, version: int) -> None:
        if version in (BASE_VERSION, self._serving):
            raise ValueError(f"version {version} is in use")
        self._model.set_adapter(str(next(v for v in self._versions if v not in (BASE_VERSION, version))))
        self._model.delete_adapter(str(version))
        self._versions.discard(version)

    def _check(self, version: int) -> None:
        if version not in self._versions:
            raise ValueError(f"version {version} is not loaded")

    def status(self) -> EngineStatus:
        return EngineStatus(self._running, 0, 0, tuple(sorted(self._versions)), self._serving)

    async def close(self) -> None:
        """Nothing is held outside this process."""
