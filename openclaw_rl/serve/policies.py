"""Routes about versions: look at them, choose one, take one elsewhere."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request

from openclaw_rl.errors import RequestError
from openclaw_rl.scopes import check_scope
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.permissions import visible_policy, visible_scope
from openclaw_rl.serve.signin import limited_to, require_owner
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import EVERYONE, Json

Version = Annotated[int, Path(ge=0, le=2**31)]


class Export(WellFormed):
    format: Literal["peft", "merged", "gguf"] = "peft"


def policy_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/policies", tags=["read"])
    def policies(request: Request, scope: str | None = None) -> Json:
        """All versions: parent, status, checks, metrics. The owner sees every scope unless one is named."""
        everybodys = scope is None and limited_to(request) is None
        return inspection.policies(None if everybodys else visible_scope(request, gateway, scope))

    @router.post("/v1/policies/{version}/promote", tags=["versions"])
    async def promote(version: int, request: Request, scope: str = EVERYONE) -> Json:
        """Serves this version; 0 is the base. Owner only."""
        return await _promote(version, scope, request, f"promoted by {request.state.user}")

    @router.post("/v1/policies/rollback", tags=["versions"])
    async def rollback(request: Request, scope: str = EVERYONE) -> Json:
        """Serves the parent of the serving version. Owner only."""
        require_owner(request)
        parent = await asyncio.to_thread(inspection.parent, scope)
        if parent is None:
            raise RequestError("The base is being served; there is no version before it.", status=409)
        return await _promote(parent, scope, request, f"rolled back by {request.state.user}")

    async def _promote(version: int, scope: str, request: Request, why: str) -> Json:
        require_owner(request)
        try:
            return await inspection.promote(version, why, check_scope(scope))
        except (ValueError, OSError) as error:
            raise RequestError(str(error), status=404, code="not_found") from None

    @router.get("/v1/policies/{version}", tags=["read"])
    def policy(version: Version, request: Request) -> Json:
        """One version, with the turns it was trained on."""
        return visible_policy(request, gateway, inspection, version)

    @router.post("/v1/policies/{version}/export", tags=["versions"])
    async def export(version: Version, parsed: Export, request: Request) -> Json:
        """Writes a version into ``exports/`` of the data folder. Owner only."""
        require_owner(request)
        try:
            return await inspection.export(version, parsed.format)
        except LookupError as error:
            raise RequestError(str(error), status=404, code="not_found") from None
        except ValueError as error:
            raise RequestError(str(error), status=409, code="conflict") from None

    return router
