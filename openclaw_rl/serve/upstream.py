"""Replies of another server, passed on as they arrive.

Works with any OpenAI-compatible server: every dialect is sent as chat completions, bare text as completions.
Turns have text but no tokens, which we do not get; so they are captured, judged and remembered, but never
trained on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx

from openclaw_rl.errors import RequestError
from openclaw_rl.messages import NOTE, with_note
from openclaw_rl.serve.chat_wire import ChatCompletionRequest
from openclaw_rl.serve.exchange import Event
from openclaw_rl.types import (
    BASE_VERSION,
    EVERYONE,
    ChatRequest,
    Delta,
    FinishReason,
    Json,
    Renderer,
    SamplingParams,
    Scope,
)

#: Our own fields, which are not passed on.
_OWN = {"session_id", NOTE}
_CONNECT_S = 10.0


class UpstreamAnswerer:
    """The Answerer protocol over another server's API."""

    renderer: Renderer | None = None
    fingerprint = ""

    def __init__(self, url: str, key: str | None, model_name: str, timeout_s: float) -> None:
        """``timeout_s`` is how long the other server may send nothing."""
        self.model_name, self.url = model_name, url.rstrip("/")
        self.http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    async def prepare(self, request: ChatRequest) -> UpstreamReply:
        return UpstreamReply(self, request)

    async def models(self, scope: Scope = EVERYONE) -> list[str]:
        answer = await self.send(self.http.build_request("GET", f"{self.url}/models"))
        try:
            await answer.aread()
            return [str(model["id"]) for model in answer.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise self.trouble("does not list its models") from error
        finally:
            await answer.aclose()

    async def check_model(self, name: str, scope: Scope = EVERYONE) -> None:
        if name not in (known := await self.models()):
            raise RequestError(
                f"The model '{name}' does not exist there. It has: {', '.join(known)}.",
                status=404,
                code="model_not_found",
                param="model",
            )

    async def count_tokens(self, request: ChatRequest) -> int:
        raise RequestError("Tokens cannot be counted for a model that another server holds.", status=501)

    async def close(self) -> None:
        await self.http.aclose()

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The other server's response with its body unread; RequestError for everything but success."""
        try:
            answer = await self.http.send(request, stream=True)
        except httpx.TimeoutException:
            raise self.trouble("gives no answer in time", 504) from None
        except httpx.HTTPError as error:
            raise self.trouble(f"cannot be reached ({type(error).__name__})") from None
        if answer.status_code < 300:
            return answer
        try:
            await answer.aread()
        except httpx.HTTPError:
            raise self.trouble(f"answers {answer.status_code} and breaks off") from None
        finally:
            await answer.aclose()
        raise self._refusal(answer)

    def _refusal(self, answer: httpx.Response) -> RequestError:
        """Errors that the client can fix are passed on unchanged; others become an upstream error."""
        told: Json = {}
        with suppress(ValueError, AttributeError):
            body = answer.json()
            told = body["error"] if isinstance(body.get("error"), dict) else body
        status, message = (
            answer.status_code,
            str(told.get("message") or answer.text[:300] or "no reason given"),
        )
        if status in (401, 403):
            return self.trouble(f"refuses our key; set OPENCLAW_RL_UPSTREAM_API_KEY ({message})")
        if status >= 500:
            return self.trouble(f"answers {status}: {message}")
        code, param = told.get("code"), told.get("param")
        retry = answer.headers.get("retry-after", "")
        return RequestError(
            message,
            status=status,
            code=str(code) if code else None,
            param=str(param) if param else None,
            retry_after_s=int(retry) if retry.isdigit() else 1 if status == 429 else None,
        )

    def trouble(self, what: str, status: int = 502) -> RequestError:
        return RequestError(
            f"The server behind this one ({self.url}) {what}.", status=status, code="upstream"
        )


class UpstreamReply:
    """The Source protocol: one request to the other server, all choices in one stream."""

    version = BASE_VERSION
    fingerprint = ""
    renderer: Renderer | None = None

    def __init__(self, answerer: UpstreamAnswerer, request: ChatRequest) -> None:
        self.model = request.model
        self.prompt_ids: list[int] = []
        self.relaxed: tuple[str, ...] = ()
        self._answerer, self._request = answerer, request
        self._answer: httpx.Response | None = None
        self._usage: tuple[int, int] = (0, 0)
        self._reasons: dict[int, FinishReason] = {}
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        bare = self._request.prompt is not None
        url = f"{self._answerer.url}/{'completions' if bare else 'chat/completions'}"
        request = self._answerer.http.build_request("POST", url, json=self._wire())
        self._answer = await self._answerer.send(request)

    def abandon(self) -> None:
        if self._answer is not None and not self._answer.is_closed and self._closing is None:
            self._closing = asyncio.create_task(self._answer.aclose())

    def sampling(self, index: int) -> SamplingParams:
        """The other server chooses omitted values; we record OpenAI's defaults for them."""
        asked = self._request
        temperature = 1.0 if asked.temperature is None else asked.temperature
        top_p = 1.0 if asked.top_p is None else asked.top_p
        return SamplingParams(asked.max_tokens or 0, temperature, top_p, asked.top_k or 0, asked.seed)

    def usage(self) -> tuple[int, int] | None:
        return self._usage

    def _wire(self) -> Json:
        """The client's body; for another dialect, only fields that chat completions know."""
        request, body = self._request, self._request.body
        wire = {name: value for name, value in body.items() if name not in _OWN}
        if request.dialect != "chat":
            known = set(ChatCompletionRequest.model_fields) - {"chat_template_kwargs"}
            wire = {name: value for name, value in wire.items() if name in known}
            wire["messages"] = [_without_reasoning(message) for message in wire["messages"]]
        if note := body.get(NOTE):
            wire["messages"] = with_note(wire["messages"], note)
        if request.prompt is not None:
            del wire["messages"]
            wire["prompt"] = request.prompt
            if wire.pop("logprobs", None):
                wire["logprobs"] = wire.pop("top_logprobs", 0)
        return wire | {"stream": True, "stream_options": {"include_usage": True}}

    async def events(self) -> AsyncIterator[Event]:
        assert self._answer is not None, "not started"
        try:
            async for chunk in self._chunks(self._answer):
                if used := chunk.get("usage"):
                    self._usage = int(used.get("prompt_tokens") or 0), int(used.get("completion_tokens") or 0)
                for choice in chunk.get("choices") or []:
                    index = int(choice.get("index") or 0)
                    if index >= self._request.num_choices or index in self._reasons:
                        continue
                    for number, delta in enumerate(_deltas(choice)):
                        yield Event(index, delta, logprobs=None if number else choice.get("logprobs"))
                    if reason := choice.get("finish_reason"):
                        self._reasons[index] = "length" if reason == "length" else "stop"
        except httpx.TimeoutException:
            raise self._answerer.trouble("fell silent in the middle of a reply", 504) from None
        except (httpx.HTTPError, ValueError, AttributeError, TypeError) as error:
            raise self._answerer.trouble(
                f"broke off in the middle of a reply ({type(error).__name__})"
            ) from None
        finally:
            await self._answer.aclose()
        if len(self._reasons) < self._request.num_choices:
            raise self._answerer.trouble("ended a reply without finishing it")
        # Sent last: usage arrives at the end, and a turn is recorded with its last event.
        for index, why in sorted(self._reasons.items()):
            yield Event(index, None, (), why)

    async def _chunks(self, answer: httpx.Response) -> AsyncIterator[Json]:
        if answer.headers.get("content-type", "").startswith("application/json"):
            yield json.loads(await answer.aread())  # a server that does not stream
            return
        async for line in answer.aiter_lines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                return
            if data:
                chunk: Json = json.loads(data)
                if error := chunk.get("error"):
                    said = error.get("message") if isinstance(error, dict) else error
                    raise self._answerer.trouble(f"failed in the middle of a reply: {said}")
                yield chunk


def _deltas(choice: Json) -> list[Delta]:
    """The deltas of one chunk's choice; a reply that was not streamed has ``message`` instead."""
    if isinstance(choice.get("text"), str):
        return [Delta(content=choice["text"])] if choice["text"] else []
    said: Json = choice.get("delta") or choice.get("message") or {}
    deltas = []
    if thought := said.get("reasoning_content") or said.get("reasoning"):
        deltas.append(Delta(reasoning=str(thought)))
    if text := said.get("content") or said.get("refusal"):
        deltas.append(Delta(content=str(text)))
    for position, call in enumerate(said.get("tool_calls") or []):
        function: Any = call.get("function") or {}
        deltas.append(
            Delta(
                tool_index=int(call.get("index", position)),
                tool_name=function.get("name") or "",
                arguments=function.get("arguments") or "",
            )
        )
    return deltas


def _without_reasoning(message: Json) -> Json:
    """Some servers refuse these fields."""
    return {name: value for name, value in message.items() if name not in ("reasoning_content", "refusal")}
