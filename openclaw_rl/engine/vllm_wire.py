"""vLLM's wire format: requests and responses of ``/v1/completions``, with token ids in and out."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace

import httpx

from openclaw_rl.engine.sampled_from import SampledFrom
from openclaw_rl.errors import EngineAway
from openclaw_rl.types import FinishReason, GenerateRequest, Json, Token

API_KEY = "OPENCLAW_RL_VLLM_API_KEY"
_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def completion_body(
    request: GenerateRequest, model: str, drawn: SampledFrom, told: list[int], room: int
) -> Json:
    """``told`` are the tokens that a reply already has, when it continues after an interruption.

    For penalties the server counts only the tokens that it generates in this request. So earlier tokens are
    penalised with a bias, and one token is requested at a time, so that nothing counts twice.
    """
    sampling, num_asked = drawn.params, room - len(told)
    if told and (sampling.presence_penalty or sampling.frequency_penalty):
        num_asked, biases = 1, drawn.biases()
        sampling = replace(sampling, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=biases)
    body: Json = {
        "model": model,
        "prompt": [*request.prompt_ids, *told],
        "max_tokens": num_asked,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logprobs": max(request.top_logprobs, drawn.num_needed),
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,
        "stream": True,
        "priority": int(request.priority),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "add_special_tokens": False,
    }
    if sampling.seed is not None:
        body["seed"] = (sampling.seed + len(told)) & (2**63 - 1)
    if sampling.logit_bias:
        body["logit_bias"] = dict(sampling.logit_bias)
    if request.owner is not None:
        # What is cached for another user must not show, not even in latency.
        body["cache_salt"] = hashlib.sha256(request.owner.encode()).hexdigest()[:32]
    return body


class Unloaded(Exception):
    """The server does not know the adapter, as after a restart."""


class TransientError(Exception):
    """A failure that a retry may fix."""


#: Failures that are retried, which is safe: requests change nothing on the server.
PASSING = (httpx.TransportError, Unloaded, TransientError)


class RetryPolicy:
    """How many times in a row, and for how long, a request may fail before it is given up."""

    _MOST = 5

    def __init__(self, patience_s: float, pause_s: float) -> None:
        self._patience_s, self._pause_s = patience_s, pause_s
        self.went_on()

    def went_on(self) -> None:
        """Reset after progress."""
        self._failed, self.deadline = 0, time.monotonic() + self._patience_s

    def failed(self, error: Exception) -> float:
        """Seconds to wait before the next try; EngineAway after too many."""
        self._failed += 1
        if self._failed > self._MOST:
            raise EngineAway(f"vLLM failed {self._failed} times ({error or type(error).__name__})") from error
        return self._pause_s * float(2 ** (self._failed - 1))


def refusal(answer: httpx.Response) -> Exception:
    status = answer.status_code
    if status == 404:
        return Unloaded(message(answer))
    if status == 400:
        return ValueError(message(answer))
    if status in (401, 403):
        return EngineAway(f"vLLM refuses the key in {API_KEY}")
    if status >= 500 or status in (408, 429):
        return TransientError(f"it answered {status}")
    return EngineAway(f"vLLM answered {status}{': its quota is used up' if status == 402 else ''}")


def read_chunk(line: str) -> Json | None:
    """Parse one line of a stream; None if it carries no data."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return None
    try:
        chunk: Json = json.loads(line.removeprefix("data: "))
    except ValueError:
        raise TransientError("it said something that is no JSON") from None
    if "error" in chunk:
        raise TransientError(f"it failed while answering: {chunk['error'].get('type')}")
    return chunk


def message(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        return str(body.get("error", body).get("message", answer.status_code))
    except (ValueError, AttributeError):
        return f"status {answer.status_code}"


def read_tokens(
    chunk: Json, request: GenerateRequest, version: int, drawn: SampledFrom, is_whole: bool
) -> list[Token]:
    """``is_whole``: all remaining tokens were requested, so that "length" ends the reply itself."""
    if not chunk.get("choices"):
        return []
    choice = chunk["choices"][0]
    ids: list[int] = choice.get("token_ids") or []
    made, reason = [], _REASONS.get(choice.get("finish_reason") or "")
    reason = None if reason == "length" and not is_whole else reason
    for index, token_id in enumerate(ids):
        raw = float(choice["logprobs"]["token_logprobs"][index])
        row = choice["logprobs"]["top_logprobs"][index]
        known = {id_of(name): float(value) for name, value in row.items()}
        best = sorted(known, key=known.__getitem__, reverse=True)
        # The sampled token comes in addition to the likeliest, so there may be one more than requested.
        top = {each: known[each] for each in best[: max(request.top_logprobs, drawn.num_needed)]}
        shown = best[: request.top_logprobs]
        last = reason if index == len(ids) - 1 else None
        made.append(
            Token(
                token_id,
                raw,
                drawn.logprob(token_id, raw, top),
                tuple(shown),
                tuple(known[each] for each in shown),
                version,
                finish_reason=last,
            )
        )
    return made


def id_of(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def check_raw(client: httpx.Client, model: str) -> None:
    """Check that log-probs are raw: with top-k 1 a processed log-prob would be 0 and the next one -inf."""
    body = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0.5, "top_k": 1, "logprobs": 2,
            "seed": 0}  # fmt: skip
    answer = client.post("/v1/completions", json=body)
    if answer.status_code != 200:
        raise ValueError(f"vLLM cannot be used: {message(answer)}")
    told = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0].values()
    if not told or min(told) < -100:
        raise ValueError("vLLM gives processed log-probs; start it with --logprobs-mode raw_logprobs")
