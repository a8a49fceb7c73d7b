"""What the dashboard asks for beyond the look-in routes. All of it is public API like the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import sse
from openclaw_rl.serve.compare import Comparer, Comparison
from openclaw_rl.serve.pulse import Pulse
from openclaw_rl.serve.signin import require_owner, scope_of
from openclaw_rl.serve.text import WellFormed
from openclaw_rl.types import Json

Version = Annotated[int, Path(ge=0, le=2**31)]


@dataclass(frozen=True, slots=True)
class Insights:
    """What the routes show; wired in ``processes/dashboard.py`` so that serving knows no other stage."""

    pulse: Pulse
    tokens: Callable[[str, str | None], Json | None]
    """(turn id, user)"""
    learning: Callable[[str | None], Json]
    policy: Callable[[int, str | None], Json | None]
    """(version, user)"""
    results: Callable[[], Json]
    exclude_turn: Callable[[str, str | None, str], Awaitable[Json | None]]
    """(turn id, user, by whom); ValueError if it was learned from already."""
    exclude_session: Callable[[str, str | None, str], Awaitable[Json | None]]
    include_turn: Callable[[str, str | None, str], Awaitable[Json | None]]
    include_session: Callable[[str, str | None, str], Awaitable[Json | None]]
    export: Callable[[int, str], Awaitable[Json]]
    """(version, format)"""
    comparer: Comparer | None
    """None where another server answers."""


class Export(WellFormed):
    format: Literal["peft", "merged", "gguf"] = "peft"


def dashboard_routes(insights: Insights) -> APIRouter:
    router = APIRouter()

    # Not in the schema: it never ends, which no generic client expects.
    @router.get("/v1/events", include_in_schema=False)
    async def events() -> Response:
        return sse.EventStream(insights.pulse.listen(), {}, lambda: None)

    @router.get("/v1/learning", tags=["look in"])
    def learning(request: Request) -> Json:
        return insights.learning(scope_of(request))

    @router.get("/v1/results", tags=["look in"])
    def results() -> Json:
        return insights.results()

    @router.get("/v1/turns/{turn_id}/tokens", tags=["look in"])
    def tokens(turn_id: str, request: Request) -> Json:
        return _found(insights.tokens(turn_id, scope_of(request)), "turn", turn_id)

    @router.post("/v1/turns/{turn_id}/exclude", tags=["feedback"])
    async def exclude_turn(turn_id: str, request: Request) -> Json:
        try:
            done = await insights.exclude_turn(turn_id, scope_of(request), request.state.user)
        except ValueError as error:
            raise RequestError(str(error), status=409, code="conflict") from None
        return _found(done, "turn", turn_id)

    @router.post("/v1/sessions/{session_id}/exclude", tags=["feedback"])
    async def exclude_session(session_id: str, request: Request) -> Json:
        done = await insights.exclude_session(session_id, scope_of(request), request.state.user)
        return _found(done, "session", session_id)

    @router.post("/v1/turns/{turn_id}/include", tags=["feedback"])
    async def include_turn(turn_id: str, request: Request) -> Json:
        done = await insights.include_turn(turn_id, scope_of(request), request.state.user)
        return _found(done, "turn", turn_id)

    @router.post("/v1/sessions/{session_id}/include", tags=["feedback"])
    async def include_session(session_id: str, request: Request) -> Json:
        done = await insights.include_session(session_id, scope_of(request), request.state.user)
        return _found(done, "session", session_id)

    @router.get("/v1/policies/{version}", tags=["look in"])
    def policy(version: Version, request: Request) -> Json:
        return _found(insights.policy(version, scope_of(request)), "policy version", str(version))

    @router.post("/v1/policies/{version}/export", tags=["policies"])
    async def export(version: Version, parsed: Export, request: Request) -> Json:
        require_owner(request)
        try:
            return await insights.export(version, parsed.format)
        except LookupError as error:
            raise RequestError(str(error), status=404, code="not_found") from None
        except ValueError as error:
            raise RequestError(str(error), status=409, code="conflict") from None

    @router.post("/v1/compare", tags=["serve"], response_model=None)
    async def compare(parsed: Comparison) -> Response:
        if insights.comparer is None:
            raise RequestError("Another server answers here; its versions cannot be compared.", status=409)
        try:
            source = await insights.comparer.open(parsed)
        except ValueError as error:
            raise RequestError(str(error), param="prompt") from None
        return sse.EventStream(source, {}, lambda: None)

    return router


def _found(value: Json | None, kind: str, name: str) -> Json:
    if value is None:
        raise RequestError(f"There is no {kind} '{name}'.", status=404, code="not_found")
    return value
