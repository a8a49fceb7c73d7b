"""Which models there are, and two routes that clients try: what to do instead."""

from __future__ import annotations

from fastapi import APIRouter, Request

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.permissions import own_scope
from openclaw_rl.types import Json


def model_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/embeddings", tags=["generate"])
    async def embeddings() -> Json:
        """Refused: the model has none."""
        raise RequestError(
            "There are no embeddings here: the model is trained to talk. Give your client the base URL of a "
            "server with an embedding model for them.",
            status=404,
            code="unsupported_endpoint",
        )

    @router.get("/v1/models", tags=["generate"])
    async def models(request: Request) -> Json:
        """The model's name and every loaded version."""
        data = [_model(name) for name in await gateway.answerer.models(own_scope(request, gateway))]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": False, **ends}

    @router.get("/v1/models/{name:path}", tags=["generate"])
    async def model(name: str, request: Request) -> Json:
        """One of these, or 404."""
        await gateway.answerer.check_model(name, own_scope(request, gateway))
        return _model(name)

    return router


def _model(name: str) -> Json:
    """In the words of OpenAI and of Anthropic at once; their clients skip what they do not know."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "openclaw-rl"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
