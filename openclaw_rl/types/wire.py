"""JSON encoding for the private socket between serve and learn; only this file encodes and decodes it."""

from __future__ import annotations

from dataclasses import asdict, fields

from openclaw_rl.types.base import Json
from openclaw_rl.types.engine import (
    Capabilities,
    EngineStatus,
    GenerateRequest,
    Priority,
    SamplingParams,
    ScoreRequest,
    Token,
)


def generate_to_json(request: GenerateRequest) -> Json:
    return {**asdict(request), "stop_ids": sorted(request.stop_ids), "priority": int(request.priority)}


def generate_from_json(data: Json) -> GenerateRequest:
    return GenerateRequest(
        **{
            **data,
            "sampling": SamplingParams(**data["sampling"]),
            "stop_ids": frozenset(data["stop_ids"]),
            "priority": Priority(data["priority"]),
        }
    )


def score_to_json(request: ScoreRequest) -> Json:
    return {**asdict(request), "priority": int(request.priority)}


def score_from_json(data: Json) -> ScoreRequest:
    return ScoreRequest(**{**data, "priority": Priority(data["priority"])})


def token_to_json(token: Token) -> Json:
    return {field.name: getattr(token, field.name) for field in fields(token)}


def token_from_json(data: Json) -> Token:
    return Token(**{**data, "top_ids": tuple(data["top_ids"]), "top_logprobs": tuple(data["top_logprobs"])})


def facts_to_json(capabilities: Capabilities, context_length: int, status: EngineStatus) -> Json:
    """Everything about an engine that its remote client needs."""
    return {
        "capabilities": asdict(capabilities),
        "context_length": context_length,
        "status": asdict(status),
    }


def facts_from_json(data: Json) -> tuple[Capabilities, int, EngineStatus]:
    status = {**data["status"], "versions": tuple(data["status"]["versions"])}
    capabilities = {**data["capabilities"], "loads": tuple(data["capabilities"]["loads"])}
    return Capabilities(**capabilities), int(data["context_length"]), EngineStatus(**status)
