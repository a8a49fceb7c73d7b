"""A custom engine: any causal model that transformers can run; requests alternate token by token, unbatched.

openclaw-rl serve --engine my_engine:TransformersEngine
"""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from openclaw_rl import types
from openclaw_rl.engine import EngineParts


class TransformersEngine:
    capabilities = types.Capabilities(adapters=True, scores_candidates=True)

    def __init__(self, parts: EngineParts) -> None:
        base = AutoModelForCausalLM.from_pretrained(parts.model, dtype=torch.float32).eval()
        self._base, self._model, self.context_length = base, None, base.config.max_position_embeddings
        self._versions, self._serving, self._running = {types.BASE_VERSION}, {}, 0
        self._turn = asyncio.Lock()

    @torch.inference_mode()
    def _forward(self, ids: list[int], version: int, past: object = None) -> tuple[torch.Tensor, object]:
        model = self._base
        if self._model is not None:
            model = self._model
            (model.enable_adapter_layers if version else model.disable_adapter_layers)()
            if version != types.BASE_VERSION:
                model.set_adapter(str(version))
        out = model(torch.tensor([ids]), past_key_values=past, use_cache=True)
        return torch.log_softmax(out.logits[0].float(), -1), out.past_key_values

    async def generate(self, request: types.GenerateRequest) -> AsyncIterator[types.Token]:
        serving = self.status().version_for(request.scope)
        version = serving if request.policy_version is None else request.policy_version
        self._check(version)
        sampling, ids, past = request.sampling, list(request.prompt_ids), None
        generator = torch.Generator().manual_seed(0 if sampling.seed is None else sampling.seed)
        self._running += 1
        try:
            for position in range(sampling.max_tokens):
                async with self._turn:  # released after each token, so that streams alternate
                    rows, past = await asyncio.to_thread(self._forward, ids, version, past)
                token = self._sample(rows[-1], request, version, generator)
                limit = "length" if position + 1 == sampling.max_tokens else None
                reason = "stop" if token.id in request.stop_ids else limit
                yield replace(token, finish_reason=reason)
                if reason:
                    return
                ids = [token.id]
        finally:
            self._running -= 1

    def _sample(
        self, raw: torch.Tensor, request: types.GenerateRequest, version: int, generator: torch.Generator
    ) -> types.Token:
        temperature = request.sampling.temperature
        if temperature == 0:
            chosen, sampled = int(raw.argmax()), 0.0
        else:
            shares = torch.softmax(raw / temperature, -1)
            chosen = int(torch.multinomial(shares, 1, generator=generator))
            sampled = math.log(float(shares[chosen]))
        top = raw.topk(request.top_logprobs)
        return types.Token(
            chosen,
            float(raw[chosen]),
            sampled,
            tuple(top.indices.tolist()),
            tuple(top.values.tolist()),
            version,
        )

    async def score(self, request: types.ScoreRequest) -> types.Scores:
        self._check(request.policy_version)
        ids = list(request.token_ids)
        async with self._turn:
            rows, _ = await asyncio.to_thread(self._forward, ids[:-1], request.policy_version)
        top = (rows := rows[request.start - 1 :]).topk(request.top_k)
        asked = [
            [float(row[i]) for i in want] for row, want in zip(rows, request.candidates or [], strict=False)
        ]
        own = rows.gather(1, torch.tensor([ids[request.start :]]).T)[:, 0].tolist()
        return types.Scores(own, top.indices.tolist(), top.values.tolist(), None, asked or None)

    async def load(self, weights: types.Weights) -> None:
        from peft import PeftModel

        async with self._turn:
            if self._model is None:
                self._model = PeftModel.from_pretrained(self._base, weights.folder, str(weights.version))
            elif weights.version not in self._versions:
                self._model.load_adapter(weights.folder, str(weights.version))
            self._versions.add(weights.version)

    async def serve_version(self, version: int, scope: types.Scope = types.EVERYONE) -> None:
        self._check(version)
        self._serving[scope] = version

    async def unload(self, version: int) -> None:
        if version in (types.BASE_VERSION, *self._serving.values()):
            raise ValueError(f"version {version} is in use")
        others = self._versions - {types.BASE_VERSION, version}
        self._model.set_adapter(str(min(others)))
        self._model.delete_adapter(str(version))
        self._versions.discard(version)

    def _check(self, version: int) -> None:
        if version not in self._versions:
            raise ValueError(f"version {version} is not loaded")

    def status(self) -> types.EngineStatus:
        return types.EngineStatus(self._running, 0, 0, tuple(self._versions), self._serving)

    async def close(self) -> None: ...
