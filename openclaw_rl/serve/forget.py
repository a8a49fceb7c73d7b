"""Routes that delete data permanently: users their own, the owner anyone's."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from openclaw_rl.errors import or_not_found
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.types import Json


def forget_routes(inspection: Inspection) -> APIRouter:
    router = APIRouter()

    async def forget(kind: str, name: str, request: Request) -> Json:
        receipt = await asyncio.to_thread(inspection.forget, kind, name, limited_to(request))
        return or_not_found(receipt, kind, name)

    @router.delete("/v1/turns/{turn_id}", tags=["forget"])
    async def forget_turn(turn_id: str, request: Request) -> Json:
        """Erases and unlearns a turn and those after it, which repeat it; returns a receipt."""
        return await forget("turn", turn_id, request)

    @router.delete("/v1/sessions/{session_id:path}", tags=["forget"])
    async def forget_session(session_id: str, request: Request) -> Json:
        """Erases and unlearns a session."""
        return await forget("session", session_id, request)

    @router.delete("/v1/wishes/{wish_id}", tags=["forget"])
    async def forget_wish(wish_id: str, request: Request) -> Json:
        """Erases and unlearns a wish and the turns it was taught from."""
        return await forget("wish", wish_id, request)

    @router.delete("/v1/users/{name}", tags=["forget"])
    async def forget_user(name: str, request: Request) -> Json:
        """Erases and unlearns everything a person said; their key stays."""
        return await forget("user", name, request)

    return router
