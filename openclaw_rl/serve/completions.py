"""The completions dialect: continues bare text, without template or tools.

One prompt per request. ``echo``, ``suffix`` and ``best_of`` are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.chat import translated, usage, wire_logprobs
from openclaw_rl.serve.chat_wire import StreamOptions
from openclaw_rl.serve.dialect import Call, Dialect, WireRequest, given, openai_error, remaining
from openclaw_rl.serve.exchange import Event, Exchange
from openclaw_rl.types import ChatRequest, Json

TokenId = Annotated[int, Field(ge=0)]


class CompletionRequest(WireRequest):
    model: str
    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class CompletionsDialect(Dialect[CompletionRequest]):
    """Plain text or token ids in, text out; no chat template."""

    name = "completions"
    path = "/v1/completions"
    id_prefix = "cmpl-"
    request = CompletionRequest
    fields: ClassVar = {"messages": "prompt"}
    harmless = frozenset({"user", "metadata", "session_id"})

    async def read(self, parsed: CompletionRequest, call: Call) -> ChatRequest:
        for name in ("echo", "suffix"):
            if getattr(parsed, name):
                raise RequestError(f"{name} is not supported here.", param=name)
        if parsed.best_of not in (None, parsed.n or 1):
            raise RequestError("best_of is not supported here; ask for n and choose.", param="best_of")
        prompt = _one(parsed.prompt)
        own = {"prompt", "logprobs", "echo", "suffix", "best_of"}
        body = remaining(call, own)
        body["messages"] = [{"role": "user", "content": prompt if isinstance(prompt, str) else ""}]
        if isinstance(prompt, list):
            body["prompt"] = prompt
        if parsed.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": parsed.logprobs}
        # OpenAI's default limit: bare text has no natural end.
        request = translated({**body, **given(max_tokens=parsed.max_tokens or 16)}, call, self.name)
        return replace(request, prompt=prompt)

    def writer(self, exchange: Exchange, parsed: CompletionRequest) -> CompletionsWriter:
        options = parsed.stream_options
        return CompletionsWriter(exchange, parsed.logprobs, bool(options and options.include_usage))


def _one(prompt: str | list[int] | list[str] | list[list[int]]) -> str | list[int]:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise RequestError("One prompt a request; send the others on their own.", param="prompt")
        prompt = prompt[0]
    if not prompt:
        raise RequestError("The prompt is empty; there is nothing to go on from.", param="prompt")
    return prompt  # type: ignore[return-value]


class CompletionsWriter:
    def __init__(self, exchange: Exchange, num_logprobs: int | None, include_usage: bool) -> None:
        self._exchange, self._num_logprobs, self._include_usage = exchange, num_logprobs, include_usage
        count = exchange.request.num_choices
        self._texts, self._reasons = [""] * count, [""] * count
        self._entries: list[list[Json]] = [[] for _ in range(count)]
        self._num_shown = [0] * count

    def begin(self) -> list[bytes]:
        return []

    def add(self, event: Event) -> list[bytes]:
        i, text = event.choice, event.delta.content if event.delta else ""
        self._texts[i] += text
        self._entries[i] += self._logprobs_of(event)
        self._reasons[i] = event.finish_reason or ""
        if not (text or event.finish_reason):
            return []
        shown = self._entries[i][self._num_shown[i] :]
        self._num_shown[i] = len(self._entries[i])
        return [self._chunk([self._choice(i, text, shown)], None)]

    def finish(self) -> list[bytes]:
        last = [self._chunk([], usage(self._exchange))] if self._include_usage else []
        return [*last, sse.DONE]

    def fail(self, message: str) -> list[bytes]:
        return [sse.event(openai_error(500, message))]

    def whole(self) -> Json:
        choices = [self._choice(i, text, self._entries[i]) for i, text in enumerate(self._texts)]
        return {**self._head(), "choices": choices, "usage": usage(self._exchange)}

    def _chunk(self, choices: list[Json], used: Json | None) -> bytes:
        return sse.event(
            {**self._head(), "choices": choices} | ({"usage": used} if self._include_usage else {})
        )

    def _head(self) -> Json:
        return {
            "id": self._exchange.id,
            "object": "text_completion",
            "created": int(self._exchange.arrived),
            "model": self._exchange.source.model,
            "system_fingerprint": f"policy-{self._exchange.source.version}",
        }

    def _choice(self, index: int, text: str, entries: list[Json]) -> Json:
        logprobs = None if self._num_logprobs is None else _legacy(entries)
        reason = self._reasons[index] or None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_of(self, event: Event) -> list[Json]:
        renderer = self._exchange.source.renderer
        if self._num_logprobs is None or renderer is None:
            return []
        return wire_logprobs(event.tokens, renderer, self._num_logprobs)


def _legacy(entries: list[Json]) -> Json:
    """The parallel lists of the original completions format."""
    offsets, position = [], 0
    for entry in entries:
        offsets.append(position)
        position += len(entry["token"])
    top: list[Any] = [{t["token"]: t["logprob"] for t in entry["top_logprobs"]} for entry in entries]
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": top,
        "text_offset": offsets,
    }
