"""Further routes that the dashboard uses. All of them are public API."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.compare import Comparison
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.inspection import Inspection
from openclaw_rl.serve.permissions import check_versions, own_scope, visible_user
from openclaw_rl.serve.signin import limited_to
from openclaw_rl.types import Json


def dashboard_routes(inspection: Inspection, gateway: Gateway) -> APIRouter:
    router = APIRouter()

    # Not in the schema: the stream never ends, which generic clients do not expect.
    @router.get("/v1/events", include_in_schema=False)
    async def events(request: Request) -> Response:
        pulse = inspection.pulse_of(own_scope(request, gateway), limited_to(request))
        return sse.EventStream(pulse.listen(), {}, lambda: None)

    @router.get("/v1/learning", tags=["read"])
    def learning(request: Request, user: Annotated[str | None, Query(max_length=64)] = None) -> Json:
        """The headline of *Home*, verdicts over time, and how many first replies were right, by version.
        The owner gets everybody's unless ``user`` names somebody."""
        return inspection.learning(visible_user(request, user), gateway.scope_of(user or request.state.user))

    @router.get("/v1/take-over", tags=["read"])
    def take_over(request: Request) -> Json:
        """With ``--take-over``: the share of conversations answered locally, and why."""
        if (found := inspection.take_over(own_scope(request, gateway))) is None:
            raise RequestError(
                "No model elsewhere is being taken over from; start with --upstream URL --take-over.",
                status=404,
                code="not_found",
            )
        return found

    @router.get("/v1/results", tags=["read"])
    def results() -> Json:
        """The contents of ``evals/*.json`` in the data folder."""
        return inspection.results()

    @router.post("/v1/compare", tags=["generate"], response_model=None)
    async def compare(parsed: Comparison, request: Request) -> Response:
        """Up to four versions answer one question, as a stream of events; nothing is stored."""
        if inspection.comparer is None:
            raise RequestError("Another server answers here; its versions cannot be compared.", status=409)
        await asyncio.to_thread(check_versions, request, gateway, inspection, parsed.versions)
        try:
            source, done = await inspection.comparer.open(parsed, request.state.user)
        except ValueError as error:
            raise RequestError(str(error), param="prompt") from None
        return sse.EventStream(source, {}, done)

    return router
