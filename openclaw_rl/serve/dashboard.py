"""Further routes that the dashboard uses. All of them are public API."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from openclaw_rl.errors import RequestError, or_not_found
from openclaw_rl.serve import sse
from openclaw_rl.serve.compare import Comparison
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.signin import limited_to, require_owner
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.serve.whose import check_versions, own_scope, visible_policy
from openclaw_rl.types import Json

Version = Annotated[int, Path(ge=0, le=2**31)]


class Export(WellFormed):
    format: Literal["peft", "merged", "gguf"] = "peft"


def dashboard_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    # Not in the schema: the stream never ends, which generic clients do not expect.
    @router.get("/v1/events", include_in_schema=False)
    async def events(request: Request) -> Response:
        pulse = inspection.pulse_of(own_scope(request, gateway), limited_to(request))
        return sse.EventStream(pulse.listen(), {}, lambda: None)

    @router.get("/v1/learning", tags=["look in"])
    def learning(request: Request) -> Json:
        return inspection.learning(limited_to(request), own_scope(request, gateway))

    @router.get("/v1/take-over", tags=["look in"])
    def take_over(request: Request) -> Json:
        """The share of the user's conversations that the local model answers instead of the upstream one."""
        if (found := inspection.take_over(own_scope(request, gateway))) is None:
            raise RequestError(
                "No model elsewhere is being taken over from; start with --upstream URL --take-over.",
                status=404,
                code="not_found",
            )
        return found

    @router.get("/v1/results", tags=["look in"])
    def results() -> Json:
        return inspection.results()

    @router.get("/v1/turns/{turn_id}/tokens", tags=["look in"])
    def tokens(turn_id: str, request: Request) -> Json:
        return or_not_found(inspection.tokens(turn_id, limited_to(request)), "turn", turn_id)

    @router.post("/v1/turns/{turn_id}/exclude", tags=["feedback"])
    async def exclude_turn(turn_id: str, request: Request) -> Json:
        try:
            done = await inspection.exclude_turn(turn_id, limited_to(request), request.state.user)
        except ValueError as error:
            raise RequestError(str(error), status=409, code="conflict") from None
        return or_not_found(done, "turn", turn_id)

    @router.post("/v1/sessions/{session_id:path}/exclude", tags=["feedback"])
    async def exclude_session(session_id: str, request: Request) -> Json:
        done = await inspection.exclude_session(session_id, limited_to(request), request.state.user)
        return or_not_found(done, "session", session_id)

    @router.post("/v1/turns/{turn_id}/include", tags=["feedback"])
    async def include_turn(turn_id: str, request: Request) -> Json:
        done = await inspection.include_turn(turn_id, limited_to(request), request.state.user)
        return or_not_found(done, "turn", turn_id)

    @router.post("/v1/sessions/{session_id:path}/include", tags=["feedback"])
    async def include_session(session_id: str, request: Request) -> Json:
        done = await inspection.include_session(session_id, limited_to(request), request.state.user)
        return or_not_found(done, "session", session_id)

    @router.get("/v1/policies/{version}", tags=["look in"])
    def policy(version: Version, request: Request) -> Json:
        return visible_policy(request, gateway, inspection, version)

    @router.post("/v1/policies/{version}/export", tags=["policies"])
    async def export(version: Version, parsed: Export, request: Request) -> Json:
        require_owner(request)
        try:
            return await inspection.export(version, parsed.format)
        except LookupError as error:
            raise RequestError(str(error), status=404, code="not_found") from None
        except ValueError as error:
            raise RequestError(str(error), status=409, code="conflict") from None

    @router.post("/v1/compare", tags=["serve"], response_model=None)
    async def compare(parsed: Comparison, request: Request) -> Response:
        if inspection.comparer is None:
            raise RequestError("Another server answers here; its versions cannot be compared.", status=409)
        await asyncio.to_thread(check_versions, request, gateway, inspection, parsed.versions)
        try:
            source, done = await inspection.comparer.open(parsed, request.state.user)
        except ValueError as error:
            raise RequestError(str(error), param="prompt") from None
        return sse.EventStream(source, {}, done)

    return router
