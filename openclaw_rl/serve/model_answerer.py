"""Answers with the local engine: prompts are rendered and replies are generated and parsed here.

The token ids and log-probs in the events are the engine's own, unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

from openclaw_rl.errors import RequestError
from openclaw_rl.schemas import end_patterns, relax
from openclaw_rl.serve.choice import VersionChoice
from openclaw_rl.serve.model_reply import ModelReply
from openclaw_rl.serve.public_prefix import PublicPrefix
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    GRAMMAR_DIALECT,
    ChatRequest,
    Engine,
    FollowsGrammars,
    Generate,
    GenerateRequest,
    Json,
    Message,
    Renderer,
    SamplingParams,
    Scope,
    SwitchesWarm,
    Token,
)

#: No prompt averages more characters per token, not even deeply indented code.
_MAX_CHARS_PER_TOKEN = 16
_RENDER_THREADS = 2


class ModelAnswerer:
    """The Answerer protocol over an engine and the renderer of its model."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        model_name: str,
        defaults: SamplingParams,
        generate: Generate | None = None,
        fingerprint: str = "",
        choice: VersionChoice | None = None,
        scope_of: Callable[[int], Scope] = lambda version: EVERYONE,
    ) -> None:
        """``defaults`` apply if a request sets no sampling; ``choice`` may pick another version than the
        serving one; ``scope_of`` returns a version's scope."""
        self._scope_of = scope_of
        self.engine, self.renderer, self.model_name = engine, renderer, model_name
        self._defaults, self._generate, self.fingerprint = defaults, generate, fingerprint
        self._choice = choice
        self._public = PublicPrefix(renderer)
        # A separate pool: rendering a long text must not block the ledger's threads.
        self._rendering = ThreadPoolExecutor(_RENDER_THREADS, thread_name_prefix="render")

    async def prepare(self, request: ChatRequest) -> ModelReply:
        stated = self.version_of(request.model, request.scope)
        _refuse_attachments(request)
        grammar, relaxed = await self._grammar(request)
        render = self._fitting if request.truncate else self._prompt_ids
        prompt_ids, num_public = await render(request)
        room = self.engine.context_length - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"This model's maximum context length is {self.engine.context_length} tokens. However, your "
                f"messages resulted in {len(prompt_ids)} tokens. Please reduce the length of the messages.",
                code="context_length_exceeded",
                param="messages",
            )
        sampling = self._sampling(request, room)
        version = self._pick_version(request, prompt_ids) if stated is None else stated
        reply = ModelReply(self, request, prompt_ids, sampling, version, grammar, relaxed)
        reply.num_public = num_public
        return reply

    def _sampling(self, request: ChatRequest, room: int) -> SamplingParams:
        """As requested. If a request sets temperature or top_p, what it omits is neutral, not our default."""
        defaults, chosen = self._defaults, request.temperature is not None or request.top_p is not None
        free = SamplingParams(defaults.max_tokens) if chosen else defaults
        return SamplingParams(
            max_tokens=min(room, request.max_tokens or defaults.max_tokens),
            temperature=free.temperature if request.temperature is None else request.temperature,
            top_p=free.top_p if request.top_p is None else request.top_p,
            top_k=free.top_k if request.top_k is None else request.top_k,
            seed=request.seed,
            min_p=request.min_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            logit_bias=request.logit_bias,
        )

    async def _fitting(self, request: ChatRequest) -> tuple[list[int], int]:
        """Drop as few of the oldest messages as necessary; system messages and the last user turn stay."""
        instructions = [message for message in request.messages if message["role"] == "system"]
        spoken = [message for message in request.messages if message["role"] != "system"]
        # Cut only before a user message, so that no tool result is left without its call.
        starts = [0, *(i for i, message in enumerate(spoken) if i and message["role"] == "user")]
        room = max(1, min(request.max_tokens or self._defaults.max_tokens, self.engine.context_length // 4))
        low, high = 0, len(starts) - 1
        while low < high:
            middle = (low + high) // 2
            fits = await self._fits(request, [*instructions, *spoken[starts[middle] :]], room)
            low, high = (low, middle) if fits else (middle + 1, high)
        kept = request.messages if low == 0 else [*instructions, *spoken[starts[low] :]]
        return await self._prompt_ids(replace(request, messages=kept))

    async def _fits(self, request: ChatRequest, messages: list[Message], room: int) -> bool:
        try:
            prompt_ids, _ = await self._prompt_ids(replace(request, messages=messages))
        except RequestError as error:
            if error.code == "context_length_exceeded":
                return False
            raise
        return len(prompt_ids) + room <= self.engine.context_length

    async def count_tokens(self, request: ChatRequest) -> int:
        self.version_of(request.model, request.scope)
        _refuse_attachments(request)
        return len((await self._prompt_ids(request))[0])

    def generate(self, request: GenerateRequest) -> AsyncIterator[Token]:
        return self._generate(self.engine, request) if self._generate else self.engine.generate(request)

    async def models(self, scope: Scope = EVERYONE) -> list[str]:
        return [self.model_name, *(f"{self.model_name}@{version}" for version in self._versions(scope))]

    async def check_model(self, name: str, scope: Scope = EVERYONE) -> None:
        self.version_of(name, scope)

    def _versions(self, scope: Scope) -> list[int]:
        """The base, and the scope's own loaded versions."""
        loaded = self.engine.status().versions
        return [v for v in loaded if v == BASE_VERSION or self._scope_of(v) == scope]

    async def close(self) -> None:
        """Does not close the engine, which belongs to its creator."""
        self._rendering.shutdown(wait=False, cancel_futures=True)

    async def _prompt_ids(self, request: ChatRequest) -> tuple[list[int], int]:
        """The prompt's token ids, and how many of them are public, not private to this user."""
        self._refuse_long_texts(request)
        return await asyncio.get_running_loop().run_in_executor(self._rendering, self._rendered, request)

    def _rendered(self, request: ChatRequest) -> tuple[list[int], int]:
        ids = self._render(request)
        return ids, self._public.num_tokens(request, ids)

    def _refuse_long_texts(self, request: ChatRequest) -> None:
        """Refuse texts that cannot fit; tokenizing them to find out could take minutes."""
        num_chars = _num_chars(request)
        most = self.engine.context_length * _MAX_CHARS_PER_TOKEN
        if num_chars > most:
            raise RequestError(
                f"This model's maximum context length is {self.engine.context_length} tokens. However, your "
                f"messages have {num_chars} characters. Please reduce the length of the messages.",
                code="context_length_exceeded",
                param="messages",
            )

    def _render(self, request: ChatRequest) -> list[int]:
        if isinstance(request.prompt, list):
            if not self.renderer.token_bytes(max(request.prompt)):
                raise RequestError(
                    "The prompt holds a token id that the model does not have.", param="prompt"
                )
            return request.prompt
        try:
            if request.prompt is not None:
                return self.renderer.encode(request.prompt)
            return self.renderer.render(request.messages, request.tools, thinking=request.thinking)
        except ValueError as error:
            raise RequestError(str(error), param="messages") from error
        except RecursionError as error:
            raise RequestError("The request is nested too deeply; flatten it.", param="tools") from error

    async def _grammar(self, request: ChatRequest) -> tuple[str | None, tuple[str, ...]]:
        """The reply's grammar, checked, and the schema keywords that no grammar can enforce."""
        # A free string may take about half of the reply, so that there is room to finish it.
        max_chars = max(64, (request.max_tokens or self._defaults.max_tokens) // 2)
        if not request.must_call and request.json_schema is None:
            return None, ()
        param = "tools" if request.must_call else "response_format"
        if self.engine.capabilities.grammar != GRAMMAR_DIALECT:
            raise RequestError("This engine cannot constrain replies; leave it free.", param=param)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._rendering, self._checked_grammar, request, max_chars
            )
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"This schema cannot be used: {error}", code="invalid_schema", param=param
            ) from None

    def _checked_grammar(self, request: ChatRequest, max_chars: int) -> tuple[str, tuple[str, ...]]:
        schemas = [tool["parameters"] for tool in request.must_call] or [request.json_schema or {}]
        relaxed = [relax(schema) for schema in schemas]
        followed, names = [schema for schema, _ in relaxed], {name for _, found in relaxed for name in found}
        try:
            ending = [end_patterns(schema, max_chars) for schema in followed]
            return self._compiled(request, ending, max_chars), tuple(sorted(names))
        except ValueError:  # a pattern may require longer strings, or the error is a different one
            return self._compiled(request, followed, max_chars), tuple(sorted(names))

    def _compiled(self, request: ChatRequest, schemas: Sequence[Json], max_chars: int) -> str:
        if request.must_call:
            asked = zip(request.must_call, schemas, strict=True)
            tools = [{**tool, "parameters": schema} for tool, schema in asked]
            grammar = self.renderer.tool_grammar(tools, max_chars)
        else:
            grammar = self.renderer.json_grammar(schemas[0], max_chars)
        cast(FollowsGrammars, self.engine).check_grammar(grammar)
        return grammar

    def _pick_version(self, request: ChatRequest, prompt_ids: list[int]) -> int:
        if self._choice is not None:
            status = self.engine.status()
            serving = status.version_for(request.scope)
            if (version := self._choice.instead(request, serving, status.versions)) is not None:
                return version
        if self.engine.capabilities.warm_switching:
            return cast(SwitchesWarm, self.engine).pick_version(prompt_ids, request.scope, request.user)
        return self.engine.status().version_for(request.scope)

    def version_of(self, model: str, scope: Scope = EVERYONE) -> int | None:
        """``name`` leaves the choice to the engine (None), ``name@3`` is version 3, ``name@0`` the base."""
        name, _, stated = model.partition("@")
        if name.lower() not in (self.model_name.lower(), "default"):
            raise RequestError(
                f"The model '{model}' does not exist here. This server has '{self.model_name}'.",
                status=404,
                code="model_not_found",
                param="model",
            )
        if not stated:
            return None
        loaded = {str(version): version for version in self._versions(scope)}
        if stated not in loaded:
            known = ", ".join(f"{self.model_name}@{version}" for version in loaded)
            raise RequestError(
                f"The model '{model}' names no loaded policy version; loaded: {known}.",
                status=404,
                code="model_not_found",
                param="model",
            )
        return loaded[stated]


def _refuse_attachments(request: ChatRequest) -> None:
    for index, message in enumerate(request.messages):
        if kinds := message.get("attachments"):
            raise RequestError(
                f"This model reads text only; a content part of type '{kinds[0]}' cannot be used. "
                "Remove it or describe it in words.",
                code="unsupported_content",
                param=f"messages[{index}].content",
            )


def _num_chars(request: ChatRequest) -> int:
    """Characters of everything that a template might put into the prompt."""
    texts: list[object] = [request.prompt, request.messages, request.tools]
    number = 0
    while texts:
        each = texts.pop()
        if isinstance(each, str):
            number += len(each)
        elif isinstance(each, dict):
            texts += each.values()
        elif isinstance(each, list) and each and not isinstance(each[0], int):
            texts += each
    return number
