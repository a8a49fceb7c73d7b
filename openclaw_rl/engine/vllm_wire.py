"""What goes over vLLM's wire: requests and answers of ``/v1/completions``, with token ids in and out."""

from __future__ import annotations

import hashlib

import httpx

from openclaw_rl.engine.sampled_from import SampledFrom
from openclaw_rl.errors import EngineAway
from openclaw_rl.types import FinishReason, GenerateRequest, Json, Token

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def completion_body(
    request: GenerateRequest, model: str, drawn: SampledFrom, told: list[int], room: int
) -> Json:
    """``told`` are the tokens that a reply has already, where it goes on after a break."""
    sampling = request.sampling
    body: Json = {
        "model": model,
        "prompt": [*request.prompt_ids, *told],
        "max_tokens": room - len(told),
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
        # What was cached for somebody else must not show, not even in time.
        body["cache_salt"] = hashlib.sha256(request.owner.encode()).hexdigest()[:32]
    return body


class Unloaded(Exception):
    """A server that was started again does not know the adapter."""


def refusal(answer: httpx.Response) -> Exception:
    if answer.status_code == 404:
        return Unloaded(message(answer))
    if answer.status_code == 400:
        return ValueError(message(answer))
    return EngineAway(f"vLLM answered {answer.status_code}")


def message(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        return str(body.get("error", body).get("message", answer.status_code))
    except (ValueError, AttributeError):
        return f"status {answer.status_code}"


def read_tokens(chunk: Json, request: GenerateRequest, version: int, drawn: SampledFrom) -> list[Token]:
    if not chunk.get("choices"):
        return []
    choice = chunk["choices"][0]
    ids: list[int] = choice.get("token_ids") or []
    made, reason = [], _REASONS.get(choice.get("finish_reason") or "")
    for index, token_id in enumerate(ids):
        raw = float(choice["logprobs"]["token_logprobs"][index])
        row = choice["logprobs"]["top_logprobs"][index]
        known = {id_of(name): float(value) for name, value in row.items()}
        best = sorted(known, key=known.__getitem__, reverse=True)
        # The sampled token is told besides the likeliest, so one more may be there than was asked for.
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
    """With one token left to choose from, a processed log-prob would be 0 and its neighbour none at all."""
    body = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0.5, "top_k": 1, "logprobs": 2,
            "seed": 0}  # fmt: skip
    answer = client.post("/v1/completions", json=body)
    if answer.status_code != 200:
        raise ValueError(f"vLLM cannot be used: {message(answer)}")
    told = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0].values()
    if not told or min(told) < -100:
        raise ValueError("vLLM gives processed log-probs; start it with --logprobs-mode raw_logprobs")
